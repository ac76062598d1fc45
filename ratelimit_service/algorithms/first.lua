-- Twin of first.py.
-- A member: {limit, state, second, cost}; a limit has the function of its algorithm as `look` if it owes, else as `hit`.

local PASSED_OVER = 4

-- -> state, allowed, room, left, reset_after, retry_after
local function hit(member, cost, now)
  local limit, state = member.limit, member.state
  if limit.with_second then
    state = limit.with_second.own(state, limit, now)
  end
  return (limit.look or limit.hit)(state, limit, cost, now)
end

local function reserved_in(members, now, owes)
  local best, chosen = owes and 0 or 1, nil
  for i, member in ipairs(members) do
    local with_second = member.limit.with_second
    local found = with_second and with_second.reservation and with_second.reservation(member.second, now) or 0
    if found > best then
      best, chosen = found, i
    end
  end
  return chosen
end

-- -> what is answered if it has no room; nil if it has
local function tried(member, now, is_last)
  local cost = member.limit.look and 0 or member.cost
  if cost == 0 and not is_last then
    cost = 1
  end
  local answer = {hit(member, cost, now)}
  return answer[2] == 0 and answer or nil
end

local function is_used(member, now)
  local limit = member.limit
  local _, _, _, left = hit(member, 0, now)
  local _, _, _, most = hit({limit = limit}, 0, now)
  return left < most
end

-- -> the number of the limit to charge, and the answers of the others; nil: all deny, and how they do
local function choose(members, now)
  local owes, cost, last = members[1].limit.look, members[1].cost, #members
  local chosen = (cost > 0 or owes) and reserved_in(members, now, owes) or nil
  if not chosen and owes and members[1].limit.with_second then
    chosen = last
  end
  local answers = {}
  for i, member in ipairs(members) do
    if chosen then
      break
    elseif cost < 0 then
      chosen = is_used(member, now) and i or nil
    else
      answers[i] = tried(member, now, i == last)
      chosen = not answers[i] and i or nil
    end
  end
  if not chosen and (owes or cost < 0) then
    chosen = owes and last or 1
  end
  for i, member in ipairs(chosen and members or {}) do
    local _, _, _, left, reset = hit(member, 0, now)
    answers[i] = {nil, PASSED_OVER, left, left, reset, 0}
  end
  return chosen, answers
end

return {choose = choose}
