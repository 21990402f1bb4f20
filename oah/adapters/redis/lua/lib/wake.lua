-- Wake tokens: hints for the workers that block on a lane. Losing one costs time, never a run.

local function wake(lane)
  if call('LLEN', key_wake(lane)) < 64 then call('LPUSH', key_wake(lane), '1') end
end
