-- Enqueue jobs, once: a repeated call (its reply was lost) finds its own mark and adds nothing.
-- KEYS[1] mark of this call  [2] what was seen (hash) or any key  [3] mark of a call that was answered, or again
--         that of this one  [4...] queues
-- ARGV[1] ttl of the mark, ms  [2] producing side: L or R  [3] number of jobs; each: index of its queue, bytes,
--       field of `seen` ("" = none), its value
-- Returns {statuses, {key, reason} or nothing}: 1 enqueued, 0 seen before; nothing is enqueued if a queue is unfit
local before = redis.call('GET', KEYS[1])
if before then return { before } end
for i = 4, #KEYS do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= 'list' then
    return { '', { KEYS[i], 'WRONGTYPE holds a ' .. kind .. ', must be a list' } }
  end
end
local seen = redis.call('TYPE', KEYS[2]).ok
for job = 1, tonumber(ARGV[3]) do
  if ARGV[4 * job + 2] ~= '' and seen ~= 'none' and seen ~= 'hash' then
    return { '', { KEYS[2], 'WRONGTYPE holds a ' .. seen .. ', must be a hash' } }
  end
end
local push, statuses = ARGV[2] == 'L' and 'LPUSH' or 'RPUSH', {}
for job = 1, tonumber(ARGV[3]) do
  local at = 4 + 4 * (job - 1)
  local field, state = ARGV[at + 2], ARGV[at + 3]
  if field ~= '' and redis.call('HGET', KEYS[2], field) == state then
    statuses[job] = '0'
  else
    -- The push first: as the first write it is the one that maxmemory refuses, before anything is marked as seen.
    redis.call(push, KEYS[tonumber(ARGV[at])], ARGV[at + 1])
    if field ~= '' then redis.call('HSET', KEYS[2], field, state) end
    statuses[job] = '1'
  end
end
local answer = table.concat(statuses)
redis.call('SET', KEYS[1], answer, 'PX', ARGV[1])
-- Who asks again has had the answer before: marks may live long, because hardly any does.
-- Not at once, though: a copy of that call may still be under way on a connection that was given up.
if KEYS[3] ~= KEYS[1] then redis.call('PEXPIRE', KEYS[3], 60000) end
return { answer }
