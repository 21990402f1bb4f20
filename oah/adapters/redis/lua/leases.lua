-- purpose: where sessions stand, for repair and people
-- each session: session
-- repeatable: yes, it only reads
-- over maxmemory: yes
-- returns: OK, then per session: state, worker or '', token or '', remaining life in ms or '', class or ''
-- uses: session

local answer = {'OK'}
for session in each_session() do
  local s = load_session(session)
  local deadline = s.token and tonumber(call('ZSCORE', key_leases(), session) or nil)
  answer[#answer + 1] = s.state
  answer[#answer + 1] = s.worker or ''
  answer[#answer + 1] = s.token or ''
  answer[#answer + 1] = deadline and number(deadline - now()) or ''
  answer[#answer + 1] = s.class or ''
end
return answer
