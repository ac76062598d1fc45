-- Twin of leasing.py. A limit has the length of its terms as `term`, and its algorithm's twin as `twin`.

local SHARE = 4
local LEAST_TERM = 125000

-- -> state, units, room, term_end, reset_after, retry_after
local function take(state, limit, least, extra, now)
  local hit = limit.hit
  local found = limit.twin
  local ends = found.term_end(state, limit, now)
  local before = found.lent_from and found.lent_from(state, ends) or state
  local _, _, _, left = hit(before, limit, 0, now)
  if left < least and found.lent_from and select(4, hit(state, limit, 0, now)) >= least then
    while left < least and ends - now >= 2 * LEAST_TERM do
      ends = now + floor((ends - now) / 2)
      before = found.lent_from(state, ends)
      _, _, _, left = hit(before, limit, 0, now)
    end
  end
  local wanted = max(least, (muldiv(extra, ends - now, limit.term)))
  local units = min(left, wanted, max(least, floor(left / SHARE)))
  local reset
  local retry = 0
  if units > 0 then
    state, _, _, left, reset = hit(before, limit, units, now)
  else
    _, _, _, left, reset = hit(state, limit, 0, now)
    if left == 0 then
      retry = select(6, hit(state, limit, 1, now))
    end
  end
  return state, units, left, ends, reset, retry
end

return {take = take}
