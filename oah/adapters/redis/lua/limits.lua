-- purpose: weights and caps of workspaces, as SQL has them
-- each limit: ws weight:int cap:int?
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK
-- uses: slots

for ws, weight, cap in each_limit() do
  call('HSET', key_ws(ws), 'weight', number(weight))
  if cap then call('HSET', key_ws(ws), 'cap', number(cap)) else call('HDEL', key_ws(ws), 'cap') end
  uncap(ws)
end
return {'OK'}
