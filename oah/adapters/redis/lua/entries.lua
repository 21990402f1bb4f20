-- purpose: a stretch of a ready set, and whether each session's own record agrees, for repair and people
-- args: lane class ws:text? first:int count:int
-- repeatable: yes, it only reads
-- over maxmemory: yes
-- returns: OK, then per entry: session, 'well', 'torn' (another index lacks it) or 'stray'
-- uses: fits

local key = ws and key_ready(lane, class, ws) or key_since(lane, class)
local answer = {'OK'}
for _, sid in ipairs(call('ZRANGE', key, first, first + count - 1)) do
  local s = load_session(sid)
  answer[#answer + 1] = sid
  answer[#answer + 1] = not confirms(s, lane, class, ws) and 'stray' or whole(s) and 'well' or 'torn'
end
return answer
