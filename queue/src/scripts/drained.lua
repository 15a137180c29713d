-- Which processes have stopped: each has acknowledged its word and holds nothing. Those stay so for a while, so that
-- nobody resumes between this look and what is done because of it.
-- KEYS[1] registry, then the quiet key of each process
-- ARGV[1] what a lane's record is called, without the lane  [2] at most this many lanes  [3] how long they stay so, ms
--     then two a process: its pod, the word it was told
-- Returns a figure a process: 1 drained | 0 not, or not told any more
local processes, of = #KEYS - 1, {}
local answer = {}
for at = 1, processes do
  answer[at] = redis.call('GET', KEYS[at + 1]) == ARGV[3 + 2 * at] and 1 or 0
  of[ARGV[2 + 2 * at]] = at
end
-- Records and lists of lanes are not declared, because who they are is read here. They are all of this shard's slot.
local lanes = redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1)
for _, lane in ipairs(lanes) do
  local record = redis.call('HMGET', ARGV[1] .. lane, 'pod', 'quiet', 'keys')
  local at = of[record[1] or '']
  if at and answer[at] == 1 then
    if record[2] ~= ARGV[3 + 2 * at] then answer[at] = 0 end
    for list in string.gmatch(record[3] or '', '[^\n]+') do
      if answer[at] == 1 and redis.call('LLEN', list) > 0 then answer[at] = 0 end
    end
  end
end
-- More lanes than can be looked at: nobody can be sure of anyone.
local certain = #lanes < tonumber(ARGV[2])
for at = 1, processes do
  if not certain then answer[at] = 0 end
  if answer[at] == 1 then redis.call('PEXPIRE', KEYS[at + 1], ARGV[3]) end
end
return answer
