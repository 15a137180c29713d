-- Shared by cycle.lua, move.lua, start.lua and turn.lua (put before them): carries out what Rust decided for one job.
-- An effect is four arguments: op, index of its key in KEYS, a, b.
--   L bytes          push at the left           R bytes          push at the right
--   Z score member   add to a sorted set        S bytes ttl_ms   set (ttl "" = none)
--   T max counters   trim a list to max; how many were trimmed is counted in KEYS[counters] ("" = nowhere)
--   D score rank     remove from a sorted set what is up to score, and what is up to rank
--   A name           add to a set
--   C old new        set a string that must hold `old`, or `new` already (this call is repeated)
--   E ttl_ms other   let a key expire ("" = never), unless KEYS[other] is there ("" = always)
--   I score member   add to a sorted set that only helps to find    U member   remove from one
--   O score count    remove up to count from one, of those up to score
--   P message        publish (the key is the channel)
-- L, R, Z, S and C place the job: all of their destinations are checked before the first write, and a
-- placement that is refused leaves the job where it was. The others only tidy: never a reason to stop.
local PLACES = { L = 'list', R = 'list', Z = 'zset', S = false, C = false }
local CHANGED = 'CHANGED'
local checked = {}

-- nil, or why a key cannot take this kind of value. A job is in exactly one place: it must not be
-- removed from one before the next is known to be able to hold it.
local function unfit(key, kind)
  if not kind then return nil end
  local verdict = checked[key .. kind]
  if verdict == nil then
    local answer = redis.pcall('TYPE', key)
    if answer.err then verdict = answer.err
    elseif answer.ok == 'none' or answer.ok == kind then verdict = false
    else verdict = 'WRONGTYPE holds a ' .. answer.ok .. ', must be a ' .. kind end
    checked[key .. kind] = verdict
  end
  return verdict or nil
end

-- The first destination of the effects at ARGV[at..] that cannot take the job: key, reason. Or nil.
local function first_unfit(at, count)
  for e = 0, count - 1 do
    local op, key = ARGV[at + 4 * e], KEYS[tonumber(ARGV[at + 4 * e + 1])]
    local reason = PLACES[op] ~= nil and unfit(key, PLACES[op])
    if op == 'C' then
      local present = redis.pcall('GET', key)
      if type(present) == 'table' then reason = present.err
      elseif present ~= ARGV[at + 4 * e + 2] and present ~= ARGV[at + 4 * e + 3] then reason = CHANGED end
    end
    if reason then return key, reason end
  end
end

local function run(op, key, a, b)
  if op == 'L' then return redis.pcall('LPUSH', key, a) end
  if op == 'R' then return redis.pcall('RPUSH', key, a) end
  if op == 'Z' then return redis.pcall('ZADD', key, a, b) end
  if op == 'S' then
    if b == '' then return redis.pcall('SET', key, a) end
    return redis.pcall('SET', key, a, 'PX', b)
  end
  if op == 'T' then
    local length = redis.pcall('LLEN', key)
    if type(length) == 'number' and length > tonumber(a) then
      -- Not to 0..-1 when none is to stay: that is all of them.
      if a == '0' then redis.pcall('DEL', key) else redis.pcall('LTRIM', key, 0, tonumber(a) - 1) end
      if b ~= '' then redis.pcall('HINCRBY', KEYS[tonumber(b)], 'trimmed', length - tonumber(a)) end
    end
    return
  end
  if op == 'D' then
    redis.pcall('ZREMRANGEBYSCORE', key, '-inf', a)
    redis.pcall('ZREMRANGEBYRANK', key, 0, b)
    return
  end
  if op == 'C' then return redis.pcall('SET', key, b) end
  if op == 'E' then
    if b ~= '' and redis.pcall('EXISTS', KEYS[tonumber(b)]) == 1 then return end
    if a == '' then redis.pcall('PERSIST', key) else redis.pcall('PEXPIRE', key, a) end
    return
  end
  if op == 'I' then return redis.pcall('ZADD', key, a, b) end
  if op == 'U' then return redis.pcall('ZREM', key, a) end
  if op == 'O' then
    local old = redis.pcall('ZRANGEBYSCORE', key, '-inf', a, 'LIMIT', 0, b)
    if not old.err and #old > 0 then redis.pcall('ZREM', key, unpack(old)) end
    return
  end
  if op == 'P' then redis.pcall('PUBLISH', key, a) return end
  if op == 'A' then redis.pcall('SADD', key, a) end
end

-- Places the job by the effects at ARGV[at..]: nil, or the key that refused it and why.
local function place(at, count)
  local unfit_key, why = first_unfit(at, count)
  if unfit_key then return unfit_key, why end
  for e = 0, count - 1 do
    local op, key = ARGV[at + 4 * e], KEYS[tonumber(ARGV[at + 4 * e + 1])]
    local answer = run(op, key, ARGV[at + 4 * e + 2], ARGV[at + 4 * e + 3])
    if PLACES[op] ~= nil and type(answer) == 'table' and answer.err then return key, answer.err end
  end
end

-- Places a job and says what became of it: 1 placed, c what was to be changed is not as expected, e refused, which goes
-- into errors under the number of the job.
local function place_or_note(at, count, errors, number)
  local key, reason = place(at, count)
  if reason == CHANGED then return 'c' end
  if not key then return '1' end
  errors[#errors + 1] = { number, key, reason }
  return 'e'
end

