-- Twin of reserved.py.
-- A memo: {when it is forgotten, when it was made, the units, or SETTLED}. The state of a bucket has groups behind it,
-- each {moment, least backlog since}; that of a window the moment when it began. In Redis: integers.

local REMEMBERED, SETTLED, MOST_GROUPS = 10000000, -1, 16
local RESERVED, UNKNOWN, SETTLED_BEFORE, SETTLED_NOW = 3, -3, -5, -7
local bucket = twin('token_bucket')

-- What is left of the state: nothing of a bucket that is full, or of a window that is over.
local function present(state, now)
  return state and state[1] > now and state or nil
end

-- -> the state as the algorithm reads it, and when that of a window began
local function parted(state, limit, now)
  if limit.bucket then
    return state, now
  elseif not state or #state < 3 then
    return nil, now
  end
  return {unpack(state, 1, #state - 1)}, state[#state]
end

-- The state as the algorithm reads it.
local function own(state, limit, now)
  return (parted(present(state, now), limit, now))
end

-- -> the state of a window, which is a new one, with that moment behind it
local function begun(own, since)
  if own then
    own[#own + 1] = since
  end
  return own
end

local function in_force(memo, now)
  return memo and memo[3] and memo[1] > now and memo or nil
end

local function backlog(state, limit, now)
  if not state or state[1] <= now then
    return 0
  end
  return (bucket.missing_until(state, limit.requests, now))
end

-- A copy of the groups: moment, low, moment, low ...
local function groups_of(state)
  return state and {unpack(state, 3)} or {}
end

-- The state of a bucket with its groups.
local function joined(state, groups)
  return state and {state[1], state[2], unpack(groups)} or nil
end

local function pass(groups, low)
  local moment
  while #groups > 0 and groups[#groups] >= low do
    moment = groups[#groups - 1]
    groups[#groups] = nil
    groups[#groups] = nil
  end
  if moment then
    groups[#groups + 1], groups[#groups + 2] = moment, low
  end
end

local function open(groups, now, low, hold)
  local at = now
  if #groups > 0 and groups[#groups - 1] >= now then
    at = groups[#groups - 1]
    groups[#groups] = nil
    groups[#groups] = nil
  end
  groups[#groups + 1], groups[#groups + 2] = at, low
  while #groups > 2 and groups[3] <= now - hold do
    table.remove(groups, 1)
    table.remove(groups, 1)
  end
  if #groups > 2 * MOST_GROUPS then
    -- The reservations of one join those before it: one that loses least by that.
    local joins = 3
    for i = 5, #groups - 3, 2 do
      if groups[i + 1] - groups[i - 1] < groups[joins + 1] - groups[joins - 1] then
        joins = i
      end
    end
    table.remove(groups, joins)
    table.remove(groups, joins)
  end
end

-- -> the state of the bucket without groups; these are changed
local function give(state, groups, limit, units, at, now)
  pass(groups, backlog(state, limit, now))
  local index = 0
  for i = 1, #groups, 2 do
    if groups[i] <= at then
      index = i
    end
  end
  if not state or state[1] <= now or index == 0 then
    return state
  end
  local rate, least = limit.requests, groups[index + 1]
  local back, part = bucket.time_of(units, limit)
  if back >= least then
    back, part = least, 0
  end
  local missing, missing_part = bucket.missing_until(state, rate, now)
  missing, missing_part = bucket.minus(missing, missing_part, back, part, rate)
  local given = back + (part > 0 and 1 or 0)
  local left = max(0, least - given)
  for i = 1, #groups, 2 do
    groups[i + 1] = i < index and min(groups[i + 1], left) or max(0, groups[i + 1] - given)
  end
  if missing < 0 or (missing == 0 and missing_part == 0) then
    return nil
  end
  return {now + missing + (missing_part > 0 and 1 or 0), missing_part}
end

-- -> state, memo, allowed, room, left, reset_after, retry_after: 3 in place of allowed, if there is a new reservation
local function charge(state, memo, limit, cost, now)
  memo, state = in_force(memo, now), present(state, now)
  local own, since = parted(state, limit, now)
  if cost > 0 and memo and memo[3] ~= SETTLED then
    local _, _, _, left, reset = limit.hit(own, limit, 0, now)
    return state, {now + limit.hold, memo[2], memo[3]}, 1, left, left, reset, 0
  end
  local after, allowed, room, left, reset, retry = limit.hit(own, limit, cost, now)
  local reserves = cost > 0 and allowed == 1
  if after == own then
    after = state
  elseif limit.bucket then
    local groups = groups_of(state)
    if reserves then
      pass(groups, backlog(state, limit, now))
      open(groups, now, backlog(after, limit, now), limit.hold)
    end
    after = joined(after, groups)
  else
    after = begun(after, since)
  end
  if reserves then
    memo, allowed = {now + limit.hold, max(now, since), cost}, RESERVED
  end
  return after, memo, allowed, room, left, reset, retry
end

-- -> state, memo, got, over, left, reset_after, retry_after: one less in got if a look is denied then; of a reservation
-- `over` is the cost above it, negative what goes back, and got has how long ago it was made
local function owe(state, memo, limit, cost, now)
  memo, state = in_force(memo, now), present(state, now)
  local own, since = parted(state, limit, now)
  local before, over, got = own, 0, SETTLED_BEFORE
  local settled = memo and memo[3] == SETTLED
  local groups = limit.bucket and not settled and groups_of(state)
  if not settled then
    local at, units = memo and memo[2] or now, memo and memo[3] or 0
    over, got = cost - units, memo and SETTLED_NOW - 2 * max(0, now - at) or UNKNOWN
    if cost > units then
      if groups then
        pass(groups, backlog(state, limit, now))
      end
      own = limit.owe(own, limit, over, now)
      if groups and bucket.owes_most(own, limit, now) then
        groups = {}
      end
    elseif cost < units then
      if groups then
        own = give(own, groups, limit, units - cost, at, now)
      elseif at >= since then
        own = limit.give(own, limit, units - cost, at + 1, now)
      end
    end
    if memo or cost > 0 then
      memo = {now + REMEMBERED, at, SETTLED}
    end
  end
  local _, allowed, _, left, reset, retry = limit.hit(own, limit, 0, now)
  if groups then
    state = joined(own, groups)
  elseif own ~= before then
    state = begun(own, since)
  end
  return state, memo, allowed == 1 and got or got - 1, over, left, reset, retry
end

local function reservation(memo, now)
  memo = in_force(memo, now)
  return memo and (memo[3] == SETTLED and 1 or 2) or 0
end

local function read(limit, batch, from, _, algorithm)
  limit.hold, limit.bucket, limit.give = batch[from], batch[from + 1] == 1, twin(algorithm).give
  local clamp = limit.clamp
  if not limit.bucket then
    -- One that a clock that was ahead has charged begins anew.
    limit.clamp = function(state, limit, now)
      local own = parted(state, limit, now)
      return own and begun(clamp(own, limit, now), now)
    end
  end
  return from + 2
end

return {read = read, charge = charge, owe = owe, reservation = reservation, own = own}
