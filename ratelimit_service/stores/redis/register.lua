-- The register of regions at home, as floors.py says: tells a record, and returns the whole.
--
-- KEYS[1]  a hash: `version`; and of each record, whose name is its region, the name of its Redis and the digest of its
--          shares, `record NAME`, a JSON text, and `told NAME`, when it was told last
-- KEYS[2]  a hash: the shares of each digest, a JSON text
-- ARGV[1]  now in microseconds, or 0 for the time of Redis
-- ARGV[2]  the name of a record, to be told again if it is there; or empty
-- To change something, also:
-- ARGV[3]  the version that was read; if it is another one by now nothing is changed
-- ARGV[4]  the record with the name of ARGV[2], ARGV[5] and ARGV[6] the digest of its shares and these
-- ARGV[7]  and on: names of records, each with the record that it becomes, or with nothing if it is removed
-- Returns  now; then the first hash, after the change

local call = redis.call
local KEPT = '34560000000'  -- milliseconds, 400 days: what is known of a region that is cut off

local now, own = tonumber(ARGV[1]), ARGV[2]
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local told = string.format('%.0f', now)

local function remove_shares()
  local used = {}
  for _, name in ipairs(call('HKEYS', KEYS[1])) do
    used[string.match(name, '[^|]*$')] = true
  end
  for _, digest in ipairs(call('HKEYS', KEYS[2])) do
    if not used[digest] then
      call('HDEL', KEYS[2], digest)
    end
  end
end

if #ARGV == 2 then
  if own ~= '' and call('HEXISTS', KEYS[1], 'record ' .. own) == 1 then
    call('HSET', KEYS[1], 'told ' .. own, told)
  end
elseif (call('HGET', KEYS[1], 'version') or '0') == ARGV[3] then
  call('HINCRBY', KEYS[1], 'version', 1)
  call('HSET', KEYS[1], 'record ' .. own, ARGV[4], 'told ' .. own, told)
  call('HSET', KEYS[2], ARGV[5], ARGV[6])
  for i = 7, #ARGV, 2 do
    if ARGV[i + 1] ~= '' then
      call('HSET', KEYS[1], 'record ' .. ARGV[i], ARGV[i + 1])
    else
      call('HDEL', KEYS[1], 'record ' .. ARGV[i], 'told ' .. ARGV[i])
    end
  end
  remove_shares()
end
call('PEXPIRE', KEYS[1], KEPT)
call('PEXPIRE', KEYS[2], KEPT)
return {now, call('HGETALL', KEYS[1])}
