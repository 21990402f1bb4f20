-- purpose: a worker's report, which expires unless it is repeated
-- keys: global
-- args: worker report ttl_ms:int
-- each lane: lane
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK

call('ZADD', key_workers(), number(now()), worker)
call('HSET', key_worker(worker), 'report', report, 'seen', number(now()))
call('PEXPIRE', key_worker(worker), ttl_ms)
for lane in each_lane() do call('ZADD', key_served(), number(now()), lane) end
call('ZREMRANGEBYSCORE', key_served(), '-inf', number(now() - 604800000))
return {'OK'}
