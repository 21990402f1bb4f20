-- A session's hash: read whole, written last, only what changed.

local FIELDS = {'state', 'lane', 'ws', 'class', 'score', 'worker', 'token', 'request', 'counter', 'heard', 'until', 'reasons',
  'priority'}
local RANK = {resume = 1, interactive = 2, subagent = 3, background = 4, suspect = 5}

-- Whether what was read can be a session in that state.
local function sound(s)
  if s.class and not RANK[s.class] or s.heard and not RANK[s.heard] then return false end
  if s.state == 'held' then return true end
  if not s.lane or not s.ws then return false end
  if s.state == 'ready' then return s.class and tonumber(s.score) and tonumber(s.priority or 0) end
  return (s.state == 'leased' or s.state == 'parked') and s.worker and s.token
end

local function load_session(sid)
  local values = call('HMGET', key_session(sid), unpack(FIELDS))
  local s = {id = sid, old = {}}
  local any = false
  for n, field in ipairs(FIELDS) do
    if values[n] then s[field], s.old[field], any = values[n], values[n], true end
  end
  if any and not sound(s) then
    set_aside(key_session(sid))
    s = {id = sid, old = {}}
  end
  if not s.state then s.state = 'idle' end
  return s
end

local function save_session(s)
  local changed, gone = {}, {}
  for _, field in ipairs(FIELDS) do
    local value = s[field]
    if value == nil then
      if s.old[field] then gone[#gone + 1] = field end
    elseif value ~= s.old[field] then
      changed[#changed + 1] = field
      changed[#changed + 1] = value
    end
    s.old[field] = value
  end
  if #gone > 0 then call('HDEL', key_session(s.id), unpack(gone)) end
  if #changed > 0 then call('HSET', key_session(s.id), unpack(changed)) end
end

local function forget_session(s)
  call('DEL', key_queue(s.id), key_session(s.id))
  s.state, s.old = 'idle', {}
end

local function set_priority(s, priority) s.priority = priority ~= 0 and number(priority) or nil end

-- Its score among those of its class and workspace: by priority, then by age. A double carries 100 * 1e12 and the counter.
local function rank_of(s)
  return s.priority and number(tonumber(s.score) - tonumber(s.priority) * 1e12) or s.score
end

-- The class of a session in which both wait; a suspect is never raised.
local function highest(one, other)
  if not one or not other then return one or other end
  if one == 'suspect' or other == 'suspect' then return 'suspect' end
  return RANK[one] <= RANK[other] and one or other
end
