-- One lane's whole conversation with Redis: adopt what a parked fetch brought, settle what finished,
-- reserve what fits. Changes nothing unless the lane still holds its lease.
-- KEYS[1] record  [2] paused  [3] quiet  [4] counters  [5] completed
--         then five a queue: queue, suspects, held, parked, parked suspects; then destinations of effects
-- ARGV[1] token  [2] seq  [3] digest of the suspect that runs alone, or ""  [4] quiet word acknowledged  [5] room (free slots)
--     [6] byte budget of the reply  [7] consuming side: R or L  [8] completed_max  [9] busy ms to count
--     [10] number of queues  [11] in which order each free slot asks them, a byte a queue; "" = all in theirs
--     [12] "1" when its process was told to stop: written down for whoever finds it dead
--     then a queue: limit (at most this many, 0 = leave alone), suspects limit, parked, parked suspects,
--       expected length of held. Parked: "-" leave, "1" adopt the one entry we know, "0" adopt and tell, "r" release
--     then the number of settlements, by position first; each: queue, "p" position length head | "b" bytes "" "",
--       the counter it belongs to once it took place (done, failed, "" = none), number of effects, the effects
--     then a queue: number of done, their bytes; or its negative, the bytes of the first and of the last: they are
--       the head of held
-- Returns {"LOST"} | {"STALE"} | {"OK", seconds, microseconds, paused, quiet, replayed, statuses,
--       {a queue: {"0", job...} | {"1"} held is not as expected, read it all}, {error: settlement or 0, key, reason}...}
--       statuses: a letter a settlement, then a letter a done: 1 settled, 0 not held, e refused (see errors), or the
--       done are not the head of held (the whole list is told), c what was to be changed is not as expected
local record, side = KEYS[1], ARGV[7]
local lease = redis.call('HMGET', record, 'token', 'seq', 'statuses', 'tails')
if lease[1] ~= ARGV[1] then return { 'LOST' } end
local now = redis.call('TIME')
local paused, quiet = redis.call('EXISTS', KEYS[2]), redis.call('GET', KEYS[3]) or ''
local seq, last, queues = tonumber(ARGV[2]), tonumber(lease[2] or '0'), tonumber(ARGV[10])
local function key_of(queue, which) return KEYS[5 + 5 * (queue - 1) + which] end
local QUEUE, SUSPECTS, HELD, PARKED, PARKED_SUSPECTS = 1, 2, 3, 4, 5

if seq < last then return { 'STALE' } end
if seq == last then
  -- The reply was lost: say again what was settled, and the jobs that call reserved.
  local jobs, queue = {}, 0
  for tail in string.gmatch(lease[4] or '', '[^,]+') do
    queue = queue + 1
    local all = tail == 'whole'
    jobs[queue] = (all or tail == 'broken') and {} or redis.call('LRANGE', key_of(queue, HELD), tail, -1)
    table.insert(jobs[queue], 1, all and '1' or '0')
  end
  -- Written again: WAIT on a new connection waits only for what that connection has written.
  redis.call('HDEL', record, '')
  redis.call('HSET', record, 'seq', ARGV[2])
  return { 'OK', now[1], now[2], paused, quiet, 1, lease[3] or '', jobs, {} }
end

-- Under maxmemory only the first write of a script is refused, and never a removal: this one opens the way.
redis.call('HDEL', record, '')
if ARGV[12] == '1' then redis.call('HSET', record, 'stopping', '1') end
local errors, statuses, at = {}, {}, 13
-- Counted here and not by the caller: what is refused is said again, and must not count twice.
local counted = { done = 0, failed = 0 }
-- broken: the queues whose held list is none. They are left alone, the others are served.
local limits, whole, broken, tails, reserved = {}, {}, {}, {}, {}

