-- purpose: idle or ready -> held; held -> reasons added (an end that has passed makes room for the new ones); parked ->
--   held where it stands, its owner is not called
-- each hold: session reasons until_in_ms:int?
-- repeatable: yes
-- over maxmemory: yes
-- returns: OK, then per hold: state
-- uses: places

local function join(one, other)
  local seen, all = {}, {}
  for reason in string.gmatch((one or '') .. ',' .. other, '[^,]+') do
    if not seen[reason] then
      seen[reason] = true
      all[#all + 1] = reason
    end
  end
  return table.concat(all, ',')
end

-- The earlier end: promotion looks into SQL then and holds again with what is left.
local function with(s, reasons, until_in_ms)
  local stands = tonumber(s['until'])
  if stands and stands <= now() then return reasons, until_in_ms end
  local given = until_in_ms and now() + until_in_ms
  local first = stands and given and math.min(stands, given) or stands or given
  return join(s.reasons, reasons), first and first - now()
end

local answer = {'OK'}
for session, reasons, until_in_ms in each_hold() do
  local s = load_session(session)
  if s.state == 'parked' then
    hold_parked(s, with(s, reasons, until_in_ms))
  elseif s.state ~= 'leased' then
    to_held(s, with(s, reasons, until_in_ms))
  end
  answer[#answer + 1] = s.state
end
return answer
