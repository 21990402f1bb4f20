-- purpose: sessions that run nowhere in SQL and are leased by nobody stop counting against the cap of their workspace
-- args: ws
-- each session: session
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, how many
-- uses: session slots

local dropped = 0
for session in each_session() do
  local s = load_session(session)
  if s.state ~= 'leased' and call('SISMEMBER', key_active(ws), session) == 1 then
    leave_slot(ws, session)
    dropped = dropped + 1
  end
end
return {'OK', number(dropped)}
