-- purpose: tell workers to look into SQL; one hint that nobody has read yet is enough
-- keys: global
-- each worker: worker
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK

for worker in each_worker() do
  if call('LLEN', key_control(worker)) == 0 then call('LPUSH', key_control(worker), 'look') end
  call('EXPIRE', key_control(worker), 600)
end
return {'OK'}
