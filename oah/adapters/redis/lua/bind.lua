-- purpose: with the token: leased -> ready at the old score where only workers of one host look, and from when on it is
--   asked whether that host is there at all
-- each session: session token class host wait_ms:int
-- repeatable: yes, without the token it changes nothing
-- over maxmemory: yes
-- returns: OK, then per session: state or 'other', owner ('' unless parked and called)
-- uses: places owning

local answer = {'OK'}
for session, token, class, host, wait_ms in each_session() do
  local s = load_session(session)
  local state = s.state
  if has_token(s, token) and s.state == 'leased' then
    call('ZADD', key_affinity(), number(now() + wait_ms), session)
    state = to_ready(s, highest(class, s.heard), s.score, host)
  elseif s.token and s.token ~= token then
    state = 'other'
  end
  answer[#answer + 1] = state
  answer[#answer + 1] = state == 'parked' and s.heard and s.worker or ''
end
return answer
