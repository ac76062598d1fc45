-- Twin of sliding_log.py. Of the log only what a hit asks for is read, a few moments at a time, and only what it adds is
-- written; but for a small one, which is read and written in one command.
-- State: {moment from which the newest is too old, the ring in Redis: key, size, first, stored; what has been read of it:
-- read, from slot read_from; what is yet to be written after it: added times moment}. `first` is the slot of the oldest
-- of the `stored`.
-- In Redis: that moment (7 bytes), first (4), stored (4), size (4), then `size` slots of 7 bytes, a moment each.

local HEADER, SLOT = 19, 7
local SMALL = 16

local function load(key)
  local head = redis.pcall('GETRANGE', key, '0', '130')  -- the header and a small log
  if type(head) ~= 'string' or #head < HEADER + SLOT then
    return nil
  end
  local expiry, first, stored, size = struct.unpack('>I7I4I4I4', head)
  if stored < 1 or stored > size or first >= size then
    return nil
  end
  return {expiry, key = key, size = size, first = first, stored = stored, moment = 0, added = 0,
    read = string.sub(head, HEADER + 1), read_from = 0}
end

-- The moment with so many before it; 0, which is too old, if it is not where it should be.
local function at(state, index)
  if index >= state.stored then
    return state.moment
  end
  local slot = (state.first + index) % state.size
  local place = (slot - state.read_from) * SLOT
  if place < 0 or place + SLOT > #state.read then
    local from = HEADER + slot * SLOT
    state.read, state.read_from = redis.call('GETRANGE', state.key, from, from + SMALL * SLOT - 1), slot
    place = 0
    if #state.read < SLOT then
      return 0
    end
  end
  return (struct.unpack('>I7', state.read, place + 1))
end

-- How many of the moments are not after `edge`. Most often it is none or a few, so look there first.
local function count_old(state, edge)
  local total = state.stored + state.added
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
    local from_ring = min(oldest, state.stored)
    size = state.size
    first = size > 0 and (state.first + from_ring) % size or 0
    stored = state.stored - from_ring
    before = state.added - (oldest - from_ring)
    local from_added = min(newest, before)
    before = before - from_added
    stored = stored - (newest - from_added)
    if added == 0 then
      moment = state.moment
    end
  end
  local fresh = {0, key = state and state.key, size = size, first = first, stored = stored, moment = moment,
    added = before + added, read = state and state.read, read_from = state and state.read_from}
  fresh[1] = at(fresh, stored + fresh.added - 1) + window
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
    before = state.stored + state.added - old
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

  local over = between(0, used - limit.requests, cost)
  local retry = 0
  if not allowed then
    retry = cost > most and NEVER or at(state, old + cost - left - 1) + window - now
  end
  return state, allowed and 1 or 0, max(left, 0), over, state and state[1] - now or 0, retry
end

local function save(key, state, limit, now)
  if not state then
    redis.call('DEL', key)
    return
  end
  local expires = ceil((state[1] - now) / 1000)
  local most = limit.requests + limit.exceed
  local first, stored, size = state.first, state.stored, state.size
  local total = stored + state.added
  local added = string.rep(struct.pack('>I7', state.moment), state.added)
  if total <= size and size > SMALL then
    if state.added > 0 then
      local slot = (first + stored) % size
      local fit = (size - slot) * SLOT
      redis.call('SETRANGE', key, HEADER + slot * SLOT, string.sub(added, 1, fit))
      if #added > fit then
        redis.call('SETRANGE', key, HEADER, string.sub(added, fit + 1))
      end
    end
    redis.call('SETRANGE', key, '0', struct.pack('>I7I4I4I4', state[1], first, total, size))
    redis.call('PEXPIRE', key, expires)
    return
  end
  -- A new ring. One that grows does so by a quarter, so that it is rarely done, but not beyond the limit.
  local kept = ''
  if stored > 0 then
    local straight = min(stored, size - first)
    local from = HEADER + first * SLOT
    if size <= SMALL and state.read_from == 0 then
      kept = string.sub(state.read, first * SLOT + 1, (first + straight) * SLOT)
    else
      kept = redis.call('GETRANGE', key, from, from + straight * SLOT - 1)
    end
    if stored > straight then
      kept = kept .. redis.call('GETRANGE', key, HEADER, HEADER + (stored - straight) * SLOT - 1)
    end
  end
  local spare = total <= SMALL and 0 or max(0, min(most - total, floor(total / 4)))
  local header = struct.pack('>I7I4I4I4', state[1], 0, total, total + spare)
  redis.call('SET', key, header .. kept .. added .. string.rep('\0', spare * SLOT), 'PX', expires)
end

return {load = load, hit = hit, save = save}
