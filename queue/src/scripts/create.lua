-- Create jobs of protocol async: of each order all jobs or none, and once, however often it is asked for (its reply
-- may have been lost). An order with an idempotency key that is known gets the jobs of the first one.
-- KEYS[1] queue  [2] index of pending jobs; then data keys and idempotency keys
-- ARGV[1] number of orders; each: number of jobs, index of its idempotency key (0 = none; the next key then lists its
--       unfinished jobs, if it is a batch), the ids of its jobs (joined by commas), hash of its body, ms of its creation,
--       ids of an earlier order whose jobs are gone, so that its key counts for nothing; then a job: index of its data
--       key, id, bytes
-- Returns {seconds, microseconds, an answer a order}; or {key, reason} when the queue or the index is unfit: nothing is created
--       an answer: {"created"} | {"known", ids} (same body) | {"conflict", ids} (another body) | {"refused", key, reason}
for i, kind in ipairs({ 'list', 'zset' }) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= kind then
    return { KEYS[i], 'WRONGTYPE holds a ' .. found .. ', must be a ' .. kind }
  end
end
local now = redis.call('TIME')
local answers, at = { now[1], now[2] }, 2

-- nil, or why a command was refused.
local function refusal(answer) return type(answer) == 'table' and answer.err or nil end

-- What is known of an order before anything of it is written.
local function known(idem, ids, body, gone, first)
  if not idem then
    return redis.call('EXISTS', first) == 1 and { 'created' } or nil
  end
  local found = redis.pcall('GET', idem)
  if refusal(found) then return { 'refused', idem, found.err } end
  if not found then return nil end
  local of, with = string.match(found, '^(%S+) (%S+)$')
  if of == ids then return { 'created' } end
  if of == gone then return nil end
  return { with == body and 'known' or 'conflict', of or '' }
end

-- Writes an order, the queue last: whoever meets an id there finds its data. What refuses undoes what was written.
local function write(idem, unfinished, ids, body, created, jobs, from)
  local names, scores = {}, {}
  local function undo(key, reason)
    for job = 1, #names do redis.pcall('DEL', KEYS[tonumber(ARGV[from + 3 * (job - 1)])]) end
    if idem then redis.pcall('DEL', idem, unfinished) end
    redis.pcall('ZREM', KEYS[2], unpack(names))
    return { 'refused', key, reason }
  end
  for job = 1, jobs do
    local data, id, bytes = KEYS[tonumber(ARGV[from + 3 * (job - 1)])], ARGV[from + 3 * job - 2], ARGV[from + 3 * job - 1]
    names[job], scores[2 * job - 1], scores[2 * job] = id, created, id
    local why = refusal(redis.pcall('SET', data, bytes))
    if why then return undo(data, why) end
  end
  local why = idem and refusal(redis.pcall('SET', idem, ids .. ' ' .. body))
  if why then return undo(idem, why) end
  if idem then
    redis.pcall('DEL', unfinished)
    why = jobs > 1 and refusal(redis.pcall('ZADD', unfinished, unpack(scores)))
    if why then return undo(unfinished, why) end
  end
  why = refusal(redis.pcall('ZADD', KEYS[2], unpack(scores)))
  if why then return undo(KEYS[2], why) end
  why = refusal(redis.pcall('RPUSH', KEYS[1], unpack(names)))
  if why then return undo(KEYS[1], why) end
  return { 'created' }
end

for _ = 1, tonumber(ARGV[1]) do
  local jobs, key, ids, body, created = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local idem, unfinished, from = KEYS[key], key > 0 and KEYS[key + 1], at + 6
  answers[#answers + 1] = known(idem, ids, body, ARGV[at + 5], KEYS[tonumber(ARGV[from])])
    or write(idem, unfinished, ids, body, created, jobs, from)
  at = from + 3 * jobs
end
return answers
