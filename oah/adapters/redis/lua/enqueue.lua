-- purpose: hear of runs: idle -> ready, ready -> class up, leased -> heard, parked -> its owner is called; delayed -> due
-- each hear: session run lane ws class due_in_ms:int? priority:int
-- repeatable: yes, a repeat changes nothing but the hint list
-- over maxmemory: no
-- returns: OK, then per hear: state, owner ('' unless parked and called)
-- uses: places

local function hear_delayed(session, run, lane, due_in_ms)
  call('HSET', key_due_session(), run, session)
  call('ZADD', key_due(), number(now() + due_in_ms), run)
  if call('ZRANK', key_due(), run) == 0 then wake(lane) end
end

local function class_up(s, class)
  local better = highest(s.class, class)
  if s.class == 'suspect' or class == 'suspect' or better == s.class then return end
  local since = call('ZSCORE', key_since(s.lane, s.class), s.id)
  unindex_ready(s)
  s.class = better
  if since then call('ZADD', key_since(s.lane, better), since, s.id) end
  index_ready(s)
  save_session(s)
  wake(s.lane)
end

local function hear_now(s, run, lane, ws, class, priority)
  if call('LLEN', key_queue(s.id)) < 2000 then call('RPUSH', key_queue(s.id), run) end
  if s.state == 'idle' then
    s.lane, s.ws = lane, ws
    set_priority(s, priority)
    to_ready(s, class)
  elseif s.state == 'ready' then
    class_up(s, class)
  elseif s.state == 'leased' then
    s.heard = highest(s.heard, class)
    save_session(s)
  elseif s.state == 'parked' then
    call_owner(s, class)
  end
end

local answer = {'OK'}
for session, run, lane, ws, class, due_in_ms, priority in each_hear() do
  local s = load_session(session)
  if due_in_ms then
    hear_delayed(session, run, lane, due_in_ms)
  else
    hear_now(s, run, lane, ws, class, priority)
  end
  answer[#answer + 1] = s.state
  answer[#answer + 1] = s.state == 'parked' and s.heard and s.worker or ''
end
return answer
