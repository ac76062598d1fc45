-- Writes one entry of a table, or removes it, and removes those whose time is over.
--
-- KEYS[1]  a hash: the text of each entry by its key, and under '' the version, a number that each write makes larger
-- KEYS[2]  a sorted set: the end of each entry in microseconds since the epoch, by its key
-- KEYS[3]  only where entries have a past: a hash, the last texts of this entry by their numbers
-- ARGV     the entry's key, its text, its end (`inf` for ever; one that is over removes it), and how many there may be;
--          then, only with KEYS[3]: what the entry must begin with now (empty: there must be none), the number of the
--          text, and how many texts and how many bytes of them the past has, the new one in any case
-- Returns  1, or 0 when there are too many and -1 when the entry is another one; then nothing was written

local call = redis.call
local texts, ends, past = KEYS[1], KEYS[2], KEYS[3]
local key, text, till, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

for _, over in ipairs(call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 1000)) do
  call('HDEL', texts, over)
  call('ZREM', ends, over)
end
if past then
  local present, expected = call('HGET', texts, key) or '', ARGV[5]
  if string.sub(present, 1, #expected) ~= expected or (expected == '' and present ~= '') then
    return -1
  end
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

if past then
  local number, numbers, bytes = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
  call('HSET', past, number, text)
  local kept = call('HKEYS', past)
  table.sort(kept, function(one, other) return tonumber(one) > tonumber(other) end)
  for index, each in ipairs(kept) do
    bytes = bytes - call('HSTRLEN', past, each)
    if index > 1 and (index > numbers or bytes < 0) then
      call('HDEL', past, each)
    end
  end
  if till == 'inf' then
    call('PERSIST', past)
  else
    call('PEXPIREAT', past, math.ceil(tonumber(till) / 1000))
  end
end

-- Never a key without an expiry, but for an entry without an end. An hour later, since the clocks of instances differ.
local last = tonumber(call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]) or now
for index = 1, 2 do
  if last == math.huge then
    call('PERSIST', KEYS[index])
  else
    call('PEXPIREAT', KEYS[index], math.ceil(last / 1000) + 3600000)
  end
end
return 1
