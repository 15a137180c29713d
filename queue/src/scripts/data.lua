-- Read jobs that are kept apart from their lists, bounded by bytes (at least one).
-- KEYS[1] the key of the first job, then those of the others
-- ARGV[1] at most this many bytes in all  [2] larger ones are not read, only measured
-- Returns {seconds, microseconds, job...}, of the first keys: a string, nothing when there is none, its size when
--       that is too large, {type} when it is no string
local now = redis.call('TIME')
local budget, largest = tonumber(ARGV[1]), tonumber(ARGV[2])
local answer = { now[1], now[2] }
for at, key in ipairs(KEYS) do
  local size = redis.pcall('STRLEN', key)
  if type(size) == 'table' then
    answer[at + 2] = { redis.call('TYPE', key).ok }
  elseif size > largest then
    answer[at + 2] = size
  else
    if at > 1 and budget < size then return answer end
    answer[at + 2], budget = redis.call('GET', key), budget - size
  end
end
return answer
