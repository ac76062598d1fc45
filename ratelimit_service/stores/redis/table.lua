-- Writes one entry of a table, or removes it, and removes those whose time is over.
--
-- KEYS[1]  a hash: the text of each entry by its key, and under '' the version, a number that each write makes larger
-- KEYS[2]  a sorted set: the end of each entry in microseconds since the epoch, by its key
-- ARGV     the entry's key, its text, its end (`inf` for ever; one that is over removes it), and how many there may be
-- Returns  1, or 0 when there are too many and nothing was written

local call = redis.call
local texts, ends = KEYS[1], KEYS[2]
local key, text, till, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

for _, over in ipairs(call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 1000)) do
  call('HDEL', texts, over)
  call('ZREM', ends, over)
end
if till ~= 'inf' and tonumber(till) <= now then
  call('HDEL', texts, key)
  call('ZREM', ends, key)
else
  if call('ZCARD', ends) >= most and not call('ZSCORE', ends, key) then
    return 0
  end
  call('HSET', texts, key, text)
  call('ZADD', ends, till, key)
end
local version = math.max(now, (tonumber(call('HGET', texts, '')) or 0) + 1)
call('HSET', texts, '', version)

-- Never a key without an expiry, but for an entry without an end. An hour later, since the clocks of instances differ.
local last = tonumber(call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]) or now
for _, name in ipairs(KEYS) do
  if last == math.huge then
    call('PERSIST', name)
  else
    call('PEXPIREAT', name, math.ceil(last / 1000) + 3600000)
  end
end
return 1
