-- Read a page of a sorted set by score, bounded by count and by bytes (at least one entry).
-- KEYS[1] the sorted set
-- ARGV[1] "up" or "down"  [2] the score to begin with  [3] the last one; both may be infinite, both are part of it
--     [4] entries to skip first  [5] at most this many  [6] at most this many bytes
-- Returns {seconds, microseconds, length, entry, score, entry, score...}
local now = redis.call('TIME')
local command = ARGV[1] == 'up' and 'ZRANGEBYSCORE' or 'ZREVRANGEBYSCORE'
local at, budget = tonumber(ARGV[4]), tonumber(ARGV[6])
local most = at + tonumber(ARGV[5])
local answer = { now[1], now[2], redis.call('ZCARD', KEYS[1]) }
while at < most do
  local entries = redis.call(command, KEYS[1], ARGV[2], ARGV[3], 'WITHSCORES', 'LIMIT', at, 10)
  for i = 1, #entries, 2 do
    if at >= most or (budget < #entries[i] and #answer > 3) then return answer end
    answer[#answer + 1], answer[#answer + 2] = entries[i], entries[i + 1]
    budget, at = budget - #entries[i], at + 1
  end
  if #entries < 20 then return answer end
end
return answer
