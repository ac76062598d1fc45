-- Twin of sub_windows.py.
-- State: {moment from which the newest count is too old, newest count, older counts ...}. In Redis: integers.

local NONE = {}

local function may_stay(state, last, room)
  local i = 2
  while i <= last and state[i] <= room do
    room = room - state[i]
    i = i + 1
  end
  return i - 2
end

-- Counts are read from `state` between `first` and `last`: the newest, which is `age` parts old, and the oldest in view.
local function hit(state, limit, cost, now)
  local most = limit.requests + limit.exceed
  local kept = limit.parts + 1
  local part = ceil(limit.window / limit.parts)
  local index = floor(now / part)
  local first, last = 2, 1
  local age = 0
  if state and state[1] > now then
    local newest = ceil(state[1] / part) - kept
    if newest > index then
      index = newest
    end
    age = index - newest
    last = min(#state, 1 + kept - age)
  else
    state = nil
  end
  local before = 0
  for i = first, last do
    before = before + state[i]
  end
  local used = before + cost

  local allowed = used <= most
  local total = before
  if cost > 0 and (allowed or (limit.count_refused == 1 and cost <= most)) then
    local newest = (age == 0 and first <= last) and state[2] or 0
    local charged = max(newest, min(newest + cost, most + 1))
    local fresh = {(index + kept) * part, charged, unpack(state or NONE, age == 0 and 3 or 2, last)}
    if first <= last then
      for _ = 1, age - 1 do
        table.insert(fresh, 3, 0)
      end
    end
    total = before - newest + charged
    state, last, age = fresh, #fresh, 0
  elseif cost < 0 then
    allowed = true
    local back = -cost
    while first <= last and state[first] <= back do
      back = back - state[first]
      first = first + 1
    end
    if first > last then
      state, total = nil, 0
    else
      age = age + first - 2
      local fresh = {(index - age + kept) * part, state[first] - back}
      for i = first + 1, last do
        fresh[#fresh + 1] = state[i]
      end
      state, total = fresh, used
    end
  end

  local left = most - total
  local retry = 0
  if not allowed then
    retry = cost > most and NEVER or (index - age + kept - may_stay(state, last, most - cost)) * part - now
  end
  return state, allowed and 1 or 0, max(0, most - before), max(left, 0), state and state[1] - now or 0, retry
end

local function ahead(limit)
  return (2 * limit.parts + 1) * ceil(limit.window / limit.parts)
end

local function clamp(state, limit, now)
  local part = ceil(limit.window / limit.parts)
  return {(floor(now / part) + 2 * limit.parts + 1) * part, unpack(state, 2)}
end

local function term_end(state, limit, now)
  local part = ceil(limit.window / limit.parts)
  return min(now - now % part + part, next_term(limit, now))
end

local function give(state, limit, units, term_end, now)
  if not state or state[1] <= now then
    return state
  end
  local part = ceil(limit.window / limit.parts)
  local at = 2 + state[1] / part - limit.parts - ceil(term_end / part)
  if at < 2 or at > #state then
    return state
  end
  local given = {unpack(state)}
  given[at] = max(0, given[at] - units)
  local first = 2
  while given[first] == 0 do
    first = first + 1
  end
  local last = given[1] - (first - 2) * part
  return first <= #given and last > now and {last, unpack(given, first)} or nil
end

return {hit = hit, ahead = ahead, clamp = clamp, term_end = term_end, give = give}
