-- purpose: sessions that SQL says have an eligible run: idle or held -> ready, leased -> heard, parked -> called
-- each session: session lane ws class score:text? rewrite:flag priority:int
-- each run: of:int run promoted:flag
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, then per session: state, owner ('' unless parked and called)
-- uses: places owning

-- Later sessions come after the ones that were placed by age.
local function lift_seq(score)
  if tonumber(score) > (tonumber(call('GET', key_seq()) or nil) or 0) then
    call('SET', key_seq(), number(math.ceil(tonumber(score))))
  end
end

-- Nothing to move, but another run may be its first now; and after a torn write an index may lack what the hash says.
local function mend_ready(s, priority)
  set_priority(s, priority)
  call('ZADD', key_ready(s.lane, s.class, s.ws), rank_of(s), s.id)
  call('ZADD', key_since(s.lane, s.class), 'NX', number(now()), s.id)
  call('SADD', key_lanes(), s.lane) -- tick may have dropped it meanwhile
  enter_ring(s.lane, s.class, s.ws)
  save_session(s)
end

local function place(s, lane, ws, class, score, priority)
  if s.state == 'idle' or s.state == 'held' then
    s.lane, s.ws = s.lane or lane, s.ws or ws
    if score then lift_seq(score) end
    set_priority(s, priority)
    to_ready(s, class, score)
  elseif s.state == 'ready' then
    mend_ready(s, priority)
  elseif s.state == 'leased' then
    mend_lease(s.id)
    s.heard = highest(s.heard, class)
    save_session(s)
  else
    mend_lease(s.id)
    end_hold(s)
    call_owner(s, class)
  end
end

local promoted, hints = {}, {}
for of, run, gone in each_run() do
  if gone then
    promoted[#promoted + 1] = run
  else
    hints[of] = hints[of] or {}
    hints[of][#hints[of] + 1] = run
  end
end
for _, run in ipairs(promoted) do
  call('ZREM', key_due(), run)
  call('HDEL', key_due_session(), run)
end
local answer, n = {'OK'}, 0
for session, lane, ws, class, score, rewrite, priority in each_session() do
  n = n + 1
  local s = load_session(session)
  if rewrite then
    call('DEL', key_queue(session))
    for _, run in ipairs(hints[n] or {}) do call('RPUSH', key_queue(session), run) end
  end
  place(s, lane, ws, class, score, priority)
  answer[#answer + 1] = s.state
  answer[#answer + 1] = s.state == 'parked' and s.heard and s.worker or ''
end
return answer
