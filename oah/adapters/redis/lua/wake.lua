-- purpose: one wake token per lane, at most 64 in each list
-- epoch: none
-- each lane: lane
-- repeatable: yes, tokens are hints
-- over maxmemory: yes
-- returns: OK
-- uses: wake

for lane in each_lane() do wake(lane) end
return {'OK'}
