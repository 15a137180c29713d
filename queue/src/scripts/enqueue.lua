-- Enqueue jobs, once: a repeated call (its reply was lost) finds its own mark and adds nothing.
-- KEYS[1] mark of this call  [2] what was seen (hash) or any key  [3] mark of a call that was answered, or again
--         that of this one  [4...] queues
-- ARGV[1] ttl of the mark, ms  [2] producing side: L or R  [3] number of jobs; each: index of its queue, bytes,
--       field of `seen` ("" = none), its value
-- Returns {statuses, {key, reason} or nothing}: 1 enqueued, 0 seen before; nothing is enqueued if a queue is unfit
local before = redis.call('GET', KEYS[1])
if before and before ~= '' then
  -- Written again: WAIT on a new connection waits only for what that connection has written.
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return { before }
end
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
-- Redis does not undo what a script has done before it was refused: a job pushed by a call that then may not leave its
-- mark would be pushed again and again. So the mark is written first, still empty, and `seen` is tried: as it was.
local push, statuses, tried = ARGV[2] == 'L' and 'LPUSH' or 'RPUSH', {}, false
local function refused(command, answer)
  if type(answer) ~= 'table' or not answer.err then return nil end
  local denied = string.find(answer.err, 'NOPERM', 1, true) or string.find(answer.err, "can't run this command", 1, true)
  return denied and redis.error_reply('NOPERM command ' .. command) or answer
end
local refusal = refused('SET', redis.pcall('SET', KEYS[1], '', 'PX', ARGV[1]))
if refusal then return refusal end
for job = 1, tonumber(ARGV[3]) do
  local at = 4 + 4 * (job - 1)
  local field, state = ARGV[at + 2], ARGV[at + 3]
  local present = field ~= '' and redis.call('HGET', KEYS[2], field)
  if present == state then
    statuses[job] = '0'
  else
    if field ~= '' and not tried then
      refusal = refused('HSET', redis.pcall('HSET', KEYS[2], field, present or ''))
      if refusal then return refusal end
      tried = true
    end
    refusal = refused(push, redis.pcall(push, KEYS[tonumber(ARGV[at])], ARGV[at + 1]))
    if refusal then return refusal end
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
