-- One step of an exchange of counts between regions. It follows the head of batch.lua, with the twin of synced.py.
--
-- ARGV[1]  the step; ARGV[2]  now in microseconds, or 0 for the time of Redis; ARGV[3]  the end of the window
-- In a region's Redis KEYS[1] is a counter:
--   collect                           returns what this region has counted
--   deposit, ARGV[4] what the others have counted
-- At home KEYS[1] is a hash of what each region has counted in the window:
--   exchange, ARGV[4] a region, ARGV[5] its count          returns what the others have counted

local KEPT = 60000000  -- that the hash outlives its window: clocks differ

local step, now, ends = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

if step == 'exchange' then
  local region, others = ARGV[4], 0
  call('HSET', KEYS[1], region, ARGV[5])
  call('PEXPIRE', KEYS[1], milliseconds(max(0, ends - now) + KEPT))
  local counts = call('HGETALL', KEYS[1])
  for i = 1, #counts, 2 do
    others = others + (counts[i] == region and 0 or tonumber(counts[i + 1]))
  end
  return others
end

local synced = twin('synced')
local found = redis.pcall('GET', KEYS[1])
local state = type(found) == 'string' and integers(pcall(unpack_integers, found)) or nil
local after, own
if step == 'collect' then
  after, own = synced.collect(state, ends, now)
else
  after = synced.deposit(state, ends, tonumber(ARGV[4]), now)
end
if after ~= state then
  call('SET', KEYS[1], pack_integers(unpack(after)), 'KEEPTTL')
end
return own
