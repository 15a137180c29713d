-- The next lane's number: also from a Redis that is full, or a queue without workers could never drain it.
-- KEYS[1] the last number  [2] counters
-- Returns the number
-- The first write, never refused: see cycle.lua.
redis.pcall('HDEL', KEYS[2], '')
return redis.call('INCR', KEYS[1])
