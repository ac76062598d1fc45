-- Twin of block.py.
-- A block: {when it is forgotten, when it ends, its length}. In Redis: integers.

local function in_force(block, now)
  if not block or not block[3] or block[1] <= now then
    return nil
  end
  local forgotten, ends, length = block[1], block[2], block[3]
  if ends - now > 2 * length then
    return {now + length + forgotten - ends, now + length, length}
  end
  return block
end

local function start(block, limit, now)
  block = in_force(block, now)
  local length = limit.block_for
  if block then
    length = max(length, min(2 * block[3], limit.block_up_to))
  end
  local ends = now + length
  return {limit.block_up_to > limit.block_for and ends + length or ends, ends, length}
end

local function rest(block, now)
  block = in_force(block, now)
  return block and max(0, block[2] - now) or 0
end

-- The limit by which a hit on a blocked counter is tried: it is not charged, and makes no later one wait longer.
local function uncounted(limit)
  if limit.count_refused == 0 then
    return limit
  end
  if not limit.uncounted then
    local copy = {}
    for name, value in pairs(limit) do
      copy[name] = value
    end
    copy.count_refused = 0
    limit.uncounted = copy
  end
  return limit.uncounted
end

-- -> state, block, allowed, room, left, reset_after, retry_after: as of the algorithm, and of a block in force `left` is
-- the time that it lasts, negative
local function charge(state, block, limit, cost, now)
  block = in_force(block, now)
  local after, allowed, room, left, reset, retry
  local lasts = block and block[2] - now or 0
  if lasts > 0 then
    after, allowed, room, left, reset = limit.hit(state, limit, min(cost, 0), now)
    if cost < 0 then
      return after, block, 1, 0, -lasts, max(lasts, reset), 0
    end
    room = 0
    retry = select(6, limit.hit(state, uncounted(limit), cost, now))
  else
    after, allowed, room, left, reset, retry = limit.hit(state, limit, cost, now)
    if allowed == 1 or cost == 0 then
      return after, block, allowed, room, left, reset, retry
    end
    block = start(block, limit, now)
    lasts = block[3]
  end
  return after, block, 0, room, -lasts, max(lasts, reset), retry == NEVER and NEVER or max(lasts, retry)
end

local function owe(state, block, limit, cost, now)
  local after, got, over, left, reset, retry = twin('settle').charge(state, limit, cost, now)
  block = in_force(block, now)
  local lasts = block and max(0, block[2] - now) or 0
  if lasts == 0 and cost > 0 and got == -4 then
    block = start(block, limit, now)
    lasts = block[3]
  end
  if lasts == 0 then
    return after, block, got, over, left, reset, retry
  end
  return after, block, -4, over, -lasts, max(lasts, reset), retry == NEVER and NEVER or max(lasts, retry)
end

local function deny(block, limit, cost, charged, now)
  if cost <= 0 then
    return block, charged
  end
  if rest(block, now) > 0 then
    return block, 0
  end
  return start(block, limit, now), charged
end

local function read(limit, batch, from)
  limit.block_for, limit.block_up_to = batch[from], batch[from + 1]
  return from + 2
end

return {read = read, charge = charge, owe = owe, deny = deny}
