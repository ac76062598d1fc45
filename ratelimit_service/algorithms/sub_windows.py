"""Sub-windows: the window cut into parts, each with its count; a part leaves the view only when all of it is too old.

The part that is leaving is counted whole as long as any of it is in view, so there is one more than the window has.
That is why no moment ever sees more than the limit in the window that lies before it, whatever comes when; an estimate
of what is left of that part could not promise it. The price: after a burst, room comes back up to one part late. Where
the parts do not divide the window, each is a fraction of a microsecond longer.

State: the moment from which the newest count is too old, then the counts, the newest first, as far back as there are
any. The newest is never 0, and that moment tells which part it is of. Hot path.
"""

from typing import Final

from ratelimit_service.model import NEVER, Decision, Limit

name: Final = "sub_windows"

State = tuple[int, ...]


def hit(state: State | None, limit: Limit, cost: int, now: int) -> tuple[State | None, Decision]:
    """Charge `cost` to the current part."""
    most = limit.requests + limit.exceed
    kept = limit.parts + 1
    part = -(-limit.window // limit.parts)
    index = now // part
    counts: tuple[int, ...] = ()
    age = 0
    if state is not None and state[0] > now:
        last = -(-state[0] // part) - kept
        if last > index:  # the clock stepped back: never reopen what has passed
            index = last
        age = index - last
        counts = state[1 : 1 + kept - age]
    else:
        state = None
    before = sum(counts)
    used = before + cost

    allowed = used <= most
    if cost > 0 and (allowed or (limit.count_refused and cost <= most)):
        if age:
            counts = (0,) * age + counts
        elif not counts:
            counts = (0,)
        newest = counts[0] + cost
        if newest > most:  # refused: more than the limit in one part keeps nobody out longer
            newest = most if most > counts[0] else counts[0]
        counts = (newest, *counts[1:])
        age = 0
        state = ((index + kept) * part, *counts)
    elif cost < 0:
        allowed = True
        state, counts, age = _refund(counts, -cost, age, index, kept, part)

    left = most - sum(counts)
    over = used - limit.requests
    if over > 0:
        over = over if over < cost else max(0, cost)
    else:
        over = 0
    retry = 0
    if not allowed:
        retry = NEVER if cost > most else (index - age + _age_of_room(counts, kept, cost - left)) * part - now
    return state, Decision(allowed, left if left > 0 else 0, over, 0 if state is None else state[0] - now, retry)


def _refund(
    counts: tuple[int, ...], cost: int, age: int, index: int, kept: int, part: int
) -> tuple[State | None, tuple[int, ...], int]:
    """Give back what was charged last: the state, its counts, and the age of the newest."""
    first = 0
    while first < len(counts) and counts[first] <= cost:
        cost -= counts[first]
        first += 1
    if first == len(counts):
        return None, (), 0
    counts = (counts[first] - cost, *counts[first + 1 :])
    age += first
    return ((index - age + kept) * part, *counts), counts, age


def _age_of_room(counts: tuple[int, ...], kept: int, excess: int) -> int:
    """How many parts after the newest so many of the oldest have left."""
    oldest = len(counts)
    while excess > 0:
        oldest -= 1
        excess -= counts[oldest]
    return kept - oldest
