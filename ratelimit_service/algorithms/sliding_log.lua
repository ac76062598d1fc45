-- Twin of sliding_log.py. Of the log only what a hit asks for is read, a few moments at a time, and only what it adds is
-- written; but for a small one, which is read and written in one command.
-- State: {moment from which the newest is too old; the ring in Redis: KEY, SIZE, FIRST, STORED; what has been read of the
-- value: READ, from its byte OFFSET on; what is yet to be written after it: ADDED times MOMENT}. FIRST is the slot of the
-- oldest of those that are STORED. By number, which is faster than by name.
-- In Redis: that moment (7 bytes), first (4), stored (4), size (4), then `size` slots of 7 bytes, a moment each.

local HEADER, SLOT = 19, 7
local SMALL, STRETCH = 16, 16  -- slots: those of a small log, and those that are read at once of a larger one
local KEY, SIZE, FIRST, STORED, READ, OFFSET, ADDED, MOMENT = 2, 3, 4, 5, 6, 7, 8, 9
local pack, unpack = struct.pack, struct.unpack

local function load(key)
  local head = redis.pcall('GETRANGE', key, '0', '130')  -- the header and a small log
  if type(head) ~= 'string' or #head < HEADER + SLOT then
    return nil
  end
  local expiry, first, stored, size = unpack('>I7I4I4I4', head)
  if stored < 1 or stored > size or first >= size then
    return nil
  end
  return {expiry, key, size, first, stored, head, 0, 0, 0}
end

-- The moment with so many before it; 0, which is too old, if it is not where it should be.
local function at(state, index)
  if index >= state[STORED] then
    return state[MOMENT]
  end
  local from = HEADER + (state[FIRST] + index) % state[SIZE] * SLOT
  local place = from - state[OFFSET]
  if place < 0 or place + SLOT > #state[READ] then
    state[READ], state[OFFSET] = call('GETRANGE', state[KEY], from, from + STRETCH * SLOT - 1), from
    place = 0
    if #state[READ] < SLOT then
      return 0
    end
  end
  return (unpack('>I7', state[READ], place + 1))
end

-- How many of the moments are not after `edge`. Most often it is none or a few, so look there first.
local function count_old(state, edge)
  local total = state[STORED] + state[ADDED]
  if at(state, 0) > edge then
    return 0
  end
  local old, step = 0, 1
  while old + step < total and at(state, old + step) <= edge do
    old, step = old + step, step * 2
  end
  local young = min(old + step, total)
  while young - old > 1 do
    local middle = floor((old + young) / 2)
    if at(state, middle) <= edge then
      old = middle
    else
      young = middle
    end
  end
  return young
end

-- The state without so many of the oldest and of the newest, and with others added.
local function change(state, window, oldest, newest, moment, added)
  local size, first, stored, before = 0, 0, 0, 0
  if state then
    local from_ring = min(oldest, state[STORED])
    size = state[SIZE]
    first = size > 0 and (state[FIRST] + from_ring) % size or 0
    stored = state[STORED] - from_ring
    before = state[ADDED] - (oldest - from_ring)
    local from_added = min(newest, before)
    before = before - from_added
    stored = stored - (newest - from_added)
    if added == 0 then
      moment = state[MOMENT]
    end
  end
  added = before + added
  local fresh = {0, state and state[KEY], size, first, stored, state and state[READ], state and state[OFFSET], added, moment}
  fresh[1] = at(fresh, stored + added - 1) + window
  return fresh
end

local function hit(state, limit, cost, now)
  local window = limit.window
  local most = limit.requests + limit.exceed
  local newest = now
  local old, before = 0, 0
  if state and state[1] > now then
    newest = max(state[1] - window, now)
    old = count_old(state, now - window)
    before = state[STORED] + state[ADDED] - old
  else
    state = nil
  end
  local used = before + cost

  local allowed = used <= most
  local left = most - before
  if cost > 0 and (allowed or (limit.count_refused == 1 and cost <= most)) then
    local pushed_out = allowed and 0 or used - most
    state = change(state, window, old + pushed_out, 0, newest, cost)
    old = 0
    left = most - (used - pushed_out)
  elseif cost < 0 then
    allowed = true
    if used <= 0 then
      state, left = nil, most
    else
      state = change(state, window, old, -cost, 0, 0)
      left = most - used
    end
  end

  local retry = 0
  if not allowed then
    retry = cost > most and NEVER or at(state, old + cost - left - 1) + window - now
  end
  return state, allowed and 1 or 0, max(0, most - before), max(left, 0), state and state[1] - now or 0, retry
end

local function save(key, state, limit, now)
  if not state then
    call('DEL', key)
    return
  end
  local expires = milliseconds(state[1] - now)
  local most = limit.requests + limit.exceed
  local first, stored, size = state[FIRST], state[STORED], state[SIZE]
  local total = stored + state[ADDED]
  local added = string.rep(pack('>I7', state[MOMENT]), state[ADDED])
  if total <= size and size > SMALL then
    if state[ADDED] > 0 then
      local slot = (first + stored) % size
      local fit = (size - slot) * SLOT
      call('SETRANGE', key, HEADER + slot * SLOT, string.sub(added, 1, fit))
      if #added > fit then
        call('SETRANGE', key, HEADER, string.sub(added, fit + 1))
      end
    end
    call('SETRANGE', key, '0', pack('>I7I4I4I4', state[1], first, total, size))
    call('PEXPIRE', key, expires)
    return
  end
  -- A new ring. One that grows does so by a quarter, so that it is rarely done, but not beyond the limit.
  local kept = ''
  if stored > 0 then
    local straight = min(stored, size - first)
    local from = HEADER + first * SLOT
    if size <= SMALL and state[OFFSET] == 0 then
      kept = string.sub(state[READ], from + 1, from + straight * SLOT)
    else
      kept = call('GETRANGE', key, from, from + straight * SLOT - 1)
    end
    if stored > straight then
      kept = kept .. call('GETRANGE', key, HEADER, HEADER + (stored - straight) * SLOT - 1)
    end
  end
  local spare = total <= SMALL and 0 or max(0, min(most - total, floor(total / 4)))
  local ring = pack('>I7I4I4I4', state[1], 0, total, total + spare) .. kept .. added
  if spare > 0 then
    ring = ring .. string.rep('\0', spare * SLOT)
  end
  call('SET', key, ring, 'PX', expires)
end

return {load = load, hit = hit, save = save}
