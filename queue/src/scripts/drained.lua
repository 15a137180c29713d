-- Whether a process has stopped: it has acknowledged its word in every lane and holds nothing. Then it stays so for a
-- while, so that it does not resume between this look and what is done because of it.
-- KEYS[1] quiet key of the process  [2...] the records of its lanes
-- ARGV[1] the word it was told  [2] how long it stays so, ms
-- Returns 1 drained | 0 not, or not told any more
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for at = 2, #KEYS do
  local record = redis.call('HMGET', KEYS[at], 'quiet', 'keys')
  -- A record that is gone since its lane was found was closed, and holds nothing.
  if record[2] and record[1] ~= ARGV[1] then return 0 end
  -- Lists of lanes are not declared, because their names are read here. They are all of this shard's slot.
  for list in string.gmatch(record[2] or '', '[^\n]+') do
    if redis.call('LLEN', list) > 0 then return 0 end
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
