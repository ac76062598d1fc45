-- Twin of sliding_log.py. A hit reads only the entries that it needs, a few at a time, and writes only what it adds. A
-- small log is read and written in one command.
-- State: {moment from which the newest is too old; the ring in Redis: KEY, SIZE, FIRST, STORED; what has been read of the
-- value: READ, from its byte OFFSET on; the number of the oldest unit: BASE, and the one that comes after those stored:
-- TOP; what is yet to be written: ADDED units of MOMENT; the limit's WINDOW, and the bytes of a moment in a slot: WIDTH}.
-- FIRST is the slot of the oldest of the STORED entries. An entry ends where the next one begins. By number, which is
-- faster than by name.
-- In Redis: that moment (7 bytes), first (4), stored (4), size (4), base (2), top (2), then `size` slots, each with the
-- moment of an entry and the number of its first unit (2), modulo 2^16. A moment has 5 bytes, modulo 2^40, where the window
-- is shorter than half of that; else 7.

local HEADER, NUMBERS, MOMENTS = 23, 2^16, 2^40
local SMALL, STRETCH = 16, 16  -- slots: those of a small log, and those that are read at once of a larger one
local KEY, SIZE, FIRST, STORED, READ, OFFSET, BASE, TOP, ADDED, MOMENT, WINDOW, WIDTH = 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13
local pack, unpack = struct.pack, struct.unpack

local function width_of(window)
  return window < MOMENTS / 2 and 5 or 7
end

local function load(key, limit)
  local head = redis.pcall('GETRANGE', key, '0', '166')  -- the header and a small log
  local window = limit.window
  local width = width_of(window)
  if type(head) ~= 'string' or #head < HEADER + width + 2 then
    return nil
  end
  local expiry, first, stored, size, base, top = unpack('>I7I4I4I4I2I2', head)
  if stored < 1 or stored > size or first >= size then
    return nil
  end
  return {expiry, key, size, first, stored, head, 0, base, base + (top - base - 1) % NUMBERS + 1, 0, 0, window, width}
end

-- The offset, in the bytes read, of the slot of the stored entry `index`, counted from 0; nil if the value is too short.
local function place_of(state, index)
  local slot = state[WIDTH] + 2
  local from = HEADER + (state[FIRST] + index) % state[SIZE] * slot
  local place = from - state[OFFSET] + 1
  if place < 1 or place + slot > #state[READ] + 1 then
    state[READ], state[OFFSET] = call('GETRANGE', state[KEY], from, from + STRETCH * slot - 1), from
    place = #state[READ] >= slot and 1 or nil
  end
  return place
end

-- The moment of the entry `index`; an entry that is missing is too old.
local function moment_at(state, index)
  if index >= state[STORED] then
    return state[MOMENT]
  end
  local place = place_of(state, index)
  if not place then
    return 0
  end
  if state[WIDTH] == 7 then
    return (unpack('>I7', state[READ], place))
  end
  local newest = state[1] - state[WINDOW]
  return newest - (newest - unpack('>I5', state[READ], place)) % MOMENTS
end

-- The number of the first unit of the entry `index`, or of the next entry.
local function number_at(state, index)
  local stored = state[STORED]
  if index >= stored then
    return index > stored and state[TOP] + state[ADDED] or state[TOP]
  end
  local place = index > 0 and place_of(state, index)
  if not place then
    return state[BASE]
  end
  return state[BASE] + (unpack('>I2', state[READ], place + state[WIDTH]) - state[BASE]) % NUMBERS
end

local function entries(state)
  return state[STORED] + (state[ADDED] > 0 and 1 or 0)
end

-- The number of entries whose moment, or number, is not after a bound. Usually none or a few, so look there first.
local function count(state, at, bound)
  local total = entries(state)
  if total == 0 or at(state, 0) > bound then
    return 0
  end
  local such, step = 0, 1
  while such + step < total and at(state, such + step) <= bound do
    such, step = such + step, step * 2
  end
  local other = min(such + step, total)
  while other - such > 1 do
    local middle = floor((such + other) / 2)
    if at(state, middle) <= bound then
      such = middle
    else
      other = middle
    end
  end
  return other
end

-- The state without the units before a number, which is in the entry `index`, and with other units added.
local function add(state, gone, base, window, moment, cost)
  if not state then
    return {moment + window, nil, 0, 0, 0, '', 0, 0, 0, cost, moment, window, width_of(window)}
  end
  local from_ring = min(gone, state[STORED])
  local size, top = state[SIZE], max(state[TOP], base)
  local added = state[TOP] + state[ADDED] - top + cost
  return {
    moment + window, state[KEY], size, size > 0 and (state[FIRST] + from_ring) % size or 0, state[STORED] - from_ring,
    state[READ], state[OFFSET], base, top, added, moment, window, state[WIDTH],
  }
end

-- The state without a number of the newest units, and without a number of the oldest entries.
local function remove_newest(state, old, window, units)
  local top, stored, added = state[TOP] + state[ADDED] - units, state[STORED], 0
  if top > state[TOP] then
    top, added = state[TOP], top - state[TOP]
  else
    stored = count(state, number_at, top - 1)
  end
  local size, base = state[SIZE], number_at(state, old)
  local from_ring = min(old, stored)
  local fresh = {
    0, state[KEY], size, size > 0 and (state[FIRST] + from_ring) % size or 0, stored - from_ring,
    state[READ], state[OFFSET], base, top, added, state[MOMENT], window, state[WIDTH],
  }
  fresh[1] = (added > 0 and state[MOMENT] or moment_at(state, stored - 1)) + window
  return fresh
end

local function hit(state, limit, cost, now)
  local window = limit.window
  local most = limit.requests + limit.exceed
  local newest, edge = now, now - window
  local old, before, base = 0, 0, 0
  if state and state[1] > now then
    newest = max(state[1] - window, now)
    old = count(state, moment_at, edge)
    base = number_at(state, old)
    before = state[TOP] + state[ADDED] - base
  else
    state = nil
  end
  local used = before + cost

  local allowed = used <= most
  local left = most - before
  if cost > 0 and allowed then
    state = add(state, old, base, window, newest, cost)
    left = most - used
  elseif cost > 0 and limit.count_refused == 1 and cost <= most then
    base = base + used - most - 1
    state = add(state, count(state, number_at, base) - 1, base, window, newest, cost)
    left = 0
  elseif cost < 0 then
    allowed = true
    if used <= 0 then
      state, left = nil, most
    else
      state = remove_newest(state, old, window, -cost)
      left = most - used
    end
  end

  local retry = 0
  if not allowed then
    if cost > most then
      retry = NEVER
    else
      -- The unit with `most - cost` newer units.
      local unit = state[TOP] + state[ADDED] - 1 - (most - cost)
      retry = moment_at(state, count(state, number_at, unit) - 1) + window - now
    end
  end
  return state, allowed and 1 or 0, max(0, most - before), max(left, 0), state and state[1] - now or 0, retry
end

local function owe(state, limit, cost, now)
  local most = limit.requests + limit.exceed
  local after, allowed = hit(state, limit, cost, now)
  if allowed == 1 then
    return after
  end
  cost = min(cost, most + 1)
  if not state or state[1] <= now then
    return add(nil, 0, 0, limit.window, now, cost)
  end
  local base = state[TOP] + state[ADDED] + cost - most - 1
  local gone = count(state, number_at, base)
  -- Of the entry with the oldest unit some are kept, unless all units are new.
  gone = cost <= most and gone - 1 or gone
  return add(state, gone, base, limit.window, max(state[1] - limit.window, now), cost)
end

local function save(key, state, limit, now)
  if not state then
    call('DEL', key)
    return
  end
  local expires = milliseconds(state[1] - now)
  local most = limit.requests + limit.exceed
  local width = state[WIDTH]
  local slot = width + 2
  local first, stored, size = state[FIRST], state[STORED], state[SIZE]
  local base, top = state[BASE] % NUMBERS, (state[TOP] + state[ADDED]) % NUMBERS
  local total, added = stored, ''
  if state[ADDED] > 0 then
    total = total + 1
    if width == 5 then
      added = pack('>I5I2', state[MOMENT] % MOMENTS, state[TOP] % NUMBERS)
    else
      added = pack('>I7I2', state[MOMENT], state[TOP] % NUMBERS)
    end
  end
  if total <= size and size > SMALL then
    if total > stored then
      call('SETRANGE', key, HEADER + (first + stored) % size * slot, added)
    end
    call('SETRANGE', key, '0', pack('>I7I4I4I4I2I2', state[1], first, total, size, base, top))
    call('PEXPIRE', key, expires)
    return
  end
  -- A new ring. It grows by a quarter, so that this is rare, but not beyond the limit.
  local kept = ''
  if stored > 0 then
    local straight = min(stored, size - first)
    local from = HEADER + first * slot
    if size <= SMALL and state[OFFSET] == 0 then
      kept = string.sub(state[READ], from + 1, from + straight * slot)
    else
      kept = call('GETRANGE', key, from, from + straight * slot - 1)
    end
    if stored > straight then
      kept = kept .. call('GETRANGE', key, HEADER, HEADER + (stored - straight) * slot - 1)
    end
  end
  local slack = total <= SMALL and 0 or max(0, min(most + limit.count_refused - total, floor(total / 4)))
  local ring = pack('>I7I4I4I4I2I2', state[1], 0, total, total + slack, base, top) .. kept .. added
  if slack > 0 then
    ring = ring .. string.rep('\0', slack * slot)
  end
  call('SET', key, ring, 'PX', expires)
end

local function ahead(limit)
  return 2 * limit.window
end

-- All units that count, as if charged at one moment, the latest possible one.
local function clamp(state, limit, now)
  local window = limit.window
  local base = number_at(state, count(state, moment_at, state[1] - 3 * window))
  local units = state[TOP] + state[ADDED] - base
  return {
    now + 2 * window, state[KEY], 0, 0, 0, state[READ], state[OFFSET], base, base, units, now + window, window, state[WIDTH],
  }
end

return {load = load, hit = hit, owe = owe, save = save, ahead = ahead, clamp = clamp}
