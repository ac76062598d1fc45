-- Twin of spaced.py.
-- The second counter: {when the next hit may come, when the last one came}.

local function charge(state, last, limit, cost, now)
  if cost > 0 and last and last[1] > now then
    local _, _, _, left, reset = limit.hit(state, limit, 0, now)
    return state, last, 0, 0, left, reset, last[1] - now
  end
  local after, allowed, room, left, reset, retry = limit.hit(state, limit, cost, now)
  if cost > 0 and allowed == 1 then
    last = {now + limit.gap, now}
  end
  return after, last, allowed, room, left, reset, retry
end

local function read(limit, batch, from)
  limit.gap = batch[from]
  return from + 1
end

return {read = read, charge = charge}
