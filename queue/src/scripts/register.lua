-- Open a lane: its record, its heartbeat and its place in the registry, before it can fetch anything.
-- KEYS[1] record  [2] heartbeat  [3] registry  [4] a key to try commands on, of this lane  [5...] the lane's lists, then
--         whatever its cycles will touch: a key that the user may not touch is refused here, before a job is taken
-- ARGV[1] lane  [2] token  [3] ttl ms  [4] number of lists  [5...] further fields of the record, name and value
-- Returns {1, seconds, microseconds} | {0} when any trace of this id exists (an id is never used twice)
--       | {"DENIED", command} when the user may not do all that the scripts do
local token = redis.call('HGET', KEYS[1], 'token')
if token ~= ARGV[2] then
  for at = 1, 4 + tonumber(ARGV[4]) do
    if at ~= 3 and redis.call('EXISTS', KEYS[at]) == 1 then return { 0 } end
  end
  if redis.call('ZSCORE', KEYS[3], ARGV[1]) then return { 0 } end
end
local now = redis.call('TIME')
-- The first write, never refused: see cycle.lua.
redis.call('HDEL', KEYS[1], '')
-- Who may take a job out of a list but not put it into another would lose it, who may do only the latter would
-- multiply it. Redis does not undo what a script has done before it was refused, so every command is tried first.
local tries = {
  { 'DEL' }, { 'TYPE' }, { 'EXISTS' },
  { 'RPUSH', 'a' }, { 'LPUSH', 'b' }, { 'LLEN' }, { 'LINDEX', 0 }, { 'LRANGE', 0, -1 }, { 'LPOS', 'a' }, { 'LSET', 0, 'c' },
  { 'LREM', 1, 'c' }, { 'LTRIM', 0, -1 }, { 'RPOP' }, { 'LPOP' }, { 'UNLINK' },
  { 'ZADD', 1, 'a' }, { 'ZSCORE', 'a' }, { 'ZCARD' }, { 'ZRANGE', 0, -1 }, { 'ZRANGEBYSCORE', 0, 1 }, { 'ZREMRANGEBYSCORE', 0, 0 }, { 'ZREMRANGEBYRANK', 1, 1 },
  { 'ZREM', 'a' }, { 'DEL' },
  { 'SADD', 'a' }, { 'DEL' },
  { 'HSET', 'a', '1' }, { 'HINCRBY', 'a', 1 }, { 'HGETALL' }, { 'HMGET', 'a' }, { 'HGET', 'a' }, { 'HEXISTS', 'a' }, { 'HDEL', 'a' }, { 'DEL' },
  { 'SET', 'a', 'PX', 1000 }, { 'GET' }, { 'STRLEN' }, { 'PEXPIRE', 1000 }, { 'PTTL' }, { 'PERSIST' }, { 'DEL' },
}
for _, try in ipairs(tries) do
  local answer = redis.pcall(try[1], KEYS[4], unpack(try, 2))
  if type(answer) == 'table' and answer.err then
    redis.pcall('DEL', KEYS[4])
    return { 'DENIED', try[1] }
  end
end
redis.call('HSET', KEYS[1], 'token', ARGV[2], 'seq', '0', unpack(ARGV, 5))
redis.call('SET', KEYS[2], '', 'PX', ARGV[3])
redis.call('ZADD', KEYS[3], now[1] * 1000 + math.floor(now[2] / 1000) + tonumber(ARGV[3]), ARGV[1])
return { 1, now[1], now[2] }
