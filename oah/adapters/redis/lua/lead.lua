-- purpose: take the leader lease, or keep one's own
-- keys: global
-- args: holder lease_ms:int
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, 1 while the holder has it

local leader = call('GET', key_leader())
if leader and leader ~= holder then
  -- Longer than anybody leads without a word: the clock has jumped back since.
  if call('PTTL', key_leader()) > 2 * lease_ms then call('PEXPIRE', key_leader(), lease_ms) end
  return {'OK', '0'}
end
call('SET', key_leader(), holder, 'PX', lease_ms)
return {'OK', '1'}
