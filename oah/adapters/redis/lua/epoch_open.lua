-- purpose: rebuilding -> open, only under this id
-- args: id
-- epoch: none
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, 1, or 0 under another id

local found = call('HMGET', key_epoch(), 'id', 'state')
if found[1] ~= id then return {'OK', '0'} end
if found[2] ~= 'open' then call('HSET', key_epoch(), 'opened_at', number(now()), 'state', 'open') end
return {'OK', '1'}
