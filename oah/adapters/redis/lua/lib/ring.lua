-- The ring of one lane and class: workspaces that have ready sessions, by virtual time (weighted fairness). A workspace
-- that comes back enters at max(own, smallest) virtual time, so being away earns nothing and costs nothing.

-- The host of a lane that only its workers look in; nil for every other.
local function host_of(lane) return string.match(lane, '@(.+)$') end

local function ring_field(lane, class) return lane .. ' ' .. class end

-- Rings a workspace is known to stand in, by this call.
local standing = {}

local function enter_ring(lane, class, ws)
  local ring = key_ring(lane, class)
  if standing[ring .. ws] then return end
  standing[ring .. ws] = true
  if call('ZSCORE', ring, ws) then return end
  call('SADD', key_lanes(), lane)
  if class ~= 'resume' and call('SISMEMBER', key_capped(), ws) == 1 then
    call('SADD', key_capped_rings(ws), ring_field(lane, class))
    standing[ring .. ws] = nil
    return
  end
  local own = tonumber(call('HGET', key_ws(ws), ring_field(lane, class)) or 0) or 0
  local first = call('ZRANGE', ring, 0, 0, 'WITHSCORES')
  local floor = tonumber(first[2] or call('HGET', key_rings(), ring_field(lane, class)) or 0) or 0
  call('ZADD', ring, number(math.max(own, floor)), ws)
end

-- Leave it, remembering where; `at` is the virtual time to remember (nil: where it stands).
local function leave_ring(lane, class, ws, at)
  local ring = key_ring(lane, class)
  standing[ring .. ws] = nil
  local stands = at or tonumber(call('ZSCORE', ring, ws) or nil)
  if not stands then return end
  call('ZREM', ring, ws)
  if host_of(lane) then return end -- hosts come and go: nothing of them stays
  call('HSET', key_ws(ws), ring_field(lane, class), number(stands))
  if call('EXISTS', ring) == 0 then call('HSET', key_rings(), ring_field(lane, class), number(stands)) end
end

-- A session of `ws` was taken at virtual time `at`.
local function advance_ring(lane, class, ws, at, weight)
  local step = at + 1 / math.max(weight, 0.001)
  if call('EXISTS', key_ready(lane, class, ws)) == 1 then
    call('ZADD', key_ring(lane, class), number(step), ws)
  else
    leave_ring(lane, class, ws, step)
  end
end
