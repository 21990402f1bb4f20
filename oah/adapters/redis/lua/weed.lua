-- purpose: remove entries of ready sets that their sessions' own records do not confirm
-- each entry: session lane class ws:text?
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, how many were removed
-- uses: fits

local removed = 0
for session, lane, class, ws in each_entry() do
  if not confirms(load_session(session), lane, class, ws) then
    local ready = ws and key_ready(lane, class, ws)
    removed = removed + call('ZREM', ready or key_since(lane, class), session)
    if ready and call('EXISTS', ready) == 0 then leave_ring(lane, class, ws) end
  end
end
return {'OK', number(removed)}
