-- purpose: which leases have passed, oldest first; changes nothing
-- args: limit:int
-- repeatable: yes, it only reads
-- over maxmemory: yes
-- returns: OK, then per lease: session, worker or '', token or '', 1 if parked, ms since it passed
-- uses: session

local answer = {'OK'}
local passed = call('ZRANGEBYSCORE', key_leases(), '-inf', number(now()), 'WITHSCORES', 'LIMIT', 0, limit)
for n = 1, #passed, 2 do
  local s = load_session(passed[n])
  answer[#answer + 1] = s.id
  answer[#answer + 1] = s.worker or ''
  answer[#answer + 1] = s.token or ''
  answer[#answer + 1] = s.state == 'parked' and '1' or '0'
  answer[#answer + 1] = number(now() - tonumber(passed[n + 1]))
end
return answer
