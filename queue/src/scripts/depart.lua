-- Take a process that stops, and those that are gone, out of Sidekiq's sight.
-- KEYS[1] processes  [2...] three for one that stops: the process, its work, the same for readers before 6.4.2
-- ARGV[1] identity of the one that stops, or ""  [2...] key and identity of each that may be gone
-- Returns how many were taken out
local out = 0
if ARGV[1] ~= '' then
  out = redis.call('SREM', KEYS[1], ARGV[1])
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
end
for at = 2, #ARGV, 2 do
  -- A process is what its hash says it is; that lapses a minute after its last beat.
  if redis.call('EXISTS', ARGV[at]) == 0 then out = out + redis.call('SREM', KEYS[1], ARGV[at + 1]) end
end
return out
