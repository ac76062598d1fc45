-- Twin of `Kind.owe` of model.py: charges a cost that has come about, whatever there is room for.
-- A limit has the functions of its algorithm as `look`, its `hit`, and `owe`.

-- -> state, got, over, left, reset_after, retry_after: -3 or -4, whether a look after it is allowed; what was above the limit
local function charge(state, limit, cost, now)
  local state, _, _, room = limit.look(state, limit, 0, now)
  if cost > 0 then
    state = limit.owe(state, limit, cost, now)
  end
  local _, allowed, _, left, reset, retry = limit.look(state, limit, 0, now)
  if cost > 0 and room == 0 and allowed == 1 then
    allowed, retry = 0, NEVER
  end
  return state, allowed == 1 and -3 or -4, max(0, min(cost, cost + limit.exceed - room)), left, reset, retry
end

return {charge = charge}
