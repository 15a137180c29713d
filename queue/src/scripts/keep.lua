-- Take a mark that lapses by itself, or renew one that is ours: in one step, so that none is renewed that has lapsed and
-- been taken meanwhile.
-- KEYS[1] the mark
-- ARGV[1] who wants it  [2] ttl, ms
-- Returns 1 it is theirs | 0 another has it
local holder = redis.call('GET', KEYS[1])
-- Not refused under maxmemory.
if holder == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if holder then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
