-- Give up the claim of a queue: nobody serves it any more.
-- KEYS[1] the claim
-- ARGV[1] who gives it up
-- Returns 1 when it was theirs and is gone, 0 when it is another's or nobody's
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('UNLINK', KEYS[1])
