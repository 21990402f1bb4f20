-- Caps by membership: the set of sessions that hold a slot, of a workspace (`ws:<id>`), and of its profile and all. A
-- workspace at its cap leaves its rings and comes back when one of them ends; one that is paused has a cap of 0.
-- uses: ring wake caps

-- Whether any workspace is capped, looked up once a call.
local any_capped

local function groups_of(s) return 'ws:' .. s.ws, profile_of(s.lane), 'all' end

local function enter_slot(s)
  for _, group in ipairs({groups_of(s)}) do call('SADD', key_active(group), s.id) end
end

local function at_cap(ws, cap)
  local group = 'ws:' .. ws
  return cap and (cap == 0 or call('SCARD', key_active(group)) >= cap)
end

local function cap_of(ws)
  return tonumber(call('HGET', key_ws(ws), 'cap') or nil)
end

-- Out of this ring until a slot is free again.
local function cap_out(lane, class, ws)
  leave_ring(lane, class, ws)
  any_capped = true
  call('SADD', key_capped(), ws)
  call('SADD', key_capped_rings(ws), ring_field(lane, class))
end

-- Back into the rings, if the cap allows.
local function uncap(ws)
  if any_capped == nil then any_capped = call('EXISTS', key_capped()) == 1 end
  if not any_capped or call('SISMEMBER', key_capped(), ws) == 0 or at_cap(ws, cap_of(ws)) then return end
  local rings = call('SMEMBERS', key_capped_rings(ws))
  call('DEL', key_capped_rings(ws))
  call('SREM', key_capped(), ws)
  for _, field in ipairs(rings) do
    local lane, class = string.match(field, '^(%S+) (%S+)$')
    if lane and call('EXISTS', key_ready(lane, class, ws)) == 1 then
      enter_ring(lane, class, ws)
      wake(lane)
    end
  end
end

local function leave_group(group, sid)
  local left = call('SREM', key_active(group), sid)
  local ws = string.match(group, '^ws:(.+)')
  if ws and left == 1 then uncap(ws) end
  return left
end

local function leave_slot(s)
  for _, group in ipairs({groups_of(s)}) do leave_group(group, s.id) end
  wake_unfull()
end
