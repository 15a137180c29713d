-- Read a page, bounded by count and by bytes (at least one entry): nothing here grows with the backlog.
-- KEYS[1] a list, or a sorted set
-- ARGV[1] "head" | "tail" (of a list, from that end inwards) | "due", "due-seconds" (of a sorted set,
--         by score: milliseconds, or seconds with a fraction) | "newest" (of a sorted set, the highest score first)
--     [2] at most this many  [3] at most this many bytes  [4] entries to skip first
-- Returns {seconds, microseconds, length, entry...}
local now = redis.call('TIME')
local kind, budget, at = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local most = at + tonumber(ARGV[2])
local of_list = kind == 'head' or kind == 'tail'
local length = redis.call(of_list and 'LLEN' or 'ZCARD', KEYS[1])
local answer = { now[1], now[2], length }
while at < math.min(most, length) do
  local entries
  local first, last, step = 1, nil, 1
  if kind == 'head' then entries = redis.call('LRANGE', KEYS[1], at, at + 9)
  elseif kind == 'tail' then
    -- Counted from the head: a negative index is cut there, and an entry would be read twice.
    entries = redis.call('LRANGE', KEYS[1], math.max(0, length - at - 10), length - at - 1)
    first, last, step = #entries, 1, -1
  elseif kind == 'newest' then entries = redis.call('ZREVRANGE', KEYS[1], at, at + 9)
  else
    local score = now[1] * 1000 + math.floor(now[2] / 1000)
    if kind == 'due-seconds' then score = string.format('%d.%06d', now[1], now[2]) end
    entries = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', score, 'LIMIT', at, 10)
  end
  for i = first, last or #entries, step do
    if at >= most or (budget < #entries[i] and #answer > 3) then return answer end
    answer[#answer + 1], budget, at = entries[i], budget - #entries[i], at + 1
  end
  if #entries < 10 then return answer end
end
return answer
