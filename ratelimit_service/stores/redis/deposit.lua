-- Deposits what home has granted into the counter of a region, or collects what is left there of an ended lease. It
-- follows the head of batch.lua, with the twin of leased.py.
--
-- KEYS[1]  the counter
-- ARGV[1]  a JSON list of integers: now in microseconds, or 0 for the time of Redis; the length of home's terms; and of
--          a deposit the fields of leased.Deposit
-- Returns  of a deposit nothing; what was collected: units, and the end of their term by the clock of home

local leased = twin('leased')
local numbers = cjson.decode(ARGV[1])
local now, term = numbers[1], numbers[2]
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local found = redis.pcall('GET', KEYS[1])
local state = type(found) == 'string' and integers(pcall(unpack_integers, found)) or nil
if #numbers > 2 then
  save_integers(KEYS[1], leased.deposit(state, term, {unpack(numbers, 3)}, now), {jitter = 0}, now)
  return
end
local after, units, term_end = leased.collect(state, term, now)
if after ~= state then
  save_integers(KEYS[1], after, {jitter = 0}, now)
end
return {units, term_end}
