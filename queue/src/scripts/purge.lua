-- Delete a list and say how long it was, in one step: no entry goes uncounted.
-- KEYS[1] the list
-- Returns its length
local length = redis.call('LLEN', KEYS[1])
redis.call('UNLINK', KEYS[1])
return length
