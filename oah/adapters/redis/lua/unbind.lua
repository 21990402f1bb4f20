-- purpose: sessions that wait for a host: to every worker of their lane, or asked about again later
-- each session: session wait_ms:int?
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, then per session: state
-- uses: places

local answer = {'OK'}
for session, wait_ms in each_session() do
  local s = load_session(session)
  if s.state ~= 'ready' or not host_of(s.lane) then
    call('ZREM', key_affinity(), session)
  elseif wait_ms then
    call('ZADD', key_affinity(), number(now() + wait_ms), session)
  else
    to_ready(s, s.class, s.score)
  end
  answer[#answer + 1] = s.state
end
return answer
