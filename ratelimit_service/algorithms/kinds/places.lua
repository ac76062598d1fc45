-- Twin of places.py. Each hit reads and writes a few members of a sorted set, however many places there are.
-- State: {when the last place ends, KEY, the places USED, the VERSION of the set}. A charge changes the set at once; what
-- is charged together may have to be undone, so the state of an earlier version undoes the changes after it.
-- In Redis: a sorted set. The member of a holder is its digest, 8 bytes; its score as in Python. One member more, the
-- empty text, has the number of places in use as its score, negative, and so is the first.
-- limit: `requests` places; `window`, for which one is held; `holder`, a member.

local SHARE, STEP = 2^14, 10000
local KEY, USED, VERSION = 2, 3, 4
local changes = {}  -- by key: {member, score before it or false, places used before it}

local function end_of(score)
  return floor(score / SHARE) * STEP
end

local function last_end(key)
  return end_of(tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]))
end

local function load(key, _, now)
  changes[key] = {}
  local found = redis.pcall('ZRANGE', key, 0, 1, 'WITHSCORES')
  local used, first = found[1] == '' and -found[2], tonumber(found[4])
  if not (used and first and used > 0) then
    if not looking and (found.err or #found > 0) then
      call('DEL', key)  -- what is not a counter of ours
    end
    return {0, key, 0, 0}
  end
  if end_of(first) <= now then
    local edge = '(' .. format('%.0f', (floor(now / STEP) + 1) * SHARE)
    local places, single = 0, call('ZCARD', key) - 1 == used
    if not single then
      local gone = call('ZRANGEBYSCORE', key, 0, edge, 'WITHSCORES')
      for i = 2, #gone, 2 do
        places = places + gone[i] % SHARE
      end
    end
    local removed = call(looking and 'ZCOUNT' or 'ZREMRANGEBYSCORE', key, 0, edge)
    places = single and removed or places  -- one each: they need not be read, which takes most of the time
    used = used - places
    if not looking then
      tell(key, places)  -- that were never given back
      call(unpack(used > 0 and {'ZADD', key, -used, ''} or {'DEL', key}))
    end
    if used == 0 then
      return {0, key, 0, 0}
    end
  end
  return {last_end(key), key, used, 0}
end

-- Gives the holder another score, or none. A set without holders stays, with its expiry, until it is saved: the change
-- may be undone.
local function put(key, used, member, score)
  if score then
    call('ZADD', key, -used, '', score, member)
  else
    call('ZREM', key, member)
    call('ZADD', key, -used, '')
  end
end

local function undo_after(state)
  local made = changes[state[KEY]]
  for i = #made, state[VERSION] + 1, -1 do
    local member, score, used = unpack(made[i], 1, 3)
    if used > 0 then
      put(state[KEY], used, member, score)
    else
      call('DEL', state[KEY])
    end
    made[i] = nil
  end
end

local function change(state, member, before, score, used)
  local key, made = state[KEY], changes[state[KEY]]
  put(key, used, member, score)
  made[#made + 1] = {member, before, state[USED]}
  local last = 0
  if used > 0 then
    -- Only that of the one that ended last has to be looked for.
    local same = before and end_of(before) >= state[1]
    last = same and last_end(key) or max(state[1], score and end_of(score) or 0)
  end
  return {last, key, used, #made}
end

local function hit(state, limit, cost, now)
  undo_after(state)
  local key, used, places = state[KEY], state[USED], limit.requests
  local member = limit.holder
  local before = cost ~= 0 and used > 0 and tonumber(call('ZSCORE', key, member) or nil)
  local mine = before and before % SHARE or 0
  local short = used - mine + cost - places
  local room = max(0, places - used + mine)
  if cost > mine and short > 0 then
    local retry = NEVER
    if cost <= places then
      local first = call('ZRANGE', key, 1, 1, 'WITHSCORES')
      local enough = first[1] ~= member and first[2] % SHARE >= short
      retry = (enough and end_of(tonumber(first[2])) or state[1]) - now
    end
    return state, 0, room, max(0, places - used), used > 0 and state[1] - now or 0, retry
  end
  if cost > 0 then
    mine = max(mine, cost)
    local score = floor((now + limit.window) / STEP) * SHARE + mine
    state = change(state, member, before, score, used - (before and before % SHARE or 0) + mine)
  elseif mine > 0 then
    state = change(state, member, before, false, used - mine)
  end
  used = state[USED]
  return state, 1, room, max(0, places - used), used > 0 and state[1] - now or 0, 0
end

local function save(key, state, limit, now)
  if state[USED] > 0 then
    call('PEXPIRE', key, milliseconds(state[1] - now + limit.window))
  else
    call('DEL', key)
  end
end

local function ahead(limit)
  return 2 * limit.window
end

-- The same holders and places, none held for longer than one taken now.
local function clamp(state, limit, now)
  local key, latest = state[KEY], floor((now + limit.window) / STEP)
  local late = call('ZRANGEBYSCORE', key, (latest + 1) * SHARE, '+inf', 'WITHSCORES')
  for i = 1, #late, 2 do
    call('ZADD', key, latest * SHARE + late[i + 1] % SHARE, late[i])
  end
  return {latest * STEP, key, state[USED], state[VERSION]}
end

-- The two halves of the holder's digest.
local function read(limit, batch, from)
  limit.holder = struct.pack('>I4I4', batch[from], batch[from + 1])
  return from + 2
end

return {read = read, load = load, hit = hit, save = save, ahead = ahead, clamp = clamp}
