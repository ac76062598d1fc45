-- Twin of queue.py; of a hit that has to wait `allowed` is 2, and its wait stands in place of retry_after.
-- State: as for token_bucket.

local bucket = twin('token_bucket')
local plus, minus = bucket.plus, bucket.minus

local function read(limit, batch, from)
  limit.max_delay, limit.max_wait, limit.last_end = batch[from], batch[from + 1], batch[from + 2]
  return from + 3
end

-- How many hits of cost 1 could still have a place.
local function left_of(limit, missing, part)
  local room, room_part = minus(limit.max_wait, 0, missing, part, limit.requests)
  return room < 0 and 0 or bucket.tokens_of(room, room_part, limit) + 1
end

local function hit(state, limit, cost, now)
  local rate = limit.requests
  if rate == 0 then
    return bucket.hit(state, limit, cost, now)
  end
  if state and state[1] <= now then
    state = nil
  end
  local wait, missing, part = 0, 0, 0
  if state then
    wait = state[1] - now
    missing, part = bucket.missing_until(state, rate, now)
  end
  if cost < 0 and limit.last_end > 0 and limit.last_end ~= now + wait then
    return state, 0, 0, left_of(limit, missing, part), wait, 0
  end
  if cost > rate or (cost >= 0 and wait > limit.max_wait) then
    return state, 0, 0, left_of(limit, missing, part), wait, cost > rate and NEVER or wait - limit.max_wait
  end
  if cost == 0 then
    local left = left_of(limit, missing, part)
    return state, 1, left, left, wait, 0
  end
  local time, time_part = bucket.time_of(cost < 0 and -cost or cost, limit)
  if cost < 0 then
    missing, part = minus(missing, part, time, time_part, rate)
  else
    missing, part = plus(missing, part, time, time_part, rate)
  end
  if missing < 0 or (missing == 0 and part == 0) then
    local left = left_of(limit, 0, 0)
    return nil, 1, left, left, 0, 0
  end
  local reset = missing + (part > 0 and 1 or 0)
  local left = left_of(limit, missing, part)
  local queued = wait > 0 and cost > 0
  return {now + reset, part}, queued and 2 or 1, left, left, reset, queued and wait or 0
end

local function owe(state, limit, cost, now)
  return bucket.owed(state, limit, cost, limit.max_delay + limit.window, 0, now)
end

local function ahead(limit)
  return limit.requests == 0 and math.huge or limit.max_delay + 2 * limit.window
end

local function clamp(state, limit, now)
  return {now + limit.max_delay + 2 * limit.window, 0}
end

return {read = read, hit = hit, owe = owe, ahead = ahead, clamp = clamp}
