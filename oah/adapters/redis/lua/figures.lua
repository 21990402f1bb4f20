-- purpose: depth and age of the ready sets by lane and class, and what is leased, due and held
-- epoch: none
-- repeatable: yes, it only reads
-- over maxmemory: yes
-- returns: OK, leased, due, held, then per lane and class: lane, class, how many are ready, how many of these the caps
--   keep out now, age of the oldest in ms or -1, age of the oldest that may be taken in ms or -1
-- uses: session ring caps

local LOOKED_AT = 200 -- workspaces of a ring, next ones first
local CLASSES = {'resume', 'interactive', 'subagent', 'background', 'suspect'}
local given = {}
do
  local read = call('HGETALL', key_caps())
  for n = 1, #read, 2 do given[read[n]] = tonumber(read[n + 1]) end
end

-- Group → how many more of it may hold a slot.
local room = {}

local function room_of(group, cap)
  if not room[group] then
    room[group] = not cap and math.huge or cap == 0 and 0 or math.max(0, cap - call('SCARD', key_active(group)))
  end
  return room[group]
end

-- Of the sessions of these workspaces, those beyond the room of their workspace.
local function over_cap(lane, class, workspaces)
  local out = 0
  for _, ws in ipairs(workspaces) do
    local cap = tonumber(call('HGET', key_ws(ws), 'cap') or nil)
    if cap then
      local waiting, left = call('ZCARD', key_ready(lane, class, ws)), room_of('ws:' .. ws, cap)
      out = out + math.max(0, waiting - left)
      room['ws:' .. ws] = math.max(0, left - waiting)
    end
  end
  return out
end

local capped = {} -- ring → workspaces out of it
for _, ws in ipairs(call('SMEMBERS', key_capped())) do
  for _, field in ipairs(call('SMEMBERS', key_capped_rings(ws))) do
    capped[field] = capped[field] or {}
    table.insert(capped[field], ws)
  end
end

local function kept_out(lane, class, count)
  local out = over_cap(lane, class, call('ZRANGE', key_ring(lane, class), 0, LOOKED_AT - 1))
  out = math.min(count, out + over_cap(lane, class, capped[ring_field(lane, class)] or {}))
  local groups, free = {'all', profile_of(lane), pool_of(lane)}, count - out
  for _, group in ipairs(groups) do free = math.min(free, room_of(group, given[group])) end
  for _, group in ipairs(groups) do room[group] = room[group] - free end
  return count - free
end

-- Bounded: behind many that are kept out, the next may be older than it seems.
local function oldest_free(lane, class, out)
  local entries = call('ZRANGE', key_since(lane, class), 0, out > 0 and 63 or 0, 'WITHSCORES')
  for n = 1, #entries, 2 do
    local ws = out > 0 and call('HGET', key_session(entries[n]), 'ws') or ''
    if (room['ws:' .. ws] or 1) > 0 then return number(math.max(0, now() - entries[n + 1])) end
  end
  return '-1'
end

local answer = {'OK', number(call('ZCARD', key_leases())), number(call('ZCARD', key_due())), number(call('ZCARD', key_held()))}
for _, class in ipairs(CLASSES) do
  for _, lane in ipairs(call('SMEMBERS', key_lanes())) do
    local count = call('ZCARD', key_since(lane, class))
    local out = class == 'resume' and 0 or kept_out(lane, class, count)
    local first = call('ZRANGE', key_since(lane, class), 0, 0, 'WITHSCORES')
    for _, word in ipairs({lane, class, number(count), number(out)}) do answer[#answer + 1] = word end
    answer[#answer + 1] = first[2] and number(math.max(0, now() - first[2])) or '-1'
    answer[#answer + 1] = out < count and oldest_free(lane, class, out) or '-1'
  end
end
return answer
