-- Mark jobs as started that a lane holds, as Rust decided: each only if the lane holds it and it is still what the
-- decision was made for. Can be repeated as it is: what was started by the first call is said to be so again.
-- KEYS[1] record, then three a queue: held, parked, parked suspects; then destinations of effects
-- ARGV[1] token  [2] number of jobs; each: its queue, from 1, its entry, number of effects, the effects
-- Returns {"LOST"} | {"OK", seconds, microseconds, statuses, {error: job, key, reason}...}
--       statuses: 1 started, 0 not held, e refused (see errors), c what was to be changed is not as expected
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return { 'LOST' } end
local now = redis.call('TIME')
local errors, statuses, at = {}, {}, 3
-- The first write, never refused: see cycle.lua.
redis.call('HDEL', KEYS[1], '')
for job = 1, tonumber(ARGV[2]) do
  local first, entry, effects = 3 * tonumber(ARGV[at]) - 1, ARGV[at + 1], tonumber(ARGV[at + 2])
  local status, held = '0', false
  at = at + 3
  -- What a parked fetch brought is started before a cycle moves it to the others.
  for list = first, first + 2 do
    held = held or type(redis.pcall('LPOS', KEYS[list], entry)) == 'number'
  end
  if held then status = place_or_note(at, effects, errors, job) end
  statuses[#statuses + 1] = status
  at = at + 4 * effects
end
return { 'OK', now[1], now[2], table.concat(statuses), errors }
