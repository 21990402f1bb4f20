-- purpose: with the dead owner's token: -> ready at the old score, held, or idle; an idle session (after a flush) too
-- each session: session token target lane ws class:text? until_in_ms:int? reasons priority:int
-- repeatable: yes, without the token it changes nothing
-- over maxmemory: yes
-- returns: OK, then per session: state or 'other', owner ('' unless parked and called)
-- uses: places owning

local function move(s, target, lane, ws, class, until_in_ms, reasons, priority)
  s.lane, s.ws = s.lane or lane, s.ws or ws
  if target == 'held' then return to_held(s, reasons, until_in_ms) end
  if target == 'ready' or s.heard then
    set_priority(s, priority)
    return to_ready(s, highest(class, s.heard) or s.class or 'interactive', s.score)
  end
  return to_idle(s)
end

local answer = {'OK'}
for session, token, target, lane, ws, class, until_in_ms, reasons, priority in each_session() do
  local s = load_session(session)
  local state = s.state
  if s.state == 'idle' or has_token(s, token) then
    -- An entry of a lease that no hash confirms would be listed by expire for ever.
    if s.state == 'idle' then call('ZREM', key_leases(), session) end
    state = move(s, target, lane, ws, class, until_in_ms, reasons, priority)
  elseif s.token then
    state = 'other'
  else
    call('ZREM', key_leases(), session)
  end
  answer[#answer + 1] = state
  answer[#answer + 1] = state == 'parked' and s.heard and s.worker or ''
end
return answer
