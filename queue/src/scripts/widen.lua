-- Write down how many shards there are, unless as many or more are written down already: never fewer, whoever comes last.
-- KEYS[1] layout  [2] counters
-- ARGV[1] version of layouts  [2] number of shards  [3] what says so
-- Returns what is written down then: another version's is left as it is
local found = redis.call('GET', KEYS[1])
if found then
  local version, shards = string.match(found, '^(%S+) (%d+) ')
  if version ~= ARGV[1] or tonumber(shards) >= tonumber(ARGV[2]) then return found end
end
-- The first write, never refused, also by a full Redis: see cycle.lua.
redis.pcall('HDEL', KEYS[2], '')
redis.call('SET', KEYS[1], ARGV[3])
return ARGV[3]
