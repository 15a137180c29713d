-- Open a lane: its record, its heartbeat and its place in the registry, before it can fetch anything.
-- KEYS[1] record  [2] heartbeat  [3] registry  [4...] the lane's lists
-- ARGV[1] lane  [2] token  [3] ttl ms  [4...] further fields of the record, name and value
-- Returns {1, seconds, microseconds} | {0} when any trace of this id exists (an id is never used twice)
local token = redis.call('HGET', KEYS[1], 'token')
if token ~= ARGV[2] then
  for _, key in ipairs(KEYS) do
    if key ~= KEYS[3] and redis.call('EXISTS', key) == 1 then return { 0 } end
  end
  if redis.call('ZSCORE', KEYS[3], ARGV[1]) then return { 0 } end
end
local now = redis.call('TIME')
-- The first write, never refused: see cycle.lua.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'token', ARGV[2], 'seq', '0', unpack(ARGV, 4))
redis.call('SET', KEYS[2], '', 'PX', ARGV[3])
redis.call('ZADD', KEYS[3], now[1] * 1000 + math.floor(now[2] / 1000) + tonumber(ARGV[3]), ARGV[1])
return { 1, now[1], now[2] }
