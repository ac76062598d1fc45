-- Twin of fixed_window.py.
-- State: {end of the window, count}. In Redis: integers.

local CEILING = 2^52

-- The end of a window of a calendar. Of the clock of the service that has sent the edges, the first is the begin of the
-- present window, and the others are the ends of this one and of the next two. So the clocks may differ by a window. A
-- clock that is further behind takes all before the first edge as one window; after the last one, which it reaches when
-- it is further ahead, windows are equally long.
local function calendar_end(limit, now)
  for _, edge in ipairs(limit.edges) do
    if edge > now then
      return edge
    end
  end
  local last = limit.edges[#limit.edges]
  return now - (now - last) % limit.window + limit.window
end

local function end_of(limit, now)
  local window = limit.window
  if limit.edges then
    return calendar_end(limit, now)
  end
  return limit.first_request == 1 and now + window or now - now % window + window
end

local function hit(state, limit, cost, now)
  local most = limit.requests + limit.exceed
  local first_request = limit.first_request == 1
  local before, ends, reset = 0, nil, nil
  if state and state[1] > now then
    ends, before = state[1], state[2]
    reset = ends - now
  else
    state = nil
    ends = end_of(limit, now)
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
  if limit.count_refused == 1 or (limit.count_refused == 2 and before <= most) then
    return {ends, min(count, CEILING)}, 0, room, 0, ends - now, retry
  end
  return state, 0, room, room, reset, retry
end

local function owe(state, limit, cost, now)
  if state and state[1] > now then
    return {state[1], min(state[2] + cost, CEILING)}
  end
  return {end_of(limit, now), cost}
end

-- The end of the next window, of the one whose end is the latest.
local function latest(limit, now)
  return end_of(limit, limit.first_request == 1 and now + limit.window or end_of(limit, now))
end

local function ahead(limit, now)
  return limit.edges and latest(limit, now) - now or 2 * limit.window
end

local function clamp(state, limit, now)
  return {latest(limit, now), state[2]}
end

local function term_end(state, limit, now)
  return min(state and state[1] > now and state[1] or end_of(limit, now), next_term(limit, now))
end

-- The start of the window with this end; of a calendar's that the edges do not have, its end, so that nothing is given.
local function start_of(limit, ends)
  if not limit.edges then
    return ends - limit.window
  end
  for i = 2, #limit.edges do
    if limit.edges[i] == ends then
      return limit.edges[i - 1]
    end
  end
  return ends
end

local function give(state, limit, units, term_end, now)
  if not state or state[1] <= now then
    return state
  end
  local ends, count = state[1], state[2]
  if term_end <= start_of(limit, ends) or term_end > ends then
    return state
  end
  return count > units and {ends, count - units} or nil
end

return {hit = hit, owe = owe, ahead = ahead, clamp = clamp, term_end = term_end, give = give}
