-- purpose: leased or parked again for the owner that SQL names
-- each session: session worker token parked:flag lane ws class life_ms:int over:text?
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, then per session 1, or 0 if another token holds it
-- uses: places owning

local function extend(s, life_ms)
  local deadline = math.max(deadline_of(s.id) or 0, now() + life_ms)
  call('ZADD', key_leases(), number(deadline), s.id)
  if s.state == 'leased' then enter_slot(s) end -- should it have been lost
end

local function restore(s, worker, token, parked, lane, ws, class, life_ms, over)
  local rebuilding = epoch_state == 'rebuilding'
  local taken = s.state == 'leased' or s.state == 'parked'
  if taken and s.token == token and s.worker == worker and not (rebuilding and parked == (s.state == 'leased')) then
    extend(s, life_ms)
    return '1'
  end
  if taken and s.token ~= token and s.token ~= over and not rebuilding then return '0' end
  -- It was ready because a run waited: the owner's free must not forget that.
  local waited = s.state == 'ready' and s.class or s.heard
  local reasons, stands = s.reasons, tonumber(s['until'])
  leave(s)
  s.lane, s.ws, s.class = s.lane or lane, s.ws or ws, class
  s.heard = waited
  s.counter, s.request = '0', nil
  own(s, worker, token, now() + life_ms, parked)
  if parked and reasons then
    hold_parked(s, reasons, stands and stands - now())
  elseif parked and waited then
    call_owner(s, waited)
  end
  save_session(s)
  return '1'
end

local answer = {'OK'}
for session, worker, token, parked, lane, ws, class, life_ms, over in each_session() do
  answer[#answer + 1] = restore(load_session(session), worker, token, parked, lane, ws, class, life_ms, over)
end
return answer
