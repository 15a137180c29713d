-- Renew the heartbeats of a process' lanes. A missing heartbeat is made anew, but only by the lease's holder.
-- KEYS[1] registry, then two a lane: record, heartbeat
-- ARGV[1] ttl ms  [2] breaker states of the process, then three a lane: lane, token, oldest job in flight
-- Returns {seconds, microseconds, 1 or 0 (lost) a lane}
local now = redis.call('TIME')
local expiry = now[1] * 1000 + math.floor(now[2] / 1000) + tonumber(ARGV[1])
local answer = { now[1], now[2] }
for lane = 1, (#KEYS - 1) / 2 do
  local record, heartbeat = KEYS[2 * lane], KEYS[2 * lane + 1]
  local id, token, oldest = ARGV[3 * lane], ARGV[3 * lane + 1], ARGV[3 * lane + 2]
  local held = redis.call('HGET', record, 'token') == token
  if held then
    -- Not refused under maxmemory, and as the first write it lets the others through.
    redis.call('PEXPIRE', heartbeat, ARGV[1])
    redis.call('SET', heartbeat, oldest, 'PX', ARGV[1])
    redis.call('ZADD', KEYS[1], expiry, id)
    if ARGV[2] ~= '' then redis.call('HSET', record, 'breakers', ARGV[2]) end
  end
  answer[#answer + 1] = held and 1 or 0
end
return answer
