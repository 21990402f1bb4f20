-- purpose: caps of all, of profiles and of pools, as SQL has them; what is not given has none any more
-- each cap: group most:int
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK
-- uses: caps

call('DEL', key_caps())
for group, most in each_cap() do call('HSET', key_caps(), group, number(most)) end
wake_unfull()
return {'OK'}
