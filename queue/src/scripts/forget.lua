-- Look at a fenced lane: tell what it holds, or forget it once its lists have stayed empty: a client that Redis has not
-- missed yet stays first in line for a blocked list, so one more job may be moved to the dead.
-- KEYS[1] record  [2] reaping
-- ARGV[1] lane  [2] how long its lists must have been empty, ms
-- Returns 1 forgotten | 0 empty, but not for long enough, or not fenced | {its record, list that is not empty...}
--       | reason why its record cannot be read
local lease = redis.pcall('HEXISTS', KEYS[1], 'token')
if type(lease) == 'table' then return lease.err end
if lease == 1 then return 0 end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return 1
end
local now = redis.call('TIME')
-- The first write, never refused: see cycle.lua.
redis.call('HDEL', KEYS[1], '')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local full = {}
-- Lists of lanes are not declared, because their names are read here. They are all of this shard's slot.
for list in string.gmatch(redis.call('HGET', KEYS[1], 'keys') or '', '[^\n]+') do
  -- One that cannot be read is not known to be empty.
  if redis.pcall('LLEN', list) ~= 0 then full[#full + 1] = list end
end
if #full > 0 then
  redis.call('HDEL', KEYS[1], 'forget')
  return { redis.call('HGETALL', KEYS[1]), unpack(full) }
end
-- Said once, so that it comes nearer; what is moved out of a list takes it back: see move.lua.
local due = tonumber(redis.call('HGET', KEYS[1], 'forget') or ms + ARGV[2])
if ms < due and redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  redis.call('HSET', KEYS[1], 'forget', due)
  -- Behind all that may hold jobs.
  redis.call('ZADD', KEYS[2], due, ARGV[1])
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
