-- purpose: depth and age of the ready sets by lane and class, and what is leased, due and held
-- epoch: none
-- repeatable: yes, it only reads
-- over maxmemory: yes
-- returns: OK, leased, due, held, then per lane and class: lane, class, how many are ready, how many of these a cap
--   keeps out, age of the oldest in ms or -1, age of the oldest that nothing keeps out in ms or -1
-- uses: session

-- Lane and class → sessions kept out; also the workspaces that are.
local kept, capped = {}, {}
for _, ws in ipairs(call('SMEMBERS', key_capped())) do
  capped[ws] = true
  for _, field in ipairs(call('SMEMBERS', key_capped_rings(ws))) do
    local lane, class = string.match(field, '^(%S+) (%S+)$')
    if lane then kept[field] = (kept[field] or 0) + call('ZCARD', key_ready(lane, class, ws)) end
  end
end

-- Bounded: behind many that are kept out, the next may be older than it seems.
local function oldest_free(lane, class)
  local entries = call('ZRANGE', key_since(lane, class), 0, kept[lane .. ' ' .. class] and 63 or 0, 'WITHSCORES')
  for n = 1, #entries, 2 do
    if not next(capped) or not capped[call('HGET', key_session(entries[n]), 'ws') or ''] then
      return number(math.max(0, now() - entries[n + 1]))
    end
  end
  return '-1'
end

local answer = {'OK', number(call('ZCARD', key_leases())), number(call('ZCARD', key_due())), number(call('ZCARD', key_held()))}
for _, lane in ipairs(call('SMEMBERS', key_lanes())) do
  for class in pairs(RANK) do
    local count = call('ZCARD', key_since(lane, class))
    local first = call('ZRANGE', key_since(lane, class), 0, 0, 'WITHSCORES')
    answer[#answer + 1] = lane
    answer[#answer + 1] = class
    answer[#answer + 1] = number(count)
    answer[#answer + 1] = number(math.min(count, kept[lane .. ' ' .. class] or 0))
    answer[#answer + 1] = first[2] and number(math.max(0, now() - first[2])) or '-1'
    answer[#answer + 1] = class == 'resume' and answer[#answer] or oldest_free(lane, class)
  end
end
return answer
