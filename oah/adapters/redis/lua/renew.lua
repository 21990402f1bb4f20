-- purpose: the worker's own table -> extended, expired or lost; what it owns without knowing it goes back to ready
-- args: worker lease_ms:int counter:int
-- each pending: request
-- each held: session token
-- each agentless: session
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, how many were listed, their states, how many were returned, their ids, then parked strangers
-- uses: places owning

local function judge(session, token)
  local s = load_session(session)
  if not has_token(s, token) or s.worker ~= worker then return 'lost' end
  local deadline = deadline_of(session)
  if deadline and deadline > now() then
    call('ZADD', key_leases(), number(now() + lease_ms), session)
    return 'extended'
  end
  mend_lease(session)
  return 'expired'
end

local listed, answer = {}, {'OK', number(held_count)}
for session, token in each_held() do
  listed[session] = true
  answer[#answer + 1] = judge(session, token)
end
local pending, agentless = {}, {}
for request in each_pending() do pending[request] = true end
for session in each_agentless() do agentless[session] = true end

local returned, strangers = {}, {}
for _, sid in ipairs(call('SMEMBERS', key_owned(worker))) do
  local s = not listed[sid] and load_session(sid)
  if s and s.worker ~= worker then
    call('SREM', key_owned(worker), sid)
  elseif s and not pending[s.request or ''] and (tonumber(s.counter) or 0) < counter then
    if s.state == 'leased' or agentless[sid] then
      to_ready(s, highest(s.class or 'interactive', s.heard), s.score)
      returned[#returned + 1] = sid
    else
      strangers[#strangers + 1] = sid
    end
  end
end
answer[#answer + 1] = number(#returned)
for _, sid in ipairs(returned) do answer[#answer + 1] = sid end
for _, sid in ipairs(strangers) do answer[#answer + 1] = sid end
return answer
