-- Charges a batch of hits in one step: every counter is loaded once, charged by its hits in order, and saved once.
-- script.py puts the algorithms' twins in below, writes the plan and reads the reply.
--
-- KEYS     the counters, each once
-- ARGV[1]  the plan, a JSON list of integers:
--            now in microseconds, or 0 for the time of Redis
--            how many limits; of each: algorithm (1 is the first of NAMES), requests, window, burst, parts,
--              first_request, count_refused, exceed, jitter (milliseconds that a key outlives its state)
--            the hits: of each counter (1 is the first of KEYS), limit (1 is the first), cost; before hits that are
--              charged all or none stands how many they are, negative
-- Returns  now; then of each hit: remaining, over, reset_after, retry_after. It is denied when it has a retry_after.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local NEVER = -1

-- `number`, but not below `least` and not above `most`; the least when the two are the wrong way round.
local function between(least, number, most)
  if number > most then
    number = most
  end
  return number < least and least or number
end

-- a * b / c as a whole number, and what remains of the division; exact even where a * b is beyond 2^53, which all
-- doubles up to are whole. c + b may be half of that at most, and so may what comes out.
local function muldiv(a, b, c)
  local product = a * b
  if product < 2^53 then
    return floor(product / c), product % c
  end
  local base = floor(2^53 / (b + c))
  local whole, rest = muldiv(floor(a / base), b, c)
  local product_rest = rest * base + a % base * b
  return whole * base + floor(product_rest / c), product_rest % c
end

-- A state of nothing but integers, packed: up to 127 in one byte, moments in nine. What is no such thing is untouched.
local function load_integers(key)
  local packed = redis.pcall('GET', key)
  if type(packed) ~= 'string' then
    return nil
  end
  local good, state = pcall(function() return {cmsgpack.unpack(packed)} end)
  if not good or #state < 2 then
    return nil
  end
  for i = 1, #state do
    if type(state[i]) ~= 'number' then
      return nil
    end
  end
  return state
end

local function save_integers(key, state, limit, now)
  if state then
    redis.call('SET', key, cmsgpack.pack(unpack(state)), 'PX', ceil((state[1] - now) / 1000) + limit.jitter)
  else
    redis.call('DEL', key)
  end
end

local chunks, opened = {}, {}

-- The twin with that name; only those that a batch needs are put together.
local function twin(name)
  local found = opened[name]
  if not found then
    found = chunks[name]()
    opened[name] = found
  end
  return found
end

--twins--

local function read_limits(plan)
  local limits = {}
  for i = 1, plan[2] do
    local from = 3 + (i - 1) * 9
    limits[i] = {
      twin = twin(chunks[plan[from]]),
      requests = plan[from + 1],
      window = plan[from + 2],
      burst = plan[from + 3],
      parts = plan[from + 4],
      first_request = plan[from + 5],
      count_refused = plan[from + 6],
      exceed = plan[from + 7],
      jitter = plan[from + 8],
    }
  end
  return limits, 3 + plan[2] * 9
end

local function run(keys, plan)
  local now = plan[1]
  if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  local limits, at = read_limits(plan)
  local loaded, states, last_limits = {}, {}, {}
  local reply, filled = {now}, 1

  -- Its state, false where there is none.
  local function state_of(counter, limit)
    local state = states[counter]
    if state == nil then
      state = limit.twin.load(keys[counter], limit, now) or false
      loaded[counter], states[counter], last_limits[counter] = state, state, limit
    end
    return state
  end

  local function charge(counter, limit, cost)
    local before = state_of(counter, limit) or nil
    local state, allowed, remaining, over, reset, retry = limit.twin.hit(before, limit, cost, now)
    if state ~= before then
      states[counter], last_limits[counter] = state or false, limit
    end
    return allowed, remaining, over, reset, retry
  end

  local function answer(_, remaining, over, reset, retry)
    reply[filled + 1], reply[filled + 2], reply[filled + 3], reply[filled + 4] = remaining, over, reset, retry
    filled = filled + 4
  end

  -- As in memory.py: all are charged, or only the refused that count themselves, and the others are looked at.
  local function charge_together(count)
    local before, answers, all = {}, {}, true
    for i = 1, count do
      local from = at + (i - 1) * 3
      local counter, limit = plan[from], limits[plan[from + 1]]
      if before[counter] == nil then
        before[counter] = state_of(counter, limit)
      end
      answers[i] = {charge(counter, limit, plan[from + 2])}
      all = all and answers[i][1] == 1
    end
    if not all then
      for counter, state in pairs(before) do
        states[counter] = state
      end
    end
    for i = 1, count do
      local from = at + (i - 1) * 3
      if not all then
        local limit = limits[plan[from + 1]]
        local denied = answers[i][1] == 0
        local charged = {charge(plan[from], limit, denied and limit.count_refused == 1 and plan[from + 2] or 0)}
        if not denied then
          answers[i] = charged
        end
      end
      answer(unpack(answers[i]))
    end
    at = at + count * 3
  end

  local ends = #plan
  while at <= ends do
    local counter = plan[at]
    if counter < 0 then
      at = at + 1
      charge_together(-counter)
    else
      answer(charge(counter, limits[plan[at + 1]], plan[at + 2]))
      at = at + 3
    end
  end

  for counter, limit in pairs(last_limits) do
    local state = states[counter]
    if state ~= loaded[counter] then
      limit.twin.save(keys[counter], state or nil, limit, now)
    end
  end
  return reply
end

return run(KEYS, cjson.decode(ARGV[1]))
