-- Calls that survive garbage: a value of the wrong kind is set aside under poison:<n> (at most 100 of them, for a
-- week) and the key counts as empty. Whoever heals the key (keys.py) fills it again.

local UNREADABLE = {'WRONGTYPE', 'not an integer', 'not a valid float', 'not a float', 'value is out of range'}

local function set_aside(key)
  local n = redis.pcall('HINCRBY', key_poison(), 'next', 1)
  if type(n) == 'table' then -- garbage even here
    redis.call('RENAME', key_poison(), key_poisoned(0))
    redis.call('EXPIRE', key_poisoned(0), 604800)
    n = redis.call('HINCRBY', key_poison(), 'next', 1)
    redis.call('HSET', key_poison(), 0, key_poison())
    if key == key_poison() then return end
  end
  n = n % 100
  if redis.call('EXISTS', key) == 1 then
    redis.call('RENAME', key, key_poisoned(n))
    redis.call('EXPIRE', key_poisoned(n), 604800)
    redis.call('HSET', key_poison(), n, key)
  end
end

local function call(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  local words = tostring(answer.err)
  for _, sign in ipairs(UNREADABLE) do
    if string.find(words, sign, 1, true) then
      set_aside(key)
      return redis.call(command, key, ...)
    end
  end
  return error(words)
end

-- Numbers go out as text: Lua would print large ones with an exponent.
local function number(value)
  if value == math.floor(value) then return string.format('%.0f', value) end
  return string.format('%.6f', value)
end

local clock

-- Milliseconds by the server's clock, one reading per call of a script.
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  return clock
end
