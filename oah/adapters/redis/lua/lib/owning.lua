-- Leases: the deadline, the owner's set, the slot. Only claim and restore give one.
-- uses: places

local function own(s, worker, token, deadline, parked)
  call('ZADD', key_leases(), number(deadline), s.id)
  call('SADD', key_owned(worker), s.id)
  if parked then
    s.state = 'parked'
  else
    enter_slot(s)
    s.state = 'leased'
  end
  s.worker, s.token = worker, token
end

local function has_token(s, token)
  return (s.state == 'leased' or s.state == 'parked') and s.token == token
end

local function deadline_of(sid)
  return tonumber(call('ZSCORE', key_leases(), sid) or nil)
end

-- A lease without its deadline would never end: give it one that has passed.
local function mend_lease(sid)
  if not deadline_of(sid) then call('ZADD', key_leases(), number(now()), sid) end
end
