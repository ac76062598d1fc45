-- Twin of pool.py.
-- The state of a pool: as of token_bucket.lua. In Redis: integers.

local bucket = twin('token_bucket')

-- The time until the pool has so many units.
local function room_after(pool, counter, units, now)
  return select(6, bucket.hit(pool, counter, units + counter.requests, now))
end

local function both(one, two)
  return (one == NEVER or two == NEVER) and NEVER or max(one, two)
end

local function either(one, two)
  return (one == NEVER or two == NEVER) and max(one, two) or min(one, two)
end

-- -> state, pool, allowed, room, left, reset_after, retry_after
local function charge(state, pool, limit, cost, now)
  local own, counter, exceed = limit.hit, limit.second, limit.exceed
  local after, allowed, room, left, reset, retry = own(state, limit, cost, now)
  if cost < 0 then
    pool = bucket.hit(pool, counter, room - left, now)
  end
  local free = select(3, bucket.hit(pool, counter, 0, now)) - counter.requests
  if limit.strict then
    room = min(room, exceed + max(0, free))
    left = min(left, exceed + max(0, free - max(0, cost)))
  end
  if cost <= 0 then
    return after, pool, allowed, room, left, reset, retry
  end

  if cost <= room - exceed or (allowed == 1 and cost <= free - limit.reserve) then
    pool = bucket.hit(pool, counter, min(cost, free + counter.requests), now)
    return after, pool, 1, room, left, reset, 0
  end

  local by_right_after = select(6, own(state, limit.right, cost, now))
  if limit.strict then
    by_right_after = both(by_right_after, room_after(pool, counter, cost, now))
  end
  local on_loan_after = both(retry, room_after(pool, counter, cost + limit.reserve, now))
  reset = select(5, own(state, limit, 0, now))
  return state, pool, 0, room, room, reset, either(by_right_after, on_loan_after)
end

local function owe(state, pool, limit, cost, now)
  local counter, exceed = limit.second, limit.exceed
  local state, _, _, room = limit.hit(state, limit, 0, now)
  if cost > 0 then
    pool = bucket.hit(pool, counter, min(cost, (select(4, bucket.hit(pool, counter, 0, now)))), now)
    state = limit.owe(state, limit, cost, now)
  end
  local _, _, allowed, _, left, reset, retry = charge(state, pool, limit, 0, now)
  local over = max(0, min(cost, cost + exceed - room))
  return state, pool, allowed == 1 and -3 or -4, over, left, reset, retry
end

local function right_of(limit)
  local right = {}
  for name, value in pairs(limit) do
    right[name] = value
  end
  right.exceed = 0
  return right
end

local function read(limit, batch, from, now)
  local requests, burst = batch[from + 1], batch[from + 2]
  local counter = {
    requests = requests, window = limit.window, burst = requests + burst, exceed = 0, count_refused = 0,
    clamp = bucket.clamp,
  }
  counter.ahead = bucket.ahead(counter, now)
  limit.second, limit.right = counter, right_of(limit)
  limit.strict, limit.reserve = batch[from] == 1, batch[from + 3]
  return from + 4
end

return {read = read, charge = charge, owe = owe}
