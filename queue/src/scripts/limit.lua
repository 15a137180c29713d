-- Take from a rate limit of `limit` a second, shared by all producers: one step, so that a crash between
-- counting and expiring cannot block them for ever (a counter without expiry is repaired here too).
-- KEYS[1] the counter
-- ARGV[1] limit  [2] wanted
-- Returns {granted, ms until the window resets}
local used = tonumber(redis.call('GET', KEYS[1]) or '0')
local left = redis.call('PTTL', KEYS[1])
local granted = math.max(0, math.min(tonumber(ARGV[2]), tonumber(ARGV[1]) - used))
if granted > 0 then redis.call('INCRBY', KEYS[1], granted) end
if left < 0 then
  redis.call('PEXPIRE', KEYS[1], 1000)
  left = 1000
end
return { granted, left }
