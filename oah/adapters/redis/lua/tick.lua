-- purpose: what time has brought: due runs, ended holds, age of the oldest ready; caps freed, wake tokens armed again
-- args: limit:int
-- repeatable: yes, entries stay until ensure, undue or hold takes them
-- over maxmemory: yes
-- returns: OK, next due in ms or -1, age of the oldest ready in ms or -1, how many due, how many wait for a host of which
--   it is to be asked, (run, session) each, (session, lane) each, ended holds
-- uses: places

call('HSET', key_epoch(), 'ticked_at', number(now()))

local soonest
local function consider(key)
  local later = call('ZRANGEBYSCORE', key, '(' .. number(now()), '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local at = tonumber(later[2] or nil)
  if at and (not soonest or at < soonest) then soonest = at end
end
consider(key_due())
consider(key_held())

-- Ready sessions whose token was lost, or given to a worker that froze, get a new one; empty lanes are forgotten.
local oldest
for _, lane in ipairs(call('SMEMBERS', key_lanes())) do
  local ready = false
  for class in pairs(RANK) do
    local first = call('ZRANGE', key_since(lane, class), 0, 0, 'WITHSCORES')
    if first[1] then
      ready = true
      if host_of(lane) then call('ZADD', key_affinity(), 'NX', number(now()), first[1]) end -- should it have been lost
      local since = tonumber(first[2])
      if not oldest or since < oldest then oldest = since end
    end
  end
  if not ready then
    call('SREM', key_lanes(), lane)
    if host_of(lane) then call('DEL', key_wake(lane)) end
  end
  if ready and call('EXISTS', key_wake(lane)) == 0 then wake(lane) end
end

for _, ws in ipairs(call('SRANDMEMBER', key_capped(), 64)) do uncap(ws) end

local due = call('ZRANGEBYSCORE', key_due(), '-inf', number(now()), 'LIMIT', 0, limit)
local answer = {'OK', soonest and number(soonest - now()) or '-1', oldest and number(now() - oldest) or '-1', number(#due), ''}
for _, run in ipairs(due) do
  answer[#answer + 1] = run
  answer[#answer + 1] = call('HGET', key_due_session(), run) or ''
end
local bound = call('ZRANGEBYSCORE', key_affinity(), '-inf', number(now()), 'LIMIT', 0, limit)
answer[5] = number(#bound)
for _, sid in ipairs(bound) do
  answer[#answer + 1] = sid
  answer[#answer + 1] = load_session(sid).lane or ''
end
for _, sid in ipairs(call('ZRANGEBYSCORE', key_held(), '-inf', number(now()), 'LIMIT', 0, limit)) do
  answer[#answer + 1] = sid
end
return answer
