-- Turn a list by one page: each entry, from the tail, goes where Rust decided (a queue, or back to the head).
-- Stops at the first entry that is not the expected one: somebody else is turning it too, or this call is
-- repeated because its reply was lost. Equal entries have equal decisions, so taking one for another is harmless.
-- KEYS[1] the list  [2] counters  [3...] destinations
-- ARGV[1] number of entries; each: entry, index of its destination (1 = back to the head, 0 = drop), side, bytes
-- Returns {entries turned, {key, reason} or nothing}
local turned = 0
-- The first write, never refused: see cycle.lua. Counters of the wrong type are no reason to stop.
redis.pcall('HDEL', KEYS[2], '')
for entry = 1, tonumber(ARGV[1]) do
  local at = 2 + 4 * (entry - 1)
  if redis.call('LINDEX', KEYS[1], -1) ~= ARGV[at] then return { turned } end
  local destination = tonumber(ARGV[at + 1])
  if destination == 1 then
    redis.call('LMOVE', KEYS[1], KEYS[1], 'RIGHT', 'LEFT')
  else
    if destination > 0 then
      local key = KEYS[destination]
      local answer = redis.pcall(ARGV[at + 2] == 'R' and 'RPUSH' or 'LPUSH', key, ARGV[at + 3])
      if type(answer) == 'table' and answer.err then return { turned, { key, answer.err } } end
    end
    redis.call('RPOP', KEYS[1])
  end
  turned = turned + 1
end
return { turned }
