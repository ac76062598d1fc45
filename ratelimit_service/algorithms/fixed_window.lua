-- Twin of fixed_window.py.
-- State: {end of the window, count}. In Redis: integers.

local CEILING = 2^52

local function hit(state, limit, cost, now)
  local window = limit.window
  local most = limit.requests + limit.exceed
  local first_request = limit.first_request == 1
  local before, ends, reset = 0, nil, nil
  if state and state[1] > now then
    ends, before = state[1], state[2]
    reset = ends - now
  else
    state = nil
    ends = first_request and now + window or now - now % window + window
    reset = first_request and 0 or ends - now
  end
  local count = before + cost
  local left = most - count
  local room = max(0, most - before)

  if cost <= 0 then
    if count <= 0 then
      return nil, 1, room, most, first_request and 0 or ends - now, 0
    elseif cost < 0 then
      return {ends, count}, 1, room, max(left, 0), reset, 0
    end
    return state, left >= 0 and 1 or 0, room, room, reset, left >= 0 and 0 or reset
  end

  if left >= 0 then
    return {ends, count}, 1, room, left, ends - now, 0
  end
  local retry = cost <= most and ends - now or NEVER
  if limit.count_refused == 1 then
    return {ends, min(count, CEILING)}, 0, room, 0, ends - now, retry
  end
  return state, 0, room, room, reset, retry
end

local function ahead(limit)
  return 2 * limit.window
end

local function settle(state, limit, now)
  local window = limit.window
  return {limit.first_request == 1 and now + 2 * window or now - now % window + 2 * window, state[2]}
end

return {hit = hit, ahead = ahead, settle = settle}
