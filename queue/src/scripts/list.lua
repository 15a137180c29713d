-- Look up which jobs have some statuses: the newest first, after a place in that order.
-- KEYS[1] index of the first status, then those of the others
-- ARGV[1] at most so many of each  [2] ms and [3] id of the last job of the page before, or "" and "": from the newest on
-- Returns an index: {id, ms, ...}
local limit, ms, id = tonumber(ARGV[1]), ARGV[2], ARGV[3]

-- By bytes, as a sorted set does; Lua's own comparison follows the locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- The rank of the first job after the place. Jobs of one millisecond are in the order of their ids: halved, not read.
local function start(index)
  if ms == '' then return 0 end
  local from = redis.call('ZCOUNT', index, '(' .. ms, '+inf')
  local to = from + redis.call('ZCOUNT', index, ms, ms)
  while from < to do
    local middle = math.floor((from + to) / 2)
    if before(redis.call('ZREVRANGE', index, middle, middle)[1], id) then to = middle else from = middle + 1 end
  end
  return from
end

local found = {}
for i, index in ipairs(KEYS) do
  local first = start(index)
  found[i] = redis.call('ZREVRANGE', index, first, first + limit - 1, 'WITHSCORES')
end
return found
