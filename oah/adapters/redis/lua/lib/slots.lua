-- Caps by membership: the set of sessions of a workspace that hold a slot. A workspace at its cap leaves its rings and
-- comes back when one of them ends.
-- uses: ring wake

-- Whether any workspace is capped, looked up once a call.
local any_capped

local function enter_slot(ws, sid) call('SADD', key_active(ws), sid) end

local function at_cap(ws, cap)
  return cap and call('SCARD', key_active(ws)) >= cap
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

local function leave_slot(ws, sid)
  if call('SREM', key_active(ws), sid) == 1 then uncap(ws) end
end
