-- What one look at the queues shows; reads only, bounded by the number of queues.
-- KEYS[1] counters  [2] dead letters  [3] completed  [4] registry  [5] reaping  [6] paused
--         then three a queue: queue, suspects, delayed
-- ARGV[1] consuming side: R or L  [2] at most this many bytes of the oldest entry
-- Returns {seconds, microseconds, counters, dead, completed, lanes, reaping, paused,
--       {a queue: waiting, suspects, delayed, due, oldest entry}}
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local queues = {}
for at = 7, #KEYS, 3 do
  local oldest = redis.call('LINDEX', KEYS[at], ARGV[1] == 'R' and -1 or 0)
  queues[#queues + 1] = {
    redis.call('LLEN', KEYS[at]), redis.call('LLEN', KEYS[at + 1]), redis.call('ZCARD', KEYS[at + 2]),
    redis.call('ZCOUNT', KEYS[at + 2], '-inf', ms), oldest and string.sub(oldest, 1, tonumber(ARGV[2])) or '',
  }
end
return {
  now[1], now[2], redis.call('HGETALL', KEYS[1]), redis.call('LLEN', KEYS[2]), redis.call('LLEN', KEYS[3]),
  redis.call('ZCARD', KEYS[4]), redis.call('ZCARD', KEYS[5]), redis.call('EXISTS', KEYS[6]), queues,
}
