"""Sliding log: when the last requests came; there is room when enough of them are a window old.

Exact, and as large as its limit: sensible for small ones. A request counts until exactly one window later. With
`count_refused` a refused hit is written down too and the oldest is forgotten for it, so that a client that keeps trying
faster than the limit stays out.

A hit is one entry, whatever it costs. The units of cost are numbered in the order in which they came, modulo 2**32; an
entry has the moment from which its units are too old, and the number of its first one.

State: the moments of the entries, the newest first, 8 bytes each; then the number that comes next, and the first
numbers of the entries, the newest first, 4 bytes each. Hot path.
"""

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Final

from ratelimit_service.model import NEVER, Decision, Limit

name: Final = "sliding_log"

LONGEST: Final = 65_535
"""Units: at 12 bytes for each entry 800 kB a counter, and as much to copy for each hit. In Redis numbers are modulo
65,536. `sub_windows` keeps larger limits as well."""

_MOMENT: Final = Struct("q")
_NUMBER: Final = Struct("I")
_moment, _number = _MOMENT.unpack_from, _NUMBER.unpack_from
_ENTRY: Final = _MOMENT.size + _NUMBER.size
_ALL: Final = 2**32 - 1


def problem(limit: Limit) -> str | None:
    """Why no log can be kept for this limit."""
    most = limit.requests + limit.exceed
    if most > LONGEST:
        return f"it would remember {most} moments for each counter, and {LONGEST} is the most; take sub_windows"
    return None


def hit(  # noqa: PLR0912 - hot: a call costs as much as a third of it
    state: bytes | None, limit: Limit, cost: int, now: int
) -> tuple[bytes | None, Decision]:
    """Write down that `cost` units come now."""
    requests = limit.requests
    most = requests + limit.exceed
    end = now + limit.window
    newest = oldest = before = count = entries = top = 0
    if state is not None:
        # Only what is young enough counts: so many entries, and the units from the number `top - before` on.
        (newest,) = _moment(state)
        if newest > now:
            count = entries = len(state) // _ENTRY
            (oldest,) = _moment(state, 8 * count - 8)
            if oldest <= now:
                entries -= 1  # most often only one entry is too old: that saves the search
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
        # Joined, a large log takes two thirds of the time that + does.
        return b"".join((_MOMENT.pack(end), state[: 8 * entries], _NUMBER.pack(top + cost & _ALL), numbers)), decision

    allowed = used <= most
    left = most - before
    if cost > 0 and limit.count_refused and cost <= most:
        # It pushes out as many of the oldest units as it must: what is older than the limit has decides nothing.
        state = _push(state, end, cost, most) if state is not None else None
        newest, left = end, 0
    elif cost < 0:
        allowed = True
        if used <= 0 or state is None:
            state, left = None, most
        else:
            state = _strike(state, entries, -cost)
            (newest,) = _moment(state)
            left = most - used

    retry = 0
    if not allowed:
        # There is room when no more than the newest `most - cost` are left.
        if cost > most or state is None:
            retry = NEVER
        elif not limit.count_refused and top - _number(state, 8 * count + 4 * entries - 4)[0] & _ALL <= most - cost:
            retry = oldest - now  # most often that is when the oldest entry leaves
        else:
            retry = _moment_of(state, most - cost) - now
    return state, Decision(allowed, left if left > 0 else 0, over, 0 if state is None else newest - now, retry)


def _push(state: bytes, end: int, cost: int, most: int) -> bytes:
    """The newest `most` units of the log and of one more entry of that cost."""
    count = len(state) // _ENTRY
    numbers = memoryview(state)[8 * count :].cast("I")
    top = numbers[0]
    kept = bisect_left(range(count + 1), most - cost, key=lambda index: top - numbers[index] & _ALL)
    return b"".join(
        (
            _MOMENT.pack(end),
            state[: 8 * kept],
            _NUMBER.pack(top + cost & _ALL),
            state[8 * count : 8 * count + 4 * kept],
            _NUMBER.pack(top + cost - most & _ALL),
        )
    )


def _strike(state: bytes, entries: int, units: int) -> bytes:
    """The log of the newest entries, without so many of their newest units."""
    count = len(state) // _ENTRY
    numbers = memoryview(state)[8 * count :].cast("I")
    top = numbers[0]
    gone = bisect_right(range(1, entries + 1), units, key=lambda index: top - numbers[index] & _ALL)
    left = state[8 * count + 4 * (gone + 1) : 8 * count + 4 * (entries + 1)]
    return state[8 * gone : 8 * entries] + _NUMBER.pack(top - units & _ALL) + left


def _moment_of(state: bytes, unit: int) -> int:
    """From when on the unit with so many newer ones is too old."""
    count = len(state) // _ENTRY
    numbers = memoryview(state)[8 * count :].cast("I")
    top = numbers[0]
    entry = count - 1  # most often it is the oldest
    if top - numbers[entry] & _ALL > unit:
        entry = bisect_right(range(count), unit, key=lambda index: top - numbers[index] & _ALL) - 1
    moment: int = _moment(state, 8 * entry)[0]
    return moment