local function failed(key, answer)
  if type(answer) ~= 'table' or not answer.err then return false end
  errors[#errors + 1] = { 0, key, answer.err }
  return true
end

local function release(parked, back)
  for _ = 1, 10 do
    -- The newest first: the oldest is then the next to be taken again.
    local job = redis.pcall('LINDEX', parked, -1)
    if not job or failed(parked, job) then return end
    if failed(back, redis.pcall(side == 'R' and 'RPUSH' or 'LPUSH', back, job)) then return end
    redis.call('RPOP', parked)
  end
end

local looks, reserved_count = {}, 0
for queue = 1, queues do
  limits[queue] = { tonumber(ARGV[at]), tonumber(ARGV[at + 1]) }
  local held = key_of(queue, HELD)
  local length = redis.pcall('LLEN', held)
  broken[queue] = failed(held, length)
  for which = PARKED, PARKED_SUSPECTS do
    local word, parked = ARGV[at + which - 2], key_of(queue, which)
    if word == 'r' then
      release(parked, key_of(queue, which == PARKED and QUEUE or SUSPECTS))
    elseif word == '1' and not broken[queue] then
      -- More than the one we know of: a connection that Redis had not missed yet left another. Say it all again.
      local arrived = redis.pcall('LRANGE', parked, 0, 9)
      if not failed(parked, arrived) then
        for _, job in ipairs(arrived) do redis.call('RPUSH', held, job) end
        redis.call('LTRIM', parked, #arrived, -1)
        length, reserved_count = length + #arrived, reserved_count + #arrived
      end
    elseif word == '0' and not broken[queue] then
      looks[#looks + 1] = { queue, parked }
    end
  end
  whole[queue] = not broken[queue] and length ~= tonumber(ARGV[at + 4])
  at = at + 5
end

local count = tonumber(ARGV[at])
at = at + 1
local tombstone, graves = ARGV[1] .. ':' .. ARGV[2], {}
local function bury()
  for held in pairs(graves) do redis.call('LREM', held, 0, tombstone) end
  graves = {}
end
for s = 1, count do
  local queue, by, a, b, c = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local counter, effects = ARGV[at + 5], tonumber(ARGV[at + 6])
  local held, status = key_of(queue, HELD)
  at = at + 7
  local found
  if broken[queue] then
    found = false
  elseif by == 'p' then
    local job = not whole[queue] and redis.call('LINDEX', held, a)
    found = job and #job == tonumber(b) and string.sub(job, 1, #c) == c
  else
    bury()
    found = redis.call('LPOS', held, a)
  end
  if not found then
    -- In a list that is not as expected a place means nothing: the list is told, and the job is named again.
    status = (broken[queue] or by == 'p' and whole[queue]) and 'e' or '0'
  else
    status = place_or_note(at, effects, errors, s)
    if status == '1' and by == 'p' then
      redis.call('LSET', held, a, tombstone)
      graves[held] = true
    elseif status == '1' then
      redis.call('LREM', held, 1, a)
    end
  end
  if status == '1' and counter ~= '' then counted[counter] = counted[counter] + 1 end
  statuses[#statuses + 1] = status
  at = at + 4 * effects
end
bury()

local keep = tonumber(ARGV[8])
for queue = 1, queues do
  local done, held = tonumber(ARGV[at]), key_of(queue, HELD)
  local at_head, given = done < 0, done < 0 and 2 or done
  done, at = math.abs(done), at + 1
  if done > 0 then
    local reason = keep ~= 0 and unfit(KEYS[5], 'list')
    if reason then errors[#errors + 1] = { 0, KEYS[5], reason } end
    if at_head and not broken[queue] and not whole[queue] then
      whole[queue] = redis.call('LINDEX', held, 0) ~= ARGV[at] or redis.call('LINDEX', held, done - 1) ~= ARGV[at + 1]
    end
    if reason or broken[queue] or at_head and whole[queue] then
      statuses[#statuses + 1] = string.rep('e', done)
    else
      local kept, count = {}, done
      if at_head then
        -- As a rule the oldest finish first. Naming only the first and the last spares Redis a string a job.
        if keep ~= 0 then kept = redis.call('LRANGE', held, 0, done - 1) end
        redis.call('LTRIM', held, done, -1)
        statuses[#statuses + 1] = string.rep('1', done)
      else
        for d = at, at + done - 1 do
          local removed = redis.call('LREM', held, 1, ARGV[d]) == 1
          statuses[#statuses + 1] = removed and '1' or '0'
          if removed then kept[#kept + 1] = ARGV[d] end
        end
        count = #kept
      end
      counted.done = counted.done + count
      if keep ~= 0 and count > 0 then
        for page = 1, count, 500 do
          redis.pcall('LPUSH', KEYS[5], unpack(kept, page, math.min(page + 499, count)))
        end
        if keep > 0 then redis.pcall('LTRIM', KEYS[5], 0, keep - 1) end
      end
    end
    at = at + given
  end
end

for queue = 1, queues do
  tails[queue] = whole[queue] and 'whole' or broken[queue] and 'broken' or redis.call('LLEN', key_of(queue, HELD))
  reserved[queue] = { whole[queue] and '1' or '0' }
end

local room, budget, got = tonumber(ARGV[5]), tonumber(ARGV[6]), 0
for _, look in ipairs(looks) do
  local jobs = redis.pcall('LRANGE', look[2], 0, 9)
  if failed(look[2], jobs) then jobs = {} end
  for _, job in ipairs(jobs) do
    redis.call('RPUSH', key_of(look[1], HELD), job)
    redis.call('LPOP', look[2])
    table.insert(reserved[look[1]], job)
    room, budget, got, reserved_count = room - 1, budget - #job, got + 1, reserved_count + 1
  end
end

-- Moves up to `want` jobs; a first one alone shows how large they are, what goes over the budget stays.
-- Placed before they are removed: whatever is refused, no job is gone. 1,000 at a time: `unpack` fails at 8,000.
local function take(queue, from, want)
  local held, taken, bytes = key_of(queue, HELD), 0, 0
  while taken < want and (budget > 0 or got == 0) do
    local ask = taken == 0 and 1 or math.max(1, math.min(want - taken, 1000, math.floor(budget * taken / bytes)))
    local jobs
    if side == 'R' then jobs = redis.pcall('LRANGE', from, -ask, -1) else jobs = redis.pcall('LRANGE', from, 0, ask - 1) end
    if failed(from, jobs) or #jobs == 0 then return taken end
    local told, fits = reserved[queue], 0
    local first = #told + 1
    for i = 1, #jobs do
      if budget <= 0 and got > 0 then break end
      local job = side == 'R' and jobs[#jobs + 1 - i] or jobs[i]
      told[first + fits], fits = job, fits + 1
      budget, bytes, got = budget - #job, bytes + #job, got + 1
    end
    if failed(held, redis.pcall('RPUSH', held, unpack(told, first, first + fits - 1))) then
      for i = first + fits - 1, first, -1 do told[i] = nil end
      return taken
    end
    if side == 'R' then redis.call('LTRIM', from, 0, -fits - 1) else redis.call('LTRIM', from, fits, -1) end
    taken, room = taken + fits, room - fits
    if fits < #jobs or #jobs < ask then return taken end
  end
  return taken
end

-- Weighted: how many each queue gives is drawn, a slot at a time, from what waits. All are taken in this one step, so
-- that which of them comes first means nothing any more.
local function draw(orders)
  local left, drawn = {}, {}
  for queue = 1, queues do
    local limit, waiting = limits[queue], redis.pcall('LLEN', key_of(queue, QUEUE))
    local suspects = redis.pcall('LLEN', key_of(queue, SUSPECTS))
    if type(waiting) ~= 'number' then waiting = 0 end
    if type(suspects) ~= 'number' then suspects = 0 end
    local usable = not whole[queue] and not broken[queue]
    left[queue] = usable and math.min(limit[1], waiting + math.min(suspects, limit[2])) or 0
    drawn[queue] = 0
  end
  for slot = 1, math.min(room, #orders / queues) do
    for place = 1, queues do
      local queue = string.byte(orders, (slot - 1) * queues + place)
      if left[queue] > 0 then
        left[queue], drawn[queue] = left[queue] - 1, drawn[queue] + 1
        break
      end
    end
  end
  for queue = 1, queues do limits[queue][1] = drawn[queue] end
end

if paused == 0 and quiet == '' then
  if ARGV[11] ~= '' then draw(ARGV[11]) end
  for queue = 1, queues do
    if not whole[queue] and not broken[queue] then
      local limit = limits[queue]
      local suspects = take(queue, key_of(queue, SUSPECTS), math.min(limit[2], limit[1], room))
      local fresh = take(queue, key_of(queue, QUEUE), math.min(limit[1] - suspects, room))
      reserved_count = reserved_count + suspects + fresh
    end
  end
end

local held_count = 0
for queue = 1, queues do
  local held = key_of(queue, HELD)
  if not broken[queue] then held_count = held_count + redis.call('LLEN', held) end
  if whole[queue] then reserved[queue] = { '1' } end
end
local said = table.concat(statuses)
redis.call('HSET', record, 'seq', ARGV[2], 'statuses', said, 'tails', table.concat(tails, ','),
  'alone', ARGV[3], 'quiet', quiet == ARGV[4] and quiet or '', 'held', held_count)
if reserved_count > 0 then redis.pcall('HINCRBY', KEYS[4], 'reserved', reserved_count) end
for counter, count in pairs(counted) do
  if count > 0 then redis.pcall('HINCRBY', KEYS[4], counter, count) end
end
if ARGV[9] ~= '0' then redis.pcall('HINCRBY', KEYS[4], 'busy_ms', ARGV[9]) end
return { 'OK', now[1], now[2], paused, quiet, 0, said, reserved, errors }
