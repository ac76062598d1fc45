-- Twin of lease.py. For `take` a limit has the length of its terms as `term`, and its algorithm's twin as `twin`.
-- A lease: an expiry, which its holder writes; the fields of Lease in their order; then whatever its holder appends.

local LEFT, GRANTED, END, TERM_END, BACK, BACK_END, ASKED_UNTIL = 2, 3, 4, 5, 6, 7, 8
local DEMAND, SINCE, RATE = 13, 14, 15
local SHARE, LEAST_TERM = 4, 125000

-- -> state, units, room, term_end, reset_after, retry_after
local function take(state, limit, least, extra, now)
  local hit = limit.hit
  local found = limit.twin
  local ends = found.term_end(state, limit, now)
  local before = found.leased_from and found.leased_from(state, ends) or state
  local _, _, _, left = hit(before, limit, 0, now)
  if left < least and found.leased_from and select(4, hit(state, limit, 0, now)) >= least then
    while left < least and ends - now >= 2 * LEAST_TERM do
      ends = now + floor((ends - now) / 2)
      before = found.leased_from(state, ends)
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

local function put_back(lease, units, term_end)
  if units > 0 and (lease[BACK] == 0 or term_end >= lease[BACK_END]) then
    lease[BACK] = (term_end == lease[BACK_END] and lease[BACK] or 0) + units
    lease[BACK_END] = term_end
  end
end

local function expire(lease)
  put_back(lease, lease[LEFT], lease[TERM_END])
  lease[LEFT], lease[GRANTED] = 0, 0
end

local function deposit(lease, units, ends, term_end)
  if term_end ~= lease[TERM_END] then
    expire(lease)
    lease[END], lease[TERM_END] = 0, term_end
  end
  lease[LEFT], lease[GRANTED], lease[END] = lease[LEFT] + units, lease[GRANTED] + units, max(lease[END], ends)
end

local function measure(lease, now, term, memory)
  local measured = max(0, now - lease[SINCE]) + memory
  lease[RATE] = muldiv(1000 * lease[DEMAND], term, measured) + muldiv(lease[RATE], memory, measured)
  lease[DEMAND], lease[SINCE] = 0, now
end

local function low(lease, extra, round_trip, term)
  return min(muldiv(2 * floor(lease[RATE] / 1000), round_trip, term), floor(extra / 2))
end

-- -> the fields of Wanted
local function ask(lease, least, extra, ends)
  local wanted = {lease[BACK], lease[BACK_END], least, max(0, extra - lease[LEFT])}
  lease[BACK], lease[ASKED_UNTIL] = 0, ends
  return wanted
end

return {
  take = take, put_back = put_back, expire = expire, deposit = deposit, measure = measure, low = low, ask = ask,
}
