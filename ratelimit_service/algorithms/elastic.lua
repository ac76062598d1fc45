-- Twin of elastic.py.
-- The state of a pool: as of token_bucket.lua. In Redis: integers.

local bucket = twin('token_bucket')

-- The time until the pool has so many units.
local function room_after(pool, elastic, units, now)
  return select(6, bucket.hit(pool, elastic.counter, units + elastic.counter.requests, now))
end

local function both(one, two)
  return (one == NEVER or two == NEVER) and NEVER or max(one, two)
end

local function either(one, two)
  return (one == NEVER or two == NEVER) and max(one, two) or min(one, two)
end

-- -> state, pool, allowed, room, left, reset_after, retry_after; `own` is the hit of the algorithm
local function hit(own, state, pool, limit, cost, now)
  local elastic, exceed = limit.elastic, limit.exceed
  local counter = elastic.counter
  local after, allowed, room, left, reset, retry = own(state, limit, cost, now)
  if cost < 0 then
    pool = bucket.hit(pool, counter, room - left, now)
  end
  local free = select(3, bucket.hit(pool, counter, 0, now)) - counter.requests
  if elastic.strict then
    room = min(room, exceed + max(0, free))
    left = min(left, exceed + max(0, free - max(0, cost)))
  end
  if cost <= 0 then
    return after, pool, allowed, room, left, reset, retry
  end

  if cost <= room - exceed or (allowed == 1 and cost <= free - elastic.reserve) then
    pool = bucket.hit(pool, counter, min(cost, free + counter.requests), now)
    return after, pool, 1, room, left, reset, 0
  end

  local by_right_after = select(6, own(state, elastic.right, cost, now))
  if elastic.strict then
    by_right_after = both(by_right_after, room_after(pool, elastic, cost, now))
  end
  local on_loan_after = both(retry, room_after(pool, elastic, cost + elastic.reserve, now))
  reset = select(5, own(state, limit, 0, now))
  return state, pool, 0, room, room, reset, either(by_right_after, on_loan_after)
end

local function right_of(limit)
  local right = {}
  for name, value in pairs(limit) do
    right[name] = value
  end
  right.exceed = 0
  return right
end

-- The numbers of an elastic limit, which begin at `from`; its pool is the one of that number.
local function read(batch, from, window, number)
  local requests, burst = batch[from + 1], batch[from + 2]
  return {
    number = number,
    strict = batch[from] == 1,
    reserve = batch[from + 3],
    counter = {requests = requests, window = window, burst = requests + burst, exceed = 0, count_refused = 0},
  }
end

-- Makes the elastic limits of a batch charge their pools too, whose keys follow the first `before` ones. `load` returns
-- the state of the key of a number, and whether it differs from the stored one. A pool is loaded at its first hit, and
-- `save` writes each once; `restore` makes all as they were when they had these `states`.
local function open(limits, keys, before, load, now)
  local pools = {}  -- by key
  for _, limit in ipairs(limits) do
    local elastic = limit.elastic
    if elastic then
      local counter = elastic.counter
      counter.ahead, counter.settle = bucket.ahead(counter, now), bucket.settle
      elastic.right = right_of(limit)
      local own, key = limit.hit, keys[before + elastic.number]
      limit.hit = function(state, _, cost)
        local pool = pools[key]
        if not pool then
          pool = {}
          pool.state, pool.changed = load(before + elastic.number, counter)
          pools[key] = pool
        end
        local after, pool_after, allowed, room, left, reset, retry = hit(own, state, pool.state, limit, cost, now)
        pool.changed = pool.changed or pool_after ~= pool.state
        pool.state = pool_after
        return after, allowed, room, left, reset, retry
      end
    end
  end

  local function save()
    for key, pool in pairs(pools) do
      if pool.changed then
        save_integers(key, pool.state, {jitter = 0}, now)
      end
    end
  end

  local function states()
    local found = {}
    for key, pool in pairs(pools) do
      found[key] = {state = pool.state, changed = pool.changed}
    end
    return found
  end

  local function restore(found)
    pools = found
  end

  return {save = save, states = states, restore = restore}
end

return {read = read, open = open}
