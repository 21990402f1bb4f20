-- Into and out of the places a session can stand in. The hash is always written last.
-- uses: session ring wake slots holds

local function next_score() return number(call('INCR', key_seq())) end

local function index_ready(s)
  call('ZADD', key_ready(s.lane, s.class, s.ws), rank_of(s), s.id)
  call('ZADD', key_since(s.lane, s.class), 'NX', number(now()), s.id)
  enter_ring(s.lane, s.class, s.ws)
end

local function unindex_ready(s)
  local ready = key_ready(s.lane, s.class, s.ws)
  call('ZREM', ready, s.id)
  call('ZREM', key_since(s.lane, s.class), s.id)
  if call('EXISTS', ready) == 0 then leave_ring(s.lane, s.class, s.ws) end
end

-- No longer for one host alone.
local function unbind(s)
  if not host_of(s.lane) then return end
  call('ZREM', key_affinity(), s.id)
  s.lane = string.match(s.lane, '^[^@]+')
end

-- Out of wherever it stands; the caller puts it somewhere else and saves it.
local function leave(s)
  end_hold(s)
  if s.state == 'ready' then
    unindex_ready(s)
    unbind(s)
  elseif s.state == 'leased' or s.state == 'parked' then
    call('ZREM', key_leases(), s.id)
    call('SREM', key_owned(s.worker), s.id)
    if s.state == 'leased' then leave_slot(s) else call('ZREM', key_called(s.worker), s.id) end
    s.worker, s.token, s.request, s.counter = nil, nil, nil, nil
  end
end

-- Ready in `class` at `score` (nil: at the end), for all workers of its lane or for those of `host`.
local function to_ready(s, class, score, host)
  leave(s)
  if host then s.lane = s.lane .. '@' .. host end
  s.state, s.class, s.score, s.heard = 'ready', class, score or next_score(), nil
  index_ready(s)
  save_session(s)
  wake(s.lane)
  return 'ready'
end

local function to_held(s, reasons, until_in_ms)
  leave(s)
  s.state, s.heard, s.score = 'held', nil, nil
  set_hold(s, reasons, until_in_ms)
  save_session(s)
  return 'held'
end

local function to_idle(s)
  leave(s)
  forget_session(s)
  return 'idle'
end

-- Parked and held: it stays its owner's, who is not called before the hold has ended.
local function hold_parked(s, reasons, until_in_ms)
  call('ZREM', key_called(s.worker), s.id)
  s.heard = nil
  set_hold(s, reasons, until_in_ms)
  save_session(s)
end

-- A parked session has work: its owner finds it in its own set. While it is held there is nothing to do.
local function call_owner(s, class)
  if s.reasons then return end
  s.heard = highest(s.heard, class)
  call('ZADD', key_called(s.worker), 'NX', next_score(), s.id)
  save_session(s)
end
