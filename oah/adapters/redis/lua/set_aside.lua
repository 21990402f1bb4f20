-- purpose: keep a value that a client could not read, for people
-- epoch: none
-- args: key value
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK

local n = call('HINCRBY', key_poison(), 'next', 1) % 100
call('SET', key_poisoned(n), value, 'EX', 604800)
call('HSET', key_poison(), n, key)
return {'OK'}
