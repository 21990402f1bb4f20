-- purpose: remove the lists of a worker incarnation that is gone; what it still leases stays for recovery
-- args: worker
-- epoch: none
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, 1 if nothing was left

local left = call('SCARD', key_owned(worker))
if left == 0 then call('DEL', key_called(worker), key_claim(worker)) end
return {'OK', left == 0 and '1' or '0'}
