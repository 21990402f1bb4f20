-- purpose: take sessions: lease, owner, token and cap in the same step as the pop
-- args: worker request lease_ms:int counter:int want:int suspect_place:flag resumes_only:flag
-- each pick: lane class
-- repeatable: yes, a repeated request answers with what it took
-- over maxmemory: no
-- returns: OK | REBUILDING, more left, next due in ms or -1, ms since tick or -1, then per session: session, token,
--   1 if it was parked, class
-- uses: places owning take

local more = false

local function take_called(taken)
  local suspects = suspect_place and 1 or 0
  for _, sid in ipairs(call('ZRANGE', key_called(worker), 0, want + 255)) do
    if #taken >= want then
      more = true
      break
    end
    local s = load_session(sid)
    local deadline = deadline_of(sid)
    if s.state ~= 'parked' or s.worker ~= worker then
      call('ZREM', key_called(worker), sid)
    elseif deadline and deadline > now() and (s.heard ~= 'suspect' or suspects > 0)
      and (s.heard == 'resume' or not resumes_only and not at_cap(s.ws, cap_of(s.ws)) and not full(s.lane)) then
      if s.heard == 'suspect' then suspects = suspects - 1 end
      take_parked(s)
      taken[#taken + 1] = s
    end
  end
  return suspects
end

local function next_due()
  local soonest
  for _, key in ipairs({key_due(), key_held()}) do
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    local at = tonumber(first[2] or nil)
    if at and at < math.huge and (not soonest or at < soonest) then soonest = at end
  end
  return soonest and number(math.max(0, soonest - now())) or '-1'
end

if epoch_state ~= 'open' then return {'REBUILDING'} end
local taken = {}
if call('GET', key_claim(worker)) == request then
  taken = taken_before()
else
  local suspects = take_called(taken)
  for lane, class in each_pick() do
    local before = #taken
    local none = take_ready(taken, lane, class, class == 'suspect' and math.min(want, before + suspects) or want)
    if class == 'suspect' then
      suspects = suspects - (#taken - before)
    elseif not none and call('EXISTS', key_ring(lane, class)) == 1 then
      more = true
      wake(lane)
    end
  end
  if #taken > 0 then call('SET', key_claim(worker), request) end
end
local ticked_at = tonumber(call('HGET', key_epoch(), 'ticked_at') or nil)
local answer = {'OK', more and '1' or '0', next_due(), ticked_at and number(math.max(0, now() - ticked_at)) or '-1'}
for _, s in ipairs(taken) do
  answer[#answer + 1] = s.id
  answer[#answer + 1] = s.token
  answer[#answer + 1] = s.token == request and '0' or '1'
  answer[#answer + 1] = s.class
end
return answer
