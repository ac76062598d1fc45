"""Sliding log: the times of the latest requests; there is room when enough of them are a window old.

Exact, and as large as its limit, so it suits small limits. A request counts until exactly one window later. With
`count_refused` a denied hit is logged too and evicts the oldest entry, so that a client that retries faster than the
limit stays denied.

A hit is one entry, at any cost. The units of cost are numbered in the order of arrival, modulo 2**32. An entry has the
moment from which its units are too old, and the number of its first unit.

State: the moments of the entries, the newest first, 8 bytes each; then the number that comes next, and the first
numbers of the entries, the newest first, 4 bytes each. Hot path.
"""

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Final

from ratelimit_service.algorithms.algorithm import room_at_reset
from ratelimit_service.model import NEVER, Decision, Limit

name: Final = "sliding_log"
leases: Final = False
room_after: Final = room_at_reset

LONGEST: Final = 65_535
"""The largest limit, in units: at 12 bytes per entry 800 kB for a counter, copied at each hit. In Redis numbers are
modulo 65,536, which is the most that is kept. For larger limits there is `sub_windows`."""

_MOMENT: Final = Struct("q")
_NUMBER: Final = Struct("I")
_moment, _number = _MOMENT.unpack_from, _NUMBER.unpack_from
_ENTRY: Final = _MOMENT.size + _NUMBER.size
_ALL: Final = 2**32 - 1


def problem(limit: Limit) -> str | None:
    """The reason why this limit is not supported, or None."""
    most = limit.requests + limit.exceed
    if most > LONGEST:
        return f"it would remember {most} moments for each counter, the maximum is {LONGEST}; use sub_windows"
    return None


def hit(  # noqa: PLR0912 - hot: a call costs as much as a third of it
    state: bytes | None, limit: Limit, cost: int, now: int
) -> tuple[bytes | None, Decision]:
    """Log `cost` units at `now`."""
    requests = limit.requests
    most = requests + limit.exceed
    end = now + limit.window
    newest = oldest = before = count = entries = top = 0
    if state is not None:
        # What counts: the newest `entries` entries, and the units from the number `top - before` on.
        (newest,) = _moment(state)
        if newest > now:
            count = entries = len(state) // _ENTRY
            (oldest,) = _moment(state, 8 * count - 8)
            if oldest <= now:
                entries -= 1  # usually only one entry is too old: no search needed
                (oldest,) = _moment(state, 8 * entries - 8)
                if oldest <= now:
                    entries = count - bisect_right(memoryview(state)[: 8 * count].cast("q")[::-1], now)
                    (oldest,) = _moment(state, 8 * entries - 8)
            (top,) = _number(state, 8 * count)
            before = top - _number(state, 8 * count + 4 * entries)[0] & _ALL
            end = newest if newest > end else end  # the clock may have stepped back: moments stay in order
        else:
            state = None
    used = before + cost
    over = 0
    if used > requests and cost > 0:
        over = used - requests if before < requests else cost

    if cost > 0 and used <= most:
        decision = Decision(True, most - used, over, end - now, 0)
        if state is None:
            return _MOMENT.pack(end) + _NUMBER.pack(cost) + _NUMBER.pack(0), decision
        numbers = state[8 * count : 8 * count + 4 * entries + 4]
        # For a large log, join takes two thirds of the time of +.
        return b"".join((_MOMENT.pack(end), state[: 8 * entries], _NUMBER.pack(top + cost & _ALL), numbers)), decision

    allowed = used <= most
    left = most - before
    if cost > 0 and limit.count_refused and cost <= most:
        # The hit evicts the oldest units: only the newest can decide, one more than the limit, which denies looks too.
        state = _push(state, end, cost, most + 1) if state is not None else None
        newest, left = end, 0
    elif cost < 0:
        allowed = True
        if used <= 0 or state is None:
            state, left = None, most
        else:
            state = _remove_newest(state, entries, -cost)
            (newest,) = _moment(state)
            left = most - used

    retry = 0
    if not allowed:
        # There is room when no more than the newest `most - cost` are left.
        if cost > most or state is None:
            retry = NEVER
        elif not limit.count_refused and top - _number(state, 8 * count + 4 * entries - 4)[0] & _ALL <= most - cost:
            retry = oldest - now  # usually the expiry of the oldest entry
        else:
            retry = _moment_of(state, most - cost) - now
    return state, Decision(allowed, left if left > 0 else 0, over, 0 if state is None else newest - now, retry)


def owe(state: bytes | None, limit: Limit, cost: int, now: int) -> bytes | None:
    """As algorithm.py says: one unit more than the limit is kept, until its moment; older ones decide nothing."""
    most = limit.requests + limit.exceed
    after, decision = hit(state, limit, cost, now)
    if decision.allowed:
        return after
    cost = min(cost, most + 1)
    end = now + limit.window
    if state is None or _moment(state)[0] <= now:
        return _MOMENT.pack(end) + _NUMBER.pack(cost) + _NUMBER.pack(0)
    return _push(state, max(end, _moment(state)[0]), cost, most + 1)


def _push(state: bytes, end: int, cost: int, units: int) -> bytes:
    """The newest `units` units of the log with one more entry of this cost."""
    count = len(state) // _ENTRY
    numbers = memoryview(state)[8 * count :].cast("I")
    top = numbers[0]
    kept = bisect_left(range(count + 1), units - cost, key=lambda index: top - numbers[index] & _ALL)
    return b"".join(
        (
            _MOMENT.pack(end),
            state[: 8 * kept],
            _NUMBER.pack(top + cost & _ALL),
            state[8 * count : 8 * count + 4 * kept],
            _NUMBER.pack(top + cost - units & _ALL),
        )
    )


def _remove_newest(state: bytes, entries: int, units: int) -> bytes:
    """The log of the newest `entries` entries, without their newest `units` units."""
    count = len(state) // _ENTRY
    numbers = memoryview(state)[8 * count :].cast("I")
    top = numbers[0]
    gone = bisect_right(range(1, entries + 1), units, key=lambda index: top - numbers[index] & _ALL)
    left = state[8 * count + 4 * (gone + 1) : 8 * count + 4 * (entries + 1)]
    return state[8 * gone : 8 * entries] + _NUMBER.pack(top - units & _ALL) + left


def _moment_of(state: bytes, unit: int) -> int:
    """The moment from which the unit with `unit` newer units is too old."""
    count = len(state) // _ENTRY
    numbers = memoryview(state)[8 * count :].cast("I")
    top = numbers[0]
    entry = count - 1  # usually the oldest
    if top - numbers[entry] & _ALL > unit:
        entry = bisect_right(range(count), unit, key=lambda index: top - numbers[index] & _ALL) - 1
    moment: int = _moment(state, 8 * entry)[0]
    return moment
