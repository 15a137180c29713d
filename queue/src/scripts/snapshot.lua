-- What one look at the queues shows; reads only, bounded by the number of queues and of lanes.
-- A key that cannot be read counts as empty and is named: one bad key must not hide all other figures.
-- KEYS[1] counters  [2] dead letters  [3] completed  [4] registry  [5] reaping  [6] paused
--         then four a queue: queue, suspects, delayed, breaker
-- ARGV[1] consuming side: R or L  [2] at most this many bytes of the oldest entry
--     [3] what a lane's record is called, without the lane  [4] at most this many lanes of each registry
--     [5] what the dead letters are: list or zset  [6] what the key of a job begins with that the queue only names,
--     or ""  [7] what the completed are: list or zset  [8] how many lanes of the registry to pass over
-- Returns {seconds, microseconds, counters, dead, completed, lanes, reaping, jobs held by lanes, paused,
--       {a queue: waiting, suspects, delayed, due, oldest entry, {{key, reason}...}, breaker}, {{key, reason}...},
--       {a registered lane: lane, pod, start, JobQueue, jobs held, quiet word acknowledged, breakers}}
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local KINDS = { LLEN = 'list', LINDEX = 'list', ZCARD = 'zset', ZCOUNT = 'zset', ZRANGE = 'zset', HGETALL = 'hash',
  HGET = 'hash', HMGET = 'hash' }

local function read(unfit, otherwise, command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  local kind = redis.pcall('TYPE', key)
  local reason = answer.err
  if kind.ok and kind.ok ~= KINDS[command] then
    reason = 'WRONGTYPE holds a ' .. kind.ok .. ', must be a ' .. KINDS[command]
  end
  -- Two commands may stumble over one key.
  if #unfit == 0 or unfit[#unfit][1] ~= key then unfit[#unfit + 1] = { key, reason } end
  return otherwise
end

local queues, unfit = {}, {}
for at = 7, #KEYS, 4 do
  local bad = {}
  local waiting = read(bad, 0, 'LLEN', KEYS[at])
  local oldest = read(bad, false, 'LINDEX', KEYS[at], ARGV[1] == 'R' and -1 or 0)
  if oldest and ARGV[6] ~= '' then
    -- Not declared either, because its name is read here.
    oldest = redis.pcall('GETRANGE', ARGV[6] .. oldest, 0, ARGV[2] - 1)
    if type(oldest) ~= 'string' then oldest = false end
  end
  queues[#queues + 1] = {
    waiting, read(bad, 0, 'LLEN', KEYS[at + 1]), read(bad, 0, 'ZCARD', KEYS[at + 2]),
    read(bad, 0, 'ZCOUNT', KEYS[at + 2], '-inf', ms), oldest and string.sub(oldest, 1, tonumber(ARGV[2])) or '', bad,
    redis.call('EXISTS', KEYS[at + 3]),
  }
end

-- Records and lists of lanes are not declared, because who they are is read here. They are all of this shard's slot.
-- What a registered lane holds stands in its record, since its cycles alone change it; what its parked fetches bring
-- does not. Most parked lists are empty, so they are asked about by the hundred: a lane costs Redis one command.
local in_flight, lanes, parked = 0, {}, {}
for at, lane in ipairs(read(unfit, {}, 'ZRANGE', KEYS[4], ARGV[8], ARGV[8] + ARGV[4] - 1)) do
  local record = read(unfit, {}, 'HMGET', ARGV[3] .. lane, 'held', 'parked', 'pod', 'start', 'jobqueue', 'quiet', 'breakers')
  local held = tonumber(record[1] or '0')
  in_flight = in_flight + held
  lanes[at] = { lane, record[3] or '', record[4] or '', record[5] or '', held, record[6] or '', record[7] or '' }
  for list in string.gmatch(record[2] or '', '[^\n]+') do parked[#parked + 1] = { list, lanes[at] } end
end
for first = 1, #parked, 100 do
  local last, page = math.min(first + 99, #parked), {}
  for at = first, last do page[#page + 1] = parked[at][1] end
  if redis.pcall('EXISTS', unpack(page)) ~= 0 then
    for at = first, last do
      local length = read(unfit, 0, 'LLEN', parked[at][1])
      parked[at][2][5], in_flight = parked[at][2][5] + length, in_flight + length
    end
  end
end
-- A fenced lane is emptied by others: its lists are counted.
for _, lane in ipairs(read(unfit, {}, 'ZRANGE', KEYS[5], 0, ARGV[4] - 1)) do
  for list in string.gmatch(read(unfit, false, 'HGET', ARGV[3] .. lane, 'keys') or '', '[^\n]+') do
    in_flight = in_flight + read(unfit, 0, 'LLEN', list)
  end
end
return {
  now[1], now[2], read(unfit, {}, 'HGETALL', KEYS[1]), read(unfit, 0, ARGV[5] == 'zset' and 'ZCARD' or 'LLEN', KEYS[2]),
  read(unfit, 0, ARGV[7] == 'zset' and 'ZCARD' or 'LLEN', KEYS[3]), read(unfit, 0, 'ZCARD', KEYS[4]), read(unfit, 0, 'ZCARD', KEYS[5]), in_flight,
  redis.call('EXISTS', KEYS[6]), queues, unfit, lanes,
}
