-- Counters under the names that envoyproxy/ratelimit gives them: plain integers, so that both count on the same ones.
-- The decision is taken by fixed_window.py, from what was there before.
--
-- KEYS[i]              the counter of the i-th hit
-- ARGV[5 * i - 4 ...]  of the i-th hit: the moment of the service, in microseconds, in the window that the name has;
--                      its cost, the limit, the seconds to live, 1 when a refused hit is charged too
--
-- Returns of each hit its moment, and what was counted before it.

local CEILING = 2^52  -- as in fixed_window.lua

local reply = {}
for i = 1, #KEYS do
  local key = KEYS[i]
  local cost = tonumber(ARGV[5 * i - 3])
  local limit = tonumber(ARGV[5 * i - 2])
  -- A value that is not a number is not envoyproxy's: other programs may use such a name. The next charge replaces it.
  local found = redis.pcall('GET', key)
  local counted = type(found) == 'string' and #found < 20 and string.find(found, '^%-?%d+$')
  local before = counted and math.min(tonumber(found), CEILING) or 0
  if found and not counted and cost > 0 then
    redis.call('DEL', key)
  end
  if cost < 0 then
    if before + cost > 0 then
      redis.pcall('INCRBY', key, cost)  -- of nineteen digits, not all are a number of Redis
    elseif before > 0 then
      redis.call('DEL', key)
    end
  elseif cost > 0 and (ARGV[5 * i] == '1' or before + cost <= limit) then
    if before + cost <= CEILING then
      redis.call('INCRBY', key, cost)
    end
    redis.call('EXPIRE', key, ARGV[5 * i - 1])
  end
  reply[2 * i - 1], reply[2 * i] = ARGV[5 * i - 4], before
end
return reply
