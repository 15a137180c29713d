-- Move jobs as Rust decided (promote, reap): each only if it is still where it was read.
-- KEYS[1] record of the fenced lane the jobs are taken from, or the counters when not reaping; then sources, destinations
-- ARGV[1] "fenced" or ""  [2] number of jobs; each: index of its source, "l" list or "z" sorted set, member,
--       number of effects, the effects
-- Returns {"HELD"} when the lane has its lease after all | {"OK", statuses, {error: job, key, reason}...}
--       statuses: 1 moved, 0 not there any more, e refused (see errors), c what was to be changed is not as expected
if ARGV[1] == 'fenced' and redis.call('HEXISTS', KEYS[1], 'token') == 1 then return { 'HELD' } end
local errors, statuses, at = {}, {}, 3
-- The first write, never refused: see cycle.lua. Counters of the wrong type are no reason to stop.
redis.pcall('HDEL', KEYS[1], ARGV[1] == 'fenced' and 'forget' or '')
for job = 1, tonumber(ARGV[2]) do
  local source, kind, member = KEYS[tonumber(ARGV[at])], ARGV[at + 1], ARGV[at + 2]
  local effects, status = tonumber(ARGV[at + 3]), '0'
  at = at + 4
  local found
  if kind == 'l' then found = redis.call('LPOS', source, member) else found = redis.call('ZSCORE', source, member) end
  if found then status = place_or_note(at, effects, errors, job) end
  if status == '1' then
    if kind == 'l' then redis.call('LREM', source, 1, member) else redis.call('ZREM', source, member) end
  end
  statuses[#statuses + 1] = status
  at = at + 4 * effects
end
return { 'OK', table.concat(statuses), errors }
