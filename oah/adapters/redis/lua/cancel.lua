-- purpose: nothing eligible is left: ready -> idle, parked -> its owner is no longer called
-- each session: session
-- repeatable: yes; the caller then looks into SQL once more and calls ensure if something is eligible
-- over maxmemory: yes
-- returns: OK, then per session: state
-- uses: places

local answer = {'OK'}
for session in each_session() do
  local s = load_session(session)
  if s.state == 'ready' then
    to_idle(s)
  elseif s.state == 'parked' then
    call('ZREM', key_called(s.worker), session)
    s.heard = nil
    save_session(s)
  end
  answer[#answer + 1] = s.state
end
return answer
