-- Read a page, bounded by count and by bytes (at least one entry): nothing here grows with the backlog.
-- KEYS[1] a list, or a sorted set
-- ARGV[1] "head" | "tail" (of a list, from that end inwards) | "due" (of a sorted set, by score)
--     [2] at most this many  [3] at most this many bytes
-- Returns {seconds, microseconds, length, entry...}
local now = redis.call('TIME')
local kind, most, budget = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local length = redis.call(kind == 'due' and 'ZCARD' or 'LLEN', KEYS[1])
local answer, at = { now[1], now[2], length }, 0
while at < most do
  local entries
  if kind == 'head' then entries = redis.call('LRANGE', KEYS[1], at, at + 9)
  elseif kind == 'tail' then entries = redis.call('LRANGE', KEYS[1], -at - 10, -at - 1)
  else
    local ms = now[1] * 1000 + math.floor(now[2] / 1000)
    entries = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ms, 'LIMIT', at, 10)
  end
  local first, last, step = 1, #entries, 1
  if kind == 'tail' then
    -- Near the head a negative start is cut at 0: never read an entry twice.
    if length == at then return answer end
    if length - at < 10 then entries = redis.call('LRANGE', KEYS[1], 0, length - at - 1) end
    first, last, step = #entries, 1, -1
  end
  for i = first, last, step do
    if at >= most or (budget < #entries[i] and #answer > 3) then return answer end
    answer[#answer + 1], budget, at = entries[i], budget - #entries[i], at + 1
  end
  if #entries < 10 then return answer end
end
return answer
