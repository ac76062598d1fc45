-- Twin of synced.py. A limit has the time between two exchanges as `interval`.
-- State: {end of the window, own count, the others' count, when the last exchange began or is waited for}. In Redis:
-- integers.

local COLD, LATE, NOT_NOW, CEILING = 100, 1000000, -1, 2^52

local function hit(state, limit, cost, now)
  local count, own, others, exchange = nil, 0, 0, 0
  if state and state[1] > now then
    own, others, exchange = state[2], state[3], state[4]
    count = {state[1], own + others}
  end
  local after, allowed, room, left, reset, retry = twin('fixed_window').hit(count, limit, max(cost, -own), now)
  if cost < 0 then
    allowed, retry = 1, 0
  end
  if after == count then
    return count and state, allowed, room, left, reset, retry
  end
  return after and {after[1], after[2] - others, others, exchange}, allowed, room, left, reset, retry
end

local function owe(state, limit, cost, now)
  local count, others, exchange = nil, 0, 0
  if state and state[1] > now then
    others, exchange = state[3], state[4]
    count = {state[1], state[2] + others}
  end
  local after = twin('fixed_window').owe(count, limit, cost, now)
  return {after[1], after[2] - others, others, exchange}
end

-- -> state, the time until an exchange should begin or NOT_NOW
local function plan(state, limit, now)
  if not state or state[1] <= now or state[2] * COLD < limit.requests then
    return state, NOT_NOW
  end
  local ends, own, others, exchange = unpack(state, 1, 4)
  if exchange > now and exchange <= now + limit.interval + LATE then
    return state, NOT_NOW
  end
  local wait = exchange <= now and max(0, exchange + limit.interval - now) or 0
  return {ends, own, others, now + wait + LATE}, wait
end

-- -> state, the region's count or 0
local function collect(state, ends, now)
  if not state or state[1] ~= ends or ends <= now then
    return state, 0
  end
  return {ends, state[2], state[3], now}, state[2]
end

local function deposit(state, ends, others, now)
  if not state or state[1] ~= ends or ends <= now then
    return state
  end
  return {ends, state[2], min(others, CEILING), state[4]}
end

local function save(key, state, limit, now)
  local wait
  state, wait = plan(state, limit, now)
  if wait ~= NOT_NOW then
    tell(key, {state[1], wait})
  end
  save_integers(key, state, limit, now)
end

local function ahead(limit, now)
  return twin('fixed_window').ahead(limit, now)
end

-- The counts of the others are those of another window.
local function clamp(state, limit, now)
  local clamped = twin('fixed_window').clamp(state, limit, now)
  return {clamped[1], clamped[2], 0, 0}
end

-- The number of a limit, which stands at `from`.
local function read(limit, batch, from)
  limit.interval = batch[from]
  return from + 1
end

return {
  read = read, hit = hit, owe = owe, save = save, ahead = ahead, clamp = clamp, collect = collect, deposit = deposit,
}
