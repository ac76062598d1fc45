-- Writes one ban, and removes those whose time is over.
--
-- KEYS[1]  a hash: the JSON of each ban by its key, and under '' the version, a number that each write makes larger
-- KEYS[2]  a sorted set: the end of each ban in microseconds since the epoch, by its key
-- ARGV     the ban's key, its JSON, its end (`inf` for ever), and how many bans there may be
-- Returns  1, or 0 when there are too many and nothing was written

local call = redis.call
local bans, ends = KEYS[1], KEYS[2]
local key, text, till, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

for _, over in ipairs(call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 1000)) do
  call('HDEL', bans, over)
  call('ZREM', ends, over)
end
if call('ZCARD', ends) >= most and not call('ZSCORE', ends, key) then
  return 0
end
call('HSET', bans, key, text)
call('ZADD', ends, till, key)
local version = math.max(now, (tonumber(call('HGET', bans, '')) or 0) + 1)
call('HSET', bans, '', version)

-- Never a key without an expiry, but for a ban without an end. An hour later, since the clocks of instances differ.
local last = tonumber(call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2])
for _, name in ipairs(KEYS) do
  if last == math.huge then
    call('PERSIST', name)
  else
    call('PEXPIREAT', name, math.ceil(last / 1000) + 3600000)
  end
end
return 1
