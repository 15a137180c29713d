-- Turn a list by one page: each entry, from the tail, goes where Rust decided (a queue, or back to the head).
-- Stops at the first entry that is not the expected one: somebody else is turning it too, or this call is
-- repeated because its reply was lost; or that names a job which is not as expected any more. Equal entries have
-- equal decisions, so taking one for another is harmless.
-- KEYS[1] the list  [2] counters  [3...] destinations of effects
-- ARGV[1] number of entries; each: entry, "k" back to the head | "m" away, number of effects, the effects
-- Returns {entries turned, {key, reason} or nothing}
local turned, at = 0, 2
-- The first write, never refused: see cycle.lua. Counters of the wrong type are no reason to stop.
redis.pcall('HDEL', KEYS[2], '')
for _ = 1, tonumber(ARGV[1]) do
  local entry, word, effects = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  at = at + 3
  if redis.call('LINDEX', KEYS[1], -1) ~= entry then return { turned } end
  if word == 'k' then
    redis.call('LMOVE', KEYS[1], KEYS[1], 'RIGHT', 'LEFT')
  else
    local key, reason = place(at, effects)
    if reason == CHANGED then return { turned } end
    if key then return { turned, { key, reason } } end
    redis.call('RPOP', KEYS[1])
  end
  turned, at = turned + 1, at + 4 * effects
end
return { turned }
