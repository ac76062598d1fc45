-- Charges a batch of hits in one step. script.py puts the algorithms' twins in below, writes the
-- batch, and reads the reply.
--
-- KEYS     the counter of each run; runs on one counter stand side by side, so that it is loaded and saved once;
--          then the second counter of each run whose limit has one
-- ARGV[1]  the batch, a JSON list of integers:
--            now in microseconds, or 0 for the time of Redis
--            jitter: microseconds that the keys of aligned windows outlive their states; -1: nothing may be written,
--              because all hits have cost 0
--            how many limits; of each PER_LIMIT: algorithm (1 is the first of NAMES; negative: its costs have come about:
--              they are charged in full, and answered as a look after it), requests, window, burst, parts, first_request
--              (2 for a calendar), count_refused (2: crossing_only), exceed, whether windows are aligned, and the twin of
--              its kind, 0 for a plain one; of a calendar then four edges, which fixed_window.lua explains; then what the
--              twin of its kind reads
--            of each run: limit (1 is the first), cost, and how many such hits came one after the other; before
--              runs that are charged all or none stands how many they are, negative; a 0 behind that: of these runs
--              the first is charged that has room
--            of a lease, before the runs on its counter, its key among theirs: limit, its place in ARGV[2], and 0
-- ARGV[2]  the leases, if there are any, a JSON list; of each: the length of a term, and its phase; how many units are
--            given back before the runs on the counter, and the end of the term for which they were leased; and what is
--            taken after them, the least, and how much for a whole term
-- Returns  now; then of each run: got, how many of its hits were allowed, the first ones, or -1 if it was only looked
--          at and there is no room for nothing; room, what was left before them; left, what is left now, or, of a
--          blocked counter, how long it is blocked, negative; reset_after; and retry_after of those that were refused (of
--          a hit with a place in a queue `got` is 2, and how long it waits stands in place of retry_after; of those that
--          wait for the home of regions that is WAITS; of what has come about `got` is -3 if a look is allowed then, or -4,
--          and what was above the limit stands in place of room; of reservations reserved.lua tells more; of a run that
--          another one was charged in place of, 4);
--          then what twins tell of counters: the key, and a number that is tallied, or a list of numbers, what home is to
--          be asked; then of each lease what `take` of lease.lua returns: units, room, term_end, reset_after, retry_after

local call = redis.call
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local format, pcall, select, type, unpack = string.format, pcall, select, type, unpack
local pack_integers, unpack_integers = cmsgpack.pack, cmsgpack.unpack
local NEVER, WAITS = -1, -2
local PER_LIMIT = 10
local looking = false  -- nothing may be written
local MAX_KEYS = 2000  -- read at once: Lua passes no more than 8,000 values to a function

-- a * b / c as a whole number, and the remainder; exact even where a * b is above 2^53, up to which a double holds
-- every whole number. c + b must be at most half of that, and so must the result.
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

-- Unpacks a state of integers: one up to 127 has one byte, a moment nine. Of any other value there is no state.
local function integers(good, ...)
  -- `max` fails when one is not a number, in a third of the time that a loop takes.
  if good and select('#', ...) > 1 and type(...) == 'number' and pcall(max, ...) then
    return {...}
  end
end

-- Milliseconds, rounded up, as text: Redis needs 0.3 us to write a number as text, and `format` a third of that.
local function milliseconds(microseconds)
  return format('%d', ceil(microseconds / 1000))
end

local function save_integers(key, state, limit, now)
  if looking then
    return
  elseif state then
    call('SET', key, pack_integers(unpack(state)), 'PX', milliseconds(state[1] - now + limit.jitter))
  else
    call('DEL', key)
  end
end

-- What twins tell of counters: keys, each with a number that is tallied, or a list of numbers, what home is to be asked.
local told

