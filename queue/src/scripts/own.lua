-- Claim a queue for one owner, for good; or learn whose it is.
-- KEYS[1] the claim
-- ARGV[1] who wants it  [2] an owner that is known to be gone, or ''
-- Returns the owner: ARGV[1] when the claim is theirs now
local owner = redis.call('GET', KEYS[1])
if not owner or owner == ARGV[2] then
  redis.call('SET', KEYS[1], ARGV[1])
  return ARGV[1]
end
return owner
