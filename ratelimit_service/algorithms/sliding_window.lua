-- Twin of sliding_window.py.
-- State: {moment from which nothing counts, previous count, current count}. In Redis: integers.

local MAX_REQUESTS = 2^50  -- above it `muldiv` is not exact for the longest windows

local function gone(ends, current, window)
  return ends + window - floor((window - 1) / current)
end

local function state_of(ends, previous, current, window)
  if current > 0 then
    return {gone(ends, current, window), previous, current}
  elseif previous > 0 then
    return {gone(ends - window, previous, window), 0, previous}
  end
end

local function room(ends, previous, current, window, most)
  if current > most then
    ends, previous, current = ends + window, current, 0
  end
  if previous <= most - current then
    return ends - window
  end
  -- As ((most - current + 1) * window - 1) // previous
  local in_view, rest = muldiv(window, most - current + 1, previous)
  return ends - (rest > 0 and in_view or in_view - 1)
end

-- -> the end of the current window, or of a later one before whose begin the clock has stepped back; the counts
local function counts_of(state, window, now)
  local ends = now - now % window + window
  if not state or state[1] <= now then
    return ends, 0, 0
  end
  local last = state[1] - 1
  last = last - last % window
  if last < ends then
    return ends, state[3], 0
  end
  return last, state[2], state[3]
end

local function hit(state, limit, cost, now)
  local window = limit.window
  local most = limit.requests + limit.exceed
  local ends, previous, current = counts_of(state, window, now)
  local in_view = min(ends - now, window)
  if state and state[1] <= now then
    state = nil
  end
  local before = muldiv(in_view, previous, window) + current
  local used = before + cost

  local allowed = used <= most
  if cost > 0 and (allowed or (limit.count_refused == 1 and cost <= most)) then
    current = allowed and current + cost or max(current, min(current + cost, 2 * most, MAX_REQUESTS))
    state = {gone(ends, current, window), previous, current}
  elseif cost < 0 then
    allowed = true
    current = current + cost
    if current < 0 then
      previous, current = max(0, previous + current), 0
    end
    state = state_of(ends, previous, current, window)
    if state and state[1] <= now then
      state = nil
    end
  end

  local left = most - muldiv(in_view, previous, window) - current
  local retry = 0
  if not allowed then
    retry = cost > most and NEVER or room(ends, previous, current, window, most - cost) - now
  end
  return state, allowed and 1 or 0, max(0, most - before), max(left, 0), state and state[1] - now or 0, retry
end

local function owe(state, limit, cost, now)
  local ends, previous, current = counts_of(state, limit.window, now)
  return state_of(ends, previous, max(current, min(current + cost, MAX_REQUESTS)), limit.window)
end

local function ahead(limit)
  return 3 * limit.window
end

local function clamp(state, limit, now)
  local window = limit.window
  return {gone(now - now % window + 2 * window, state[3], window), state[2], state[3]}
end

local function term_end(state, limit, now)
  return min(now - now % limit.window + limit.window, next_term(limit, now))
end

local function give(state, limit, units, term_end, now)
  if not state or state[1] <= now then
    return state
  end
  local window = limit.window
  local ends = state[1] - 1
  ends = ends - ends % window
  local windows = floor((ends - term_end) / window)
  local previous, current = state[2], state[3]
  if windows == 0 then
    current = max(0, current - units)
  elseif windows == 1 then
    previous = max(0, previous - units)
  else
    return state
  end
  state = state_of(ends, previous, current, window)
  return state and state[1] > now and state or nil
end

return {hit = hit, owe = owe, ahead = ahead, clamp = clamp, term_end = term_end, give = give}
