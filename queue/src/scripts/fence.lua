-- Take a lane's lease away: the only way to lose it. From here on nothing its process says is accepted.
-- KEYS[1] record  [2] heartbeat  [3] registry  [4] reaping
-- ARGV[1] lane  [2] "expired" (only if the heartbeat is gone) or "certain" (its process is known to be dead)
--     [3] cause
-- Returns FENCED | ALIVE (has a heartbeat) | GONE (no such lane)
-- Who was told to stop and did not come to the end of it (Redis was away, its time was up) was shut down, unless somebody
-- knows better.
local cause, unknown = ARGV[3], { heartbeat = true, restarted = true, crashed = true }
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[3], ARGV[1])
  return 'GONE'
end
if unknown[cause] and redis.call('HEXISTS', KEYS[1], 'stopping') == 1 then cause = 'shutdown' end
if redis.call('HEXISTS', KEYS[1], 'token') == 0 then
  redis.call('ZREM', KEYS[3], ARGV[1])
  -- Who saw it die knows the cause better than its successor, or a heartbeat that was gone.
  if ARGV[2] == 'certain' and ARGV[3] ~= 'restarted' then redis.call('HSET', KEYS[1], 'fenced', cause) end
  return 'FENCED'
end
-- A heartbeat without a TTL would protect its lane for ever: it counts as absent.
if ARGV[2] == 'expired' and redis.call('PTTL', KEYS[2]) > 0 then return 'ALIVE' end
local now = redis.call('TIME')
redis.call('HDEL', KEYS[1], 'token')
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[1], 'fenced', cause)
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZADD', KEYS[4], now[1] * 1000 + math.floor(now[2] / 1000), ARGV[1])
return 'FENCED'
