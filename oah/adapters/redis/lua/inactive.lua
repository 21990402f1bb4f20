-- purpose: sessions that run nowhere in SQL and are leased by nobody stop counting against a cap
-- args: group
-- each session: session
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, how many
-- uses: session slots

local dropped = 0
for session in each_session() do
  if load_session(session).state ~= 'leased' then dropped = dropped + leave_group(group, session) end
end
if dropped > 0 then wake_unfull() end
return {'OK', number(dropped)}
