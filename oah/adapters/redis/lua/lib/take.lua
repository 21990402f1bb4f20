-- How a claim takes one session after the other. Uses the arguments of claim.lua.
-- uses: places owning

local function take_new(s)
  s.request, s.counter = request, number(counter)
  own(s, worker, request, now() + lease_ms, false)
  save_session(s)
end

-- It keeps its own token; the class is the one it was called for.
local function take_parked(s)
  call('ZREM', key_called(worker), s.id)
  end_hold(s)
  s.request, s.counter = request, number(counter)
  s.class, s.heard = s.heard or s.class or 'interactive', nil
  own(s, worker, s.token, now() + lease_ms, false)
  save_session(s)
end

local limits = {}

local function limits_of(ws)
  if not limits[ws] then limits[ws] = call('HMGET', key_ws(ws), 'weight', 'cap') end
  return tonumber(limits[ws][1] or nil) or 1, tonumber(limits[ws][2] or nil)
end

-- The oldest session of the workspace that is next in the ring; false when it was a stray or the workspace is capped.
local function take_next(lane, class, ws, at)
  local weight, cap = limits_of(ws)
  if class ~= 'resume' and at_cap(ws, cap) then
    cap_out(lane, class, ws)
    return false
  end
  local sid = call('ZPOPMIN', key_ready(lane, class, ws))[1]
  if not sid then
    leave_ring(lane, class, ws)
    return false
  end
  call('ZREM', key_since(lane, class), sid)
  local s = load_session(sid)
  if s.state ~= 'ready' or s.lane ~= lane or s.class ~= class or s.ws ~= ws then
    if call('EXISTS', key_ready(lane, class, ws)) == 0 then leave_ring(lane, class, ws) end
    return false
  end
  unbind(s)
  take_new(s)
  advance_ring(lane, class, ws, at, weight)
  return s
end

-- Bounded: strays (entries that no hash confirms) and capped workspaces cost a look each. True: there is nothing left
-- that may be taken.
local function take_ready(taken, lane, class, limit)
  local looks = 64
  while #taken < limit and looks > 0 do
    local first = call('ZRANGE', key_ring(lane, class), 0, 0, 'WITHSCORES')
    if not first[1] then return true end
    if class ~= 'resume' and full(lane) then
      wait_for_cap(lane)
      return true
    end
    local s = take_next(lane, class, first[1], tonumber(first[2]))
    if s then taken[#taken + 1] = s else looks = looks - 1 end
  end
end

local function taken_before()
  local taken = {}
  for _, sid in ipairs(call('SMEMBERS', key_owned(worker))) do
    local s = load_session(sid)
    if s.state == 'leased' and s.worker == worker and s.request == request then taken[#taken + 1] = s end
  end
  return taken
end
