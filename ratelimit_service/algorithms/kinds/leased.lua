-- Twin of leased.py. A limit has what may be charged in all as `most`, the length of home's terms as `term`, and, if
-- there is a floor, its limit as `floor`, with the `hit` of its algorithm.
-- State: the fields of RegionCounter in their order, then the state of the floor, if it has one. In Redis: integers.
-- While a batch is charged, a state also has the units of the hits that wait as `waiting`.

local LEFT, LENT, END, TERM_END, SPARE, SPARE_END, ASKED_UNTIL, DENY_UNTIL = 2, 3, 4, 5, 6, 7, 8, 9
local RETRY_AT, RESET_AT, ROUND_TRIP, DEMAND, SINCE, RATE, FIELDS = 10, 11, 12, 13, 14, 15, 15
local ASK_LIFE, LEAST_DENY, MOST_DEMAND = 1000000, 20000, 2^31

local function put_aside(state, units, term_end)
  if units > 0 and (state[SPARE] == 0 or term_end >= state[SPARE_END]) then
    state[SPARE] = (term_end == state[SPARE_END] and state[SPARE] or 0) + units
    state[SPARE_END] = term_end
  end
end

local function finish(state)
  put_aside(state, state[LEFT], state[TERM_END])
  state[LEFT], state[LENT] = 0, 0
end

-- A copy of the state as it is now.
local function present(state, term, now)
  if not state or state[1] <= now or #state < FIELDS then
    return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, now, 0}
  end
  local copy = {unpack(state)}
  copy.waiting = state.waiting
  if copy[SINCE] + 2 * term <= now then
    copy[DEMAND], copy[SINCE], copy[RATE] = 0, now, 0
  end
  if copy[END] <= now or copy[END] > now + term then
    finish(copy)
  end
  return copy
end

local function kept(state, term)
  local ends = state[END] + (state[LEFT] + state[SPARE] > 0 and term or 0)
  state[1] = max(ends, state[ASKED_UNTIL], state[DENY_UNTIL], state[SINCE] + 2 * term, state[FIELDS + 1] or 0)
  return state
end

local function floor_of(state)
  return state[FIELDS + 1] and {unpack(state, FIELDS + 1)} or nil
end

-- With another state of the floor.
local function with_floor(state, own)
  local copy = {unpack(state, 1, FIELDS)}
  copy.waiting = state.waiting
  for i, number in ipairs(own or {}) do
    copy[FIELDS + i] = number
  end
  return copy
end

-- `count` is of how many hits the cost is, if it is not one.
local function hit(state, limit, cost, now, count)
  local term, bottom = limit.term, limit.floor
  local counter = present(state, term, now)
  local own = floor_of(counter)
  local room, reset = counter[LEFT], max(0, counter[RESET_AT] - now)
  if bottom then
    local _, _, _, left, again = bottom.hit(own, bottom, 0, now)
    room = room + left
    reset = max(reset, again)
  end

  if cost == 0 then
    return state, 1, room, room, reset, 0
  end
  if cost < 0 then
    local back = min(-cost, counter[LENT] - counter[LEFT])
    local rest = -cost - back
    local before = room
    if bottom and own and rest > 0 then
      local after, _, _, left = bottom.hit(own, bottom, -rest, now)
      room = counter[LEFT] + left
      counter = with_floor(counter, after)
    elseif back == 0 then
      return state, 1, room, room, reset, 0
    end
    counter[LEFT] = counter[LEFT] + back
    return kept(counter, term), 1, before, room + back, reset, 0
  end

  local demand = min(counter[DEMAND] + cost, MOST_DEMAND)
  if cost <= room then
    local lent = min(cost, counter[LEFT])
    if cost > lent then
      local after, _, _, _, again = bottom.hit(own, bottom, cost - lent, now)
      counter, reset = with_floor(counter, after), max(reset, again)
    end
    counter[LEFT], counter[DEMAND] = counter[LEFT] - lent, demand
    return kept(counter, term), 1, room, room - cost, reset, 0
  end
  if cost > limit.most * (count or 1) then
    return state, 0, room, room, reset, NEVER
  end
  if now >= counter[DENY_UNTIL] then
    counter.waiting = (counter.waiting or 0) + cost
    return kept(counter, term), 0, room, room, reset, WAITS
  end
  local retry = max(counter[RETRY_AT], counter[DENY_UNTIL]) - now
  if bottom then
    local after = select(6, bottom.hit(own, bottom, cost - counter[LEFT], now))
    retry = after == NEVER and retry or min(retry, after)
  end
  counter[DEMAND] = demand
  return kept(counter, term), 0, room, room, reset, retry
