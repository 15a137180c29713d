-- Take charge of a processing list that no lane claims (its record is lost, or another program made it).
-- KEYS[1] record  [2] heartbeat  [3] reaping
-- ARGV[1] lane  [2] its lists, as a record names them  [3] the same, one a line
-- Returns 1 it can be reaped now | 0 somebody claims it
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('PTTL', KEYS[2]) > 0 then return 0 end
local now = redis.call('TIME')
-- The first write, never refused: see cycle.lua.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'fenced', 'orphan', 'lists', ARGV[2], 'keys', ARGV[3])
redis.call('ZADD', KEYS[3], now[1] * 1000 + math.floor(now[2] / 1000), ARGV[1])
return 1
