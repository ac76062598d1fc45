-- Twin of `Kind.owe` of model.py: charges a cost that has come about, whatever there is room for.
-- A limit has the functions of its algorithm as `look`, its `hit`, and `owe`.

-- -> state, allowed, room, left, reset_after, retry_after: what was left before it, and what a look after it finds
local function charge(state, limit, cost, now)
  local room = select(4, limit.look(state, limit, 0, now))
  if cost > 0 then
    state = limit.owe(state, limit, cost, now)
  end
  local _, allowed, _, left, reset, retry = limit.look(state, limit, 0, now)
  if cost > 0 and room == 0 and allowed == 1 then
    allowed, retry = 0, NEVER
  end
  return state, allowed, room, left, reset, retry
end

return {charge = charge}
