-- Twin of token_bucket.py. There what is missing is one large integer; here it is {microseconds, L-ths of one}.
-- State: {moment when the bucket is full, L-ths of its last microsecond}. In Redis: integers.

-- The time in which the bucket gets this number of tokens.
local function time_of(tokens, limit)
  return muldiv(tokens, limit.window, limit.requests)
end

-- The number of whole tokens that it gets in this time.
local function tokens_of(time, part, limit)
  if time < 0 then
    return 0
  end
  local tokens, rest = muldiv(time, limit.requests, limit.window)
  return tokens + floor((rest + part) / limit.window)
end

-- a - b, in L-ths: the part stays from 0 to L - 1, the microseconds may be below 0.
local function minus(a, a_part, b, b_part, rate)
  if a_part < b_part then
    return a - b - 1, a_part + rate - b_part
  end
  return a - b, a_part - b_part
end

local function plus(a, a_part, b, b_part, rate)
  if a_part + b_part >= rate then
    return a + b + 1, a_part + b_part - rate
  end
  return a + b, a_part + b_part
end

local function hit(state, limit, cost, now)
  local rate = limit.requests
  if state and state[1] <= now then
    state = nil
  end
  if rate == 0 then
    return state, cost <= 0 and 1 or 0, 0, 0, state and state[1] - now or 0, cost > 0 and NEVER or 0
  end

  local burst = limit.burst > 0 and limit.burst or rate
  local most = burst + limit.exceed
  local full, full_part = limit.full, limit.full_part
  if not full then
    full, full_part = time_of(most, limit)
    limit.full, limit.full_part = full, full_part
  end
  local missing, part = 0, 0
  if state then
    missing = state[1] - now
    if state[2] > 0 and state[2] < rate then
      missing, part = missing - 1, state[2]
    end
  end

  local room, room_part = minus(full, full_part, missing, part, rate)
  local allowed = cost < 0
  local fits, retry, charged = 0, 0, cost < 0
  if cost < 0 then
    local back, back_part = time_of(-cost, limit)
    missing, part = minus(missing, part, back, back_part, rate)
    if missing < 0 then
      missing, part = 0, 0
    end
  else
    fits = tokens_of(room, room_part, limit)
    allowed = room >= 0 and cost <= fits
    if cost > most then
      retry = NEVER
    elseif cost > 0 and (allowed or limit.count_refused == 1) then
      local time, time_part = time_of(cost, limit)
      local after, after_part = plus(missing, part, time, time_part, rate)
      if not allowed then
        local twice, twice_part = plus(full, full_part, full, full_part, rate)
        if after > twice or (after == twice and after_part > twice_part) then
          after, after_part = twice, twice_part
        end
      end
      if after > missing or (after == missing and after_part > part) then
        missing, part = after, after_part
        charged = true
      end
    end
  end

  if charged then
    if missing > 0 or part > 0 then
      state = {now + missing + (part > 0 and 1 or 0), part}
    else
      state = nil
    end
  end
  local reset = missing + (part > 0 and 1 or 0)
  if allowed and cost >= 0 then
    local left = fits - cost
    return state, 1, fits, left, reset, 0
  end
  room, room_part = minus(full, full_part, missing, part, rate)
  local left = tokens_of(room, room_part, limit)
  if allowed then
    return state, 1, fits, left, reset, 0
  end
  if retry == 0 then
    local time, time_part = time_of(cost, limit)
    local wait, wait_part = minus(time, time_part, room, room_part, rate)
    retry = wait_part > 0 and wait + 1 or wait
  end
  return state, 0, fits, left, reset, retry
end

-- The time until the moment of a state, which is to come, in microseconds and L-ths of one.
local function missing_until(state, rate, now)
  if state[2] > 0 and state[2] < rate then
    return state[1] - now - 1, state[2]
  end
  return state[1] - now, 0
end

-- What is missing with the largest debt.
local function most_owed(limit)
  local rate = limit.requests
  local full, part = time_of((limit.burst > 0 and limit.burst or rate) + limit.exceed, limit)
  if full >= limit.window then
    return plus(full, part, full, part, rate)
  end
  return plus(full, part, limit.window, 0, rate)
end

local function owes_most(state, limit, now)
  if not state or limit.requests == 0 then
    return false
  end
  local missing, part = missing_until(state, limit.requests, now)
  local most, most_part = most_owed(limit)
  return missing > most or (missing == most and part >= most_part)
end

-- The state with a cost charged whatever there is room for, until so much is missing at most.
local function owed(state, limit, cost, most, most_part, now)
  local rate = limit.requests
  if rate == 0 then
    return state
  end
  local missing, part = 0, 0
  if state and state[1] > now then
    missing, part = missing_until(state, rate, now)
  end
  if missing > most or (missing == most and part >= most_part) then
    return state
  end
  -- More tokens than a bucket has, and those of a window, are more than the bound.
  local time, time_part = time_of(min(cost, tokens_of(most, most_part, limit) + 1), limit)
  missing, part = plus(missing, part, time, time_part, rate)
  if missing > most or (missing == most and part > most_part) then
    missing, part = most, most_part
  end
  return {now + missing + (part > 0 and 1 or 0), part}
end

local function owe(state, limit, cost, now)
  if limit.requests == 0 then
    return state
  end
  local most, most_part = most_owed(limit)
  return owed(state, limit, cost, most, most_part, now)
end

-- The largest debt that a charge leads to, with a clock a window ahead.
local function deepest(limit)
  local burst = limit.burst > 0 and limit.burst or limit.requests
  local full, part = time_of(burst + limit.exceed, limit)
  local twice, twice_part = plus(full, part, full, part, limit.requests)
  return twice + limit.window, twice_part
end

local function ahead(limit)
  if limit.requests == 0 then
    return math.huge
  end
  local most, part = deepest(limit)
  return most + (part > 0 and 1 or 0)
end

local function clamp(state, limit, now)
  local missing, part = deepest(limit)
  return {now + missing + (part > 0 and 1 or 0), part}
end

local function term_end(state, limit, now)
  return next_term(limit, now)
end

local function leased_from(state, term_end)
  return state and state[1] > term_end and state or {term_end, 0}
end

local function give(state, limit, units, term_end, now)
  if not state or state[1] <= now then
    return state
  end
  local rate = limit.requests
  local back, back_part = time_of(units, limit)
  back = back - max(0, next_term(limit, now) - term_end)
  if back < 0 or (back == 0 and back_part == 0) then
    return state
  end
  local missing, part = missing_until(state, rate, now)
  missing, part = minus(missing, part, back, back_part, rate)
  if missing < 0 or (missing == 0 and part == 0) then
    return nil
  end
  return {now + missing + (part > 0 and 1 or 0), part}
end

return {
  hit = hit, owe = owe, owed = owed, owes_most = owes_most, ahead = ahead, clamp = clamp,
  term_end = term_end, leased_from = leased_from, give = give,
  time_of = time_of, tokens_of = tokens_of, plus = plus, minus = minus, missing_until = missing_until,
}
