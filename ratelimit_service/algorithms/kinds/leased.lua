-- Twin of leased.py. A limit has what may be charged in all as `most`, the length of home's terms as `term`, and, if
-- there is a floor, its limit as `floor`, with the `hit` of its algorithm.
-- State: that of a lease, as lease.lua has it, then that of the floor, if there is one. In Redis: integers.
-- While a batch is charged, a state also has the units of the hits that wait as `waiting`.

local LEFT, GRANTED, END, BACK, BACK_END, ASKED_UNTIL, DENY_UNTIL, RETRY_AT, RESET_AT = 2, 3, 4, 6, 7, 8, 9, 10, 11
local ROUND_TRIP, DEMAND, SINCE, RATE, FIELDS = 12, 13, 14, 15, 15
local ASK_LIFE, LEAST_DENY, MOST_DEMAND = 1000000, 20000, 2^31
local lease = twin('lease')

-- -> a copy of the lease as it is now, and the state of the floor
local function present(state, term, now)
  if not state or state[1] <= now or #state < FIELDS then
    return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, now, 0}
  end
  local copy = {unpack(state, 1, FIELDS)}
  copy.waiting = state.waiting
  if copy[SINCE] + 2 * term <= now then
    copy[DEMAND], copy[SINCE], copy[RATE] = 0, now, 0
  end
  if copy[END] <= now or copy[END] > now + term then
    lease.expire(copy)
  end
  return copy, state[FIELDS + 1] and {unpack(state, FIELDS + 1)} or nil
end

-- -> state
local function kept(counter, own, term)
  local ends = counter[END] + (counter[LEFT] + counter[BACK] > 0 and term or 0)
  counter[1] = max(ends, counter[ASKED_UNTIL], counter[DENY_UNTIL], counter[SINCE] + 2 * term, own and own[1] or 0)
  for i, number in ipairs(own or {}) do
    counter[FIELDS + i] = number
  end
  return counter
end

-- `count` is of how many hits the cost is, if it is not one.
local function hit(state, limit, cost, now, count)
  local term, bottom = limit.term, limit.floor
  local counter, own = present(state, term, now)
  local room, reset = counter[LEFT], max(0, counter[RESET_AT] - now)
  local _, left, again
  if bottom then
    _, _, _, left, again = bottom.hit(own, bottom, 0, now)
    room, reset = room + left, max(reset, again)
  end

  if cost == 0 then
    return state, 1, room, room, reset, 0
  end
  if cost < 0 then
    local back = min(-cost, counter[GRANTED] - counter[LEFT])
    counter[LEFT] = counter[LEFT] + back
    if bottom and own and -cost > back then
      own, _, _, left = bottom.hit(own, bottom, cost + back, now)
    elseif back == 0 then
      return state, 1, room, room, reset, 0
    end
    return kept(counter, own, term), 1, room, counter[LEFT] + (left or 0), reset, 0
  end

  if cost <= room then
    local rest = max(0, cost - counter[LEFT])
    counter[LEFT] = counter[LEFT] - cost + rest
    if rest > 0 then
      own, _, _, _, again = bottom.hit(own, bottom, rest, now)
      reset = max(reset, again)
    end
  elseif cost > limit.most * (count or 1) then
    return state, 0, room, room, reset, NEVER
  elseif now >= counter[DENY_UNTIL] then
    counter.waiting = (counter.waiting or 0) + cost
    return kept(counter, own, term), 0, room, room, reset, WAITS
  end
  counter[DEMAND] = min(counter[DEMAND] + cost, MOST_DEMAND)
  if cost <= room then
    return kept(counter, own, term), 1, room, room - cost, reset, 0
  end
  local retry = max(counter[RETRY_AT], counter[DENY_UNTIL]) - now
  if bottom then
    local after = select(6, bottom.hit(own, bottom, cost - counter[LEFT], now))
    retry = after == NEVER and retry or min(retry, after)
  end
  return kept(counter, own, term), 0, room, room, reset, retry
end

-- -> state, what is to be asked of home
local function ask(state, limit, now)
  if now < max(state[ASKED_UNTIL], state[DENY_UNTIL]) then
    return state
  end
  local term, waiting, bottom = limit.term, state.waiting or 0, limit.floor
  local counter, own = present(state, term, now)
  local left = counter[LEFT]
  lease.measure(counter, now, term, floor(term / 2))
  local rate = floor(counter[RATE] / 1000)
  local low = lease.low(counter, rate, counter[ROUND_TRIP], term)
  if waiting == 0 and left >= low then
    if not bottom or left > 0 then
      return state
    end
    local _, _, _, room = bottom.hit(own, bottom, 0, now)
    if 2 * room >= (bottom.burst > 0 and bottom.burst or bottom.requests) then
      return state
    end
  end
  local needed = max(1, waiting - left, min(max(low, floor(rate / 10)), rate - left))
  local wanted = lease.ask(counter, needed, rate, now + ASK_LIFE)
  return kept(counter, own, term), wanted
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

-- `found` has the fields of Deposit, in their order.
local function deposit(state, term, found, now)
  local asked, units, ends, term_end, deny_until, retry_at, reset_at = unpack(found)
  local counter, own = present(state, term, now)
  if now < ends and ends <= now + term then
    lease.deposit(counter, units, ends, term_end)
  else
    lease.put_back(counter, units, term_end)
  end
  if counter[ASKED_UNTIL] == asked + ASK_LIFE then
    counter[ASKED_UNTIL] = 0
  end
  local least = max(LEAST_DENY, min(floor(term / 10), 1000000))
  counter[DENY_UNTIL] = deny_until > 0 and max(deny_until, now + least) or 0
  counter[RETRY_AT], counter[RESET_AT], counter[ROUND_TRIP] = retry_at, reset_at, min(max(0, now - asked), ASK_LIFE)
  return kept(counter, own, term)
end

-- -> state, units, term_end
local function collect(state, term, now)
  local counter, own = present(state, term, now)
  local units = counter[BACK]
  counter[BACK] = 0
  return units > 0 and kept(counter, own, term) or state, units, units > 0 and counter[BACK_END] or 0
end

-- Whether there is a floor, what may be charged in all, and the length of home's terms. The floor has the numbers of the
-- limit.
local function read(limit, batch, from, _, algorithm)
  limit.most, limit.term = batch[from + 1], batch[from + 2]
  if batch[from] == 1 then
    local found = twin(algorithm)
    limit.floor = {
      hit = found.hit, ahead = found.ahead, clamp = found.clamp, requests = limit.requests, window = limit.window,
      burst = limit.burst, parts = limit.parts, first_request = 0, count_refused = 0, exceed = 0, edges = limit.edges,
    }
  end
  return from + 3
end

local function ahead(limit, now)
  return max(3 * limit.term + ASK_LIFE + limit.window, limit.floor and limit.floor.ahead(limit.floor, now) or 0)
end

-- The floor alone: a lease of another clock is lost.
local function clamp(state, limit, now)
  local _, own = present(state, limit.term, now)
  own = own and limit.floor and limit.floor.clamp(own, limit.floor, now)
  return kept(present(nil, limit.term, now), own, limit.term)
end

return {hit = hit, save = save, read = read, ahead = ahead, clamp = clamp, deposit = deposit, collect = collect}
