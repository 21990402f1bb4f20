-- purpose: all reports that have not expired, and the incarnations whose report has
-- keys: global
-- repeatable: yes, it only reads
-- over maxmemory: yes
-- returns: OK, then per incarnation: worker, report ('' if it has expired), when it was seen by the server's clock

local answer = {'OK'}
for _, worker in ipairs(call('ZRANGE', key_workers(), 0, -1)) do
  local found = call('HMGET', key_worker(worker), 'report', 'seen')
  answer[#answer + 1] = worker
  answer[#answer + 1] = found[1] or ''
  answer[#answer + 1] = found[2] or ''
end
return answer
