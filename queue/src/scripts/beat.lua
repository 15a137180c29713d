-- Show a process to Sidekiq's eyes: what it is, what it runs, what it has done. Said twice it counts once.
-- KEYS[1] processes  [2] the process  [3] its work  [4] the same for readers before 6.4.2
--     [5] processed  [6] failed  [7] processed today  [8] failed today
-- ARGV[1] identity  [2] ttl s  [3] ttl of the days' counters s  [4] number of this call  [5] processed  [6] failed
--     [7] number of fields of the process; each: name, value; then the work, each: thread, value
-- Returns {seconds, microseconds}
local counted = redis.call('HGET', KEYS[2], 'seq') == ARGV[4]
-- The first write, never refused: see cycle.lua.
redis.call('UNLINK', KEYS[3], KEYS[4])
redis.call('SADD', KEYS[1], ARGV[1])
local at, fields = 8, tonumber(ARGV[7])
for _ = 1, fields do
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  at = at + 2
end
redis.call('HSET', KEYS[2], 'seq', ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[2])
for work = at, #ARGV - 1, 2 do
  redis.call('HSET', KEYS[3], ARGV[work], ARGV[work + 1])
  redis.call('HSET', KEYS[4], ARGV[work], ARGV[work + 1])
end
if at < #ARGV then
  redis.call('EXPIRE', KEYS[3], ARGV[2])
  redis.call('EXPIRE', KEYS[4], ARGV[2])
end
if not counted then
  for which = 5, 6 do
    if ARGV[which] ~= '0' then
      redis.call('INCRBY', KEYS[which], ARGV[which])
      redis.call('INCRBY', KEYS[which + 2], ARGV[which])
      redis.call('EXPIRE', KEYS[which + 2], ARGV[3])
    end
  end
end
return redis.call('TIME')
