-- Wake tokens: hints for the workers that block on a lane. Losing one costs time, never a run. At most 64 in a list; a
-- list is measured once a call.

local tokens = {}

local function wake(lane)
  local waiting = tokens[lane] or call('LLEN', key_wake(lane))
  if waiting < 64 then waiting = call('LPUSH', key_wake(lane), '1') end
  tokens[lane] = waiting
end
