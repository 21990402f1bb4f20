-- purpose: a new epoch in state rebuilding over the one that was seen
-- args: new seen:text? run_id:text? schema:int
-- epoch: none
-- repeatable: yes, a repeat by the one who minted answers 1 while it is still rebuilding
-- over maxmemory: yes
-- returns: OK, 1, or 0 if it is another by now

local found = call('HMGET', key_epoch(), 'id', 'state')
if found[1] == new and found[2] == 'rebuilding' then return {'OK', '1'} end
if (found[1] or nil) ~= seen then return {'OK', '0'} end
call('DEL', key_epoch())
call('HSET', key_epoch(), 'run_id', run_id or '', 'schema', number(schema), 'state', 'rebuilding', 'id', new)
return {'OK', '1'}