end

-- -> state, what is to be asked of home: back, back_end, least, extra
local function ask(state, limit, now)
  if now < max(state[ASKED_UNTIL], state[DENY_UNTIL]) then
    return state
  end
  local term, waiting, left = limit.term, state.waiting or 0, state[LEFT]
  local memory = floor(term / 2)
  local measured = max(0, now - state[SINCE]) + memory
  local thousandths = muldiv(1000 * state[DEMAND], term, measured) + muldiv(state[RATE], memory, measured)
  local rate = floor(thousandths / 1000)
  local low = min(muldiv(2 * rate, state[ROUND_TRIP], term), floor(rate / 2))
  if waiting == 0 and left >= low then
    local bottom = limit.floor
    if not bottom or left > 0 then
      return state
    end
    local _, _, _, room = bottom.hit(floor_of(state), bottom, 0, now)
    if 2 * room >= (bottom.burst > 0 and bottom.burst or bottom.requests) then
      return state
    end
  end
  local extra = max(0, rate - left)
  local wanted = {state[SPARE], state[SPARE_END], max(1, waiting - left, min(max(low, floor(rate / 10)), extra)), extra}
  local asked = {unpack(state)}
  asked[SPARE], asked[ASKED_UNTIL], asked[DEMAND], asked[SINCE], asked[RATE] = 0, now + ASK_LIFE, 0, now, thousandths
  return kept(asked, term), wanted
end

local function save(key, state, limit, now)
  if state then
    local wanted
    state, wanted = ask(state, limit, now)
    if wanted then
      tell(key, wanted)
    end
  end
  save_integers(key, state, limit, now)
end

-- `lent` has the fields of Deposit, in their order.
local function deposit(state, term, lent, now)
  local asked, units, ends, term_end, deny_until, retry_at, reset_at = unpack(lent)
  state = present(state, term, now)
  if now < ends and ends <= now + term then
    if term_end ~= state[TERM_END] then
      finish(state)
      state[END] = 0
    end
    state[LEFT], state[LENT] = state[LEFT] + units, state[LENT] + units
    state[END], state[TERM_END] = max(state[END], ends), term_end
  else
    put_aside(state, units, term_end)
  end
  if state[ASKED_UNTIL] == asked + ASK_LIFE then
    state[ASKED_UNTIL] = 0
  end
  local least = max(LEAST_DENY, min(floor(term / 10), 1000000))
  state[DENY_UNTIL] = deny_until > 0 and max(deny_until, now + least) or 0
  state[RETRY_AT], state[RESET_AT], state[ROUND_TRIP] = retry_at, reset_at, min(max(0, now - asked), ASK_LIFE)
  return kept(state, term)
end

-- -> state, units, term_end
local function collect(state, term, now)
  local counter = present(state, term, now)
  local units = counter[SPARE]
  if units == 0 then
    return state, 0, 0
  end
  counter[SPARE] = 0
  return kept(counter, term), units, counter[SPARE_END]
end

-- Whether there is a floor, what may be charged in all, and the length of home's terms. The floor has the numbers of the
-- limit.
local function read(limit, batch, from, _, algorithm)
  limit.most, limit.term = batch[from + 1], batch[from + 2]
  if batch[from] == 1 then
    local found = twin(algorithm)
    limit.floor = {
      hit = found.hit, ahead = found.ahead, settle = found.settle, requests = limit.requests, window = limit.window,
      burst = limit.burst, parts = limit.parts, first_request = 0, count_refused = 0, exceed = 0, edges = limit.edges,
    }
  end
  return from + 3
end

local function ahead(limit, now)
  return max(3 * limit.term + ASK_LIFE + limit.window, limit.floor and limit.floor.ahead(limit.floor, now) or 0)
end

-- The floor alone: a loan of another clock is burnt.
local function settle(state, limit, now)
  local fresh = present(nil, limit.term, now)
  local own = floor_of(state)
  if limit.floor and own then
    fresh = with_floor(fresh, limit.floor.settle(own, limit.floor, now))
  end
  return kept(fresh, limit.term)
end

return {hit = hit, save = save, read = read, ahead = ahead, settle = settle, deposit = deposit, collect = collect}
