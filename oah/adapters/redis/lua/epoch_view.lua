-- purpose: what the epoch key says, and the clock
-- epoch: none
-- repeatable: yes, it only reads
-- over maxmemory: yes
-- returns: OK, id, state, run_id, schema, opened_at ('' where absent), now

local view = call('HMGET', key_epoch(), 'id', 'state', 'run_id', 'schema', 'opened_at')
local answer = {'OK'}
for n = 1, 5 do answer[#answer + 1] = view[n] or '' end
answer[#answer + 1] = number(now())
return answer
