-- Twin of sub_windows.py.
-- State: {moment from which the newest count is too old, newest count, older counts ...}. In Redis: integers.

local NONE, CEILING = {}, 2^52

local function may_stay(state, last, room)
  local i = 2
  while i <= last and state[i] <= room do
    room = room - state[i]
    i = i + 1
  end
  return i - 2
end

-- The current part, or a later one before which the clock has stepped back; how many parts old the newest count is; and
-- where the oldest in view stands in the state.
local function place(state, kept, part, now)
  local index = floor(now / part)
  if not state or state[1] <= now then
    return index, 0, 1
  end
  local newest = ceil(state[1] / part) - kept
  if newest > index then
    index = newest
  end
  local age = index - newest
  return index, age, min(#state, 1 + kept - age)
end

-- The state with this count of the current part.
local function charged(state, count, index, age, last, kept, part)
  local fresh = {(index + kept) * part, count, unpack(state or NONE, age == 0 and 3 or 2, last)}
  if last >= 2 then
    for _ = 1, age - 1 do
      table.insert(fresh, 3, 0)
    end
  end
  return fresh
end

-- Counts are read from `state` between `first` and `last`: the newest, which is `age` parts old, and the oldest in view.
local function hit(state, limit, cost, now)
  local most = limit.requests + limit.exceed
  local kept = limit.parts + 1
  local part = ceil(limit.window / limit.parts)
  local index, age, last = place(state, kept, part, now)
  local first = 2
  if last < first then
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
    local count = max(newest, min(newest + cost, most + 1))
    total = before - newest + count
    state = charged(state, count, index, age, last, kept, part)
    last, age = #state, 0
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

local function owe(state, limit, cost, now)
  local kept = limit.parts + 1
  local part = ceil(limit.window / limit.parts)
  local index, age, last = place(state, kept, part, now)
  local newest = (age == 0 and last >= 2) and state[2] or 0
  local most = max(limit.requests + limit.exceed + 1, floor(CEILING / kept))
  return charged(state, max(newest, min(newest + cost, most)), index, age, last, kept, part)
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

return {hit = hit, owe = owe, ahead = ahead, clamp = clamp, term_end = term_end, give = give}
