-- purpose: a start took a run of each session: pop one head of its hint list
-- each head: session
-- repeatable: no, but the list is a hint that reconcile rewrites
-- over maxmemory: yes
-- returns: OK

for session in each_head() do call('LPOP', key_queue(session)) end
return {'OK'}
