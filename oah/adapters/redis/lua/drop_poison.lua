-- purpose: remove a value that was set aside and has been carried away, unless its place has another by now
-- epoch: none
-- args: n:int turn:int keep:flag
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, 1 if it was removed

-- Places are taken in turns of a hundred: the next turn that takes this one.
local taken = turn + (n - turn - 1) % 100 + 1
local counter = tonumber(call('HGET', key_poison(), 'next'))
if not counter or counter < turn or counter >= taken then return {'OK', '0'} end
local there = call('HDEL', key_poison(), n)
if not keep then call('DEL', key_poisoned(n)) end
if call('HLEN', key_poison()) == 1 then call('DEL', key_poison()) end
return {'OK', number(there)}
