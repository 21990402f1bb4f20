-- purpose: when a worker last said that it serves a host's lane
-- keys: global
-- each lane: lane
-- repeatable: yes, it only reads
-- over maxmemory: yes
-- returns: OK, then per lane: milliseconds since, or -1

local answer = {'OK'}
for lane in each_lane() do
  local seen = tonumber(call('ZSCORE', key_served(), lane) or nil)
  answer[#answer + 1] = seen and number(math.max(0, now() - seen)) or '-1'
end
return answer
