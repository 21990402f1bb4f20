-- Caps of all (`all`), of a profile (`profile:<name>`) and of a pool (`pool:<name>`, 0: it is paused), by membership:
-- the set of sessions that hold a slot. Of a lane that is at one of them nothing is taken; a session that ends wakes it.
-- uses: wake

local caps

-- Whether any lane was found full, looked up once a call.
local any_full

local function profile_of(lane) return 'profile:' .. (string.match(lane, '/([^@]+)') or '') end

local function pool_of(lane) return 'pool:' .. (string.match(lane, '^[^/]+') or '') end

local function reached(group)
  if not caps then
    caps = {}
    local read = call('HGETALL', key_caps())
    for n = 1, #read, 2 do caps[read[n]] = tonumber(read[n + 1]) end
  end
  local cap = caps[group]
  return cap and (cap == 0 or call('SCARD', key_active(group)) >= cap)
end

-- Whether nothing of this lane may be taken now.
local function full(lane) return reached('all') or reached(profile_of(lane)) or reached(pool_of(lane)) end

-- It is woken for when it is full no more.
local function wait_for_cap(lane)
  any_full = true
  call('SADD', key_full(), lane)
end

local function wake_unfull()
  if any_full == false then return end
  any_full = false
  for _, lane in ipairs(call('SMEMBERS', key_full())) do
    if full(lane) then
      any_full = true
    else
      call('SREM', key_full(), lane)
      wake(lane)
    end
  end
end
