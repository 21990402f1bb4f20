-- purpose: which leases have passed, oldest first; one that a clock which jumped back has left far ahead ends in time
-- args: limit:int lease_ms:int
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, then per lease: session, worker or '', token or '', 1 if parked, ms since it passed
-- uses: session

-- Nobody is given more than a lease: what lies two ahead was written by a clock that was wrong. Who lives renews it.
if lease_ms > 0 then
  local ahead = '(' .. number(now() + 2 * lease_ms)
  for _, sid in ipairs(call('ZRANGEBYSCORE', key_leases(), ahead, '+inf', 'LIMIT', 0, limit)) do
    call('ZADD', key_leases(), number(now() + lease_ms), sid)
  end
end

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
