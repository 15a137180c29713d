-- Forget a fenced lane once its lists have stayed empty: a client that Redis has not missed yet stays first
-- in line for a blocked list, so one more job may be moved to the dead.
-- KEYS[1] record  [2] reaping  [3...] the lane's lists
-- ARGV[1] lane  [2] how long they must have been empty, ms
-- Returns 1 forgotten | 0 not yet
if redis.call('HEXISTS', KEYS[1], 'token') == 1 then return 0 end
local now = redis.call('TIME')
-- The first write, never refused: see cycle.lua.
redis.call('HDEL', KEYS[1], '')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
for i = 3, #KEYS do
  if redis.call('LLEN', KEYS[i]) > 0 then
    redis.call('ZADD', KEYS[2], ms, ARGV[1])
    return 0
  end
end
local since = redis.call('ZSCORE', KEYS[2], ARGV[1])
if since and ms - tonumber(since) < tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