local function tell(key, what)
  told = told or {}
  told[#told + 1], told[#told + 2] = key, what
end

-- The end of the term that `now` is in, without regard to windows.
local function next_term(limit, now)
  return now - (now - limit.phase) % limit.term + limit.term
end

local twin, opened = nil, {}
local NAMES = {--names--}

-- The functions of the twin with that name. All twins are in one function: each one more would take every call of this
-- script longer.
local function open(name)
--twins--
end

-- The same, opened once; only the twins that a batch needs are.
function twin(name)
  local found = opened[name]
  if not found then
    found = open(name)
    opened[name] = found
  end
  return found
end

--steps--
local function read_limits(batch, now, leases)
  local limits, whole, from, with_second = {}, true, 4, false
  for i = 1, batch[3] do
    local kind = batch[from + 9] > 0 and twin(NAMES[batch[from + 9]])
    local number = batch[from]
    local algorithm = NAMES[number < 0 and -number or number]
    local found = kind and kind.hit and kind or twin(algorithm)
    limits[i] = {
      load = found.load,
      hit = found.hit,
      save = not looking and found.save or save_integers,
      clamp = found.clamp,
      requests = batch[from + 1],
      window = batch[from + 2],
      burst = batch[from + 3],
      parts = batch[from + 4],
      first_request = batch[from + 5],
      count_refused = batch[from + 6],
      exceed = batch[from + 7],
      jitter = batch[from + 8] * batch[2],
    }
    from = from + PER_LIMIT
    if limits[i].first_request == 2 then
      limits[i].edges = {unpack(batch, from, from + 3)}
      from = from + 4
    end
    if kind then
      from = kind.read(limits[i], batch, from, now, algorithm)
      limits[i].with_second = kind.charge and kind
      with_second = with_second or limits[i].with_second
    end
    if number < 0 then
      limits[i].look, limits[i].owe = found.hit, found.owe
      if limits[i].with_second then
        limits[i].with_second = {charge = kind.owe, reservation = kind.reservation, own = kind.own}
      else
        limits[i].hit = twin('settle').charge
      end
    end
    limits[i].ahead = found.ahead(limits[i], now)
    limits[i].twin = leases and found
    whole = whole and not found.load
  end
  return limits, whole, from, with_second
end

-- The number of runs; and of each one whose limit has a second counter, the index of that one's key.
local function find_seconds(batch, at, limits)
  local runs, with_second, second_of = 0, {}, {}
  while at <= #batch do
    if batch[at] <= 0 then
      at = at + 1
    else
      runs = runs + 1
      if limits[batch[at]].with_second then
        with_second[#with_second + 1] = runs
      end
      at = at + 3
    end
  end
  for index, run in ipairs(with_second) do
    second_of[run] = runs + index
  end
  return runs, second_of
end

-- Charges a run of equal hits: those that fit in one step; the first one that does not fit is decided by itself, and
-- all after it get its answer.
local function charge_run(state, limit, cost, count, now)
  local hit = limit.hit
  local after, allowed, room, left, reset, retry = hit(state, limit, cost * count, now)
  if allowed == 1 then
    return after, count, room, left, reset, retry
  end
  local got = floor(room / cost)
  if got > 0 then
    state = hit(state, limit, got * cost, now)
  end
  local state, _, _, left, reset, retry = hit(state, limit, cost, now)
  local others = count - got - 1
  if others > 0 and limit.count_refused == 1 then
    state = hit(state, limit, others * cost, now, others)  -- how many they are, for leased.lua
  end
  return state, got, room, left, reset, retry
end

local function charge(keys, batch, leases)
  local now = batch[1]
  looking = batch[2] < 0
  if now == 0 then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  local limits, whole, at, with_second = read_limits(batch, now, leases)
  local run, ends = 1, #batch
  local granted = leases and {}
  local runs, second_of = #keys, nil
  if with_second then
    runs, second_of = find_seconds(batch, at, limits)
  end
  -- Read all states with one command, not one each; unless there are logs, of which only a part is read, or runs
  -- charged together, which may change a counter between two of its runs.
  local alone = ends == at - 1 + 3 * runs
  local packed = whole and alone and #keys > 0 and #keys <= MAX_KEYS and call('MGET', unpack(keys))
  local reply, filled = {now}, 1

  -- The state of a counter; without a limit, of a second one.
  local function load(i, limit)
    if limit and limit.load then
      return limit.load(keys[i], limit, now)
    end
    local found = packed and packed[i] or not packed and redis.pcall('GET', keys[i])
    return type(found) == 'string' and integers(pcall(unpack_integers, found)) or nil
  end

  -- The state to use, and whether it differs from the stored one. A state that ends later than any charge could make
  -- it, even with a clock that steps back by a window, was written by a server whose clock was ahead; an hour ahead, it
  -- would deny for an hour. The count is kept, and ends at the latest end that a charge now could give.
  local function clamped(state, limit)
    if state and state[1] - now > limit.ahead and not looking then
      return limit.clamp(state, limit, now), true
    end
    return state, false
  end

  -- Second counters, by key: each is loaded at its first hit, and written once.
  local seconds = {}

  local function second_at(i, limit)
    local key = keys[second_of[i]]
    local second = seconds[key]
    if not second then
      second = {state = load(second_of[i])}
      if limit.second then
        second.state, second.changed = clamped(second.state, limit.second)
      end
      seconds[key] = second
    end
    return second
  end

  local function put_second(second, state)
    second.changed = second.changed or state ~= second.state
    second.state = state
  end

  -- Charges run `i`, and its second counter too.
  local function charge_both(i, state, limit, cost)
    local second = second_at(i, limit)
    local after, second_after, allowed, room, left, reset, retry =
      limit.with_second.charge(state, second.state, limit, cost, now)
    put_second(second, second_after)
    return after, allowed, room, left, reset, retry
  end

  local function answer(got, room, left, reset, retry)
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = got, room, left
    reply[filled + 4], reply[filled + 5] = reset, retry
    filled = filled + 5
  end

  -- The runs on one counter.
  local function charge_counter()
    local key, limit = keys[run], limits[batch[at]]
    local before, skewed = clamped(load(run, limit), limit)
    local state = before
    local lease, leased
    repeat
      limit = limits[batch[at]]
      local cost, count = batch[at + 1], batch[at + 2]
      if count == 0 then
        lease, leased = cost, limit
        limit.term, limit.phase = leases[lease], leases[lease + 1]
        if leases[lease + 2] > 0 then
          state = limit.twin.give(state, limit, leases[lease + 2], leases[lease + 3], now)
        end
      else
        local got, room, left, reset, retry
        if limit.with_second then
          state, got, room, left, reset, retry = charge_both(run, state, limit, cost)
        elseif count == 1 then
          state, got, room, left, reset, retry = limit.hit(state, limit, cost, now)
        else
          state, got, room, left, reset, retry = charge_run(state, limit, cost, count, now)
        end
        answer(got, room, left, reset, retry)
      end
      run, at = run + 1, at + 3
    until at > ends or keys[run] ~= key or batch[at] < 0  -- behind the last run are second counters
    if lease then
      local taken = {twin('lease').take(state, leased, leases[lease + 4], leases[lease + 5], now)}
      state = taken[1]
      granted[#granted + 1] = taken
    end
    if state ~= before or skewed then
      limit.save(key, state, limit, now)
    end
  end

  -- As in memory.py: all are charged, or only the denied ones whose limit counts denied hits; or the first with room. The
  -- others are looked at.
  local function charge_together(count)
    local first = batch[at] == 0
    at = first and at + 1 or at
    local before, skewed, states, answers, all = {}, {}, {}, {}, true
    local seconds_before = {}
    for key, second in pairs(seconds) do
      seconds_before[key] = {state = second.state, changed = second.changed}
    end
    local function hit(i, cost)
      local key, limit = keys[run + i - 1], limits[batch[at + 3 * i - 3]]
      local answered
      if limit.with_second then
        answered = {charge_both(run + i - 1, states[key] or nil, limit, cost)}
      else
        answered = {limit.hit(states[key] or nil, limit, cost, now)}
      end
      states[key] = answered[1] or false
      return answered
    end
    -- The charge of a denied hit, which may have been denied only because of hits that are not charged after all.
    local function charge_denied(i)
      local key, limit = keys[run + i - 1], limits[batch[at + 3 * i - 3]]
      local cost = batch[at + 3 * i - 2]
      local charged = limit.count_refused == 1 and cost or 0
      if limit.with_second and limit.with_second.deny then
        local second = second_at(run + i - 1, limit)
        local after
        after, charged = limit.with_second.deny(second.state, limit, cost, charged, now)
        put_second(second, after)
      end
      states[key] = limit.hit(states[key] or nil, limit, charged, now) or false
    end
    for i = 1, count do
      local key, limit = keys[run + i - 1], limits[batch[at + 3 * i - 3]]
      if before[key] == nil then
        before[key], skewed[key] = clamped(load(run + i - 1, limit), limit)
        before[key] = before[key] or false
        states[key] = before[key]
      end
      if not first then
        answers[i] = hit(i, batch[at + 3 * i - 2])
        all = all and answers[i][2] > 0
      end
    end
    if first then
      local members, chosen = {}, nil
      for i = 1, count do
        local key, limit = keys[run + i - 1], limits[batch[at + 3 * i - 3]]
        local second = limit.with_second and second_at(run + i - 1, limit)
        members[i] = {limit = limit, state = states[key] or nil, second = second and second.state, cost = batch[at + 3 * i - 2]}
      end
      chosen, answers = twin('first').choose(members, now)
      if chosen then
        answers[chosen] = hit(chosen, members[chosen].cost)
      end
    elseif not all then
      for key, state in pairs(before) do
        states[key] = state
      end
      seconds = seconds_before
      for i = 1, count do
        if answers[i][2] == 0 then
          charge_denied(i)
        else
          local looked = hit(i, 0)
          answers[i] = looked
          looked[2] = looked[2] == 1 and 1 or -1
        end
      end
    end
    for i = 1, count do
      local key, limit = keys[run + i - 1], limits[batch[at + 3 * i - 3]]
      answer(unpack(answers[i], 2, 6))
      if states[key] ~= before[key] or skewed[key] then
        limit.save(key, states[key] or nil, limit, now)
        before[key], skewed[key] = states[key], false
      end
    end
    run, at = run + count, at + 3 * count
  end

  while at <= ends do
    local count = batch[at]
    if count < 0 then
      at = at + 1
      charge_together(-count)
    else
      charge_counter()
    end
  end
  for _, found in ipairs(told or {}) do
    filled = filled + 1
    reply[filled] = found
  end
  told = nil
  for key, second in pairs(seconds) do
    if second.changed then
      save_integers(key, second.state, {jitter = 0}, now)
    end
  end
  for _, taken in ipairs(granted or {}) do
    answer(unpack(taken, 2, 6))
  end
  return reply
end

return charge(KEYS, cjson.decode(ARGV[1]), ARGV[2] and cjson.decode(ARGV[2]))
