-- Cancel a job: only if it is still what it was when that was decided. The queue is not searched: a worker that meets
-- the id drops it, and its data lapse from then on.
-- KEYS[1] data  [2] index of the status it had  [3] index of cancelled jobs
-- ARGV[1] id  [2] bytes that were read  [3] bytes instead  [4] ms of the change  [5] channel on which changes are told
-- Returns 1 cancelled (also by an earlier call whose reply was lost) | 0 changed since | {key, reason} unfit
local index = redis.call('TYPE', KEYS[3]).ok
if index ~= 'none' and index ~= 'zset' then return { KEYS[3], 'WRONGTYPE holds a ' .. index .. ', must be a zset' } end
local found = redis.call('GET', KEYS[1])
if found == ARGV[3] then return 1 end
if found ~= ARGV[2] then return 0 end
-- The first write, never refused, also by a full Redis: see cycle.lua.
redis.pcall('ZREM', KEYS[2], '')
redis.call('SET', KEYS[1], ARGV[3], 'KEEPTTL')
-- What follows only tells of it: never a reason to stop.
redis.pcall('ZREM', KEYS[2], ARGV[1])
redis.pcall('ZADD', KEYS[3], ARGV[4], ARGV[1])
-- It lives until its id is met, and a while longer: so does the list of it.
redis.pcall('PERSIST', KEYS[3])
redis.pcall('PUBLISH', ARGV[5], ARGV[1] .. ' cancelled')
return 1
