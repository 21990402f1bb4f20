-- purpose: set a key aside that a client found to be of another type than it should
-- epoch: none
-- args: key
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK

set_aside(key)
return {'OK'}
