-- purpose: remove a worker incarnation from the registry
-- keys: global
-- args: worker
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK

call('ZREM', key_workers(), worker)
call('DEL', key_worker(worker), key_control(worker))
return {'OK'}
