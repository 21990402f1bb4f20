-- purpose: drop entries of due whose run SQL no longer defers
-- each due: run
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK

for run in each_due() do
  call('ZREM', key_due(), run)
  call('HDEL', key_due_session(), run)
end
return {'OK'}
