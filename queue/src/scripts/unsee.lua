-- Forget files that a producer has found to be gone, but only if all that is remembered comes from its own directory: to
-- it, the files of another disk under the same path are gone as well.
-- KEYS[1] what was seen  [2] where it comes from: a sorted set of places
-- ARGV[1] the producer's place  [2...] files
-- Returns 1 forgotten | 0 there are other places
local places = redis.call('ZRANGE', KEYS[2], 0, 1)
if #places > 1 or (places[1] and places[1] ~= ARGV[1]) then return 0 end
redis.call('HDEL', KEYS[1], unpack(ARGV, 2))
return 1
