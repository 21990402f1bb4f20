-- purpose: with the token, after a settle: -> ready, parked (held, where reasons are given), idle or held; what was
--   heard meanwhile is honoured
-- each session: session token target class:text? until_in_ms:int? reasons priority:int
-- repeatable: yes, without the token it changes nothing
-- over maxmemory: yes
-- returns: OK, then per session: state or 'other', owner ('' unless parked and called)
-- uses: places owning

local function park(s, class, until_in_ms, reasons)
  if s.state == 'leased' then
    leave_slot(s)
    s.state, s.request = 'parked', nil
  end
  end_hold(s)
  if reasons ~= '' then
    hold_parked(s, reasons, until_in_ms)
    return
  end
  local waits = highest(s.heard, class)
  if waits then call_owner(s, waits) else save_session(s) end
end

local function free(s, target, class, until_in_ms, reasons, priority)
  if target == 'parked' then
    park(s, class, until_in_ms, reasons)
  elseif target == 'held' then
    to_held(s, reasons, until_in_ms)
  elseif target == 'ready' or s.heard then
    set_priority(s, priority)
    to_ready(s, highest(class, s.heard) or s.class or 'interactive')
  else
    to_idle(s)
  end
  return s.state
end

local answer = {'OK'}
for session, token, target, class, until_in_ms, reasons, priority in each_session() do
  local s = load_session(session)
  local state = s.state
  if has_token(s, token) then
    state = free(s, target, class, until_in_ms, reasons, priority)
  elseif s.token then
    state = 'other'
  end
  answer[#answer + 1] = state
  answer[#answer + 1] = state == 'parked' and s.heard and s.worker or ''
end
return answer
