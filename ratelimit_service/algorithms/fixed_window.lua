-- Twin of fixed_window.py.
-- State: {end of the window, count}. In Redis: integers.

local CEILING = 2^52

local function hit(state, limit, cost, now)
  local window = limit.window
  local requests = limit.requests
  local most = requests + limit.exceed
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

  if cost <= 0 then
    if count <= 0 then
      return nil, 1, most, 0, first_request and 0 or ends - now, 0
    end
    local left = most - count
    if cost < 0 then
      return {ends, count}, 1, max(left, 0), 0, reset, 0
    end
    return state, left >= 0 and 1 or 0, max(left, 0), 0, reset, left >= 0 and 0 or reset
  end

  local over = between(0, count - requests, cost)
  if count <= most then
    return {ends, count}, 1, most - count, over, ends - now, 0
  end
  local left = most - before
  if limit.count_refused == 1 then
    state = {ends, min(count, CEILING)}
    reset = ends - now
    left = 0
  end
  local retry = cost <= most and ends - now or NEVER
  return state, 0, max(left, 0), over, reset, retry
end

return {load = load_integers, hit = hit, save = save_integers}
