-- purpose: give the leader lease up, if it is one's own
-- keys: global
-- args: holder
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK

if call('GET', key_leader()) == holder then call('DEL', key_leader()) end
return {'OK'}
