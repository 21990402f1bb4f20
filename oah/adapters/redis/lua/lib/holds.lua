-- Holds: a session in the place `held`, or a parked one that is held where it stands. Not saved here.
-- uses: session

-- A hold: its reasons, and in `held` when the first of them ends. A parked session can be held where it stands.
local function set_hold(s, reasons, until_in_ms)
  s.reasons = reasons
  s['until'] = until_in_ms and number(now() + until_in_ms) or nil
  call('ZADD', key_held(), s['until'] or '+inf', s.id)
end

local function end_hold(s)
  if s.state == 'held' or s.reasons or s['until'] then call('ZREM', key_held(), s.id) end
  s['until'], s.reasons = nil, nil
end
