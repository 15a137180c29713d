-- Close a lane that has drained. Refused while it holds anything: then it is left to the reaper.
-- KEYS[1] record  [2] heartbeat  [3] registry  [4] reaping  [5...] the lane's lists
-- ARGV[1] lane  [2] token  [3] "1" when a parked fetch was cut off: it may still deliver, so a reaper keeps looking
-- Returns 1 closed | 0 left to the reaper, or lost already
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[2] then return 0 end
local empty = ARGV[3] ~= '1'
for i = 5, #KEYS do
  if redis.call('LLEN', KEYS[i]) > 0 then empty = false end
end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('DEL', KEYS[2])
if empty then
  redis.call('DEL', KEYS[1])
  return 1
end
local now = redis.call('TIME')
redis.call('HDEL', KEYS[1], 'token')
redis.call('HSET', KEYS[1], 'fenced', 'shutdown')
redis.call('ZADD', KEYS[4], now[1] * 1000 + math.floor(now[2] / 1000), ARGV[1])
return 0
