"""What became of a rule's reservations, and what they cost beside the estimate: sums that processes add up. Pure.

A settle may reach another process, or another instance, than its request did, and no id is kept here. So what is made
and what is settled are counted apart, by the moment at which `hold` is over, to an eighth of it. Their difference is
what is open, or was never settled once that moment has passed. Added up over all processes it is right; in one of
them, which sees the settles of others, it may be below 0.

Costs are counted in cells, whose bounds differ by a seventh to a fourth: a quantile is at most an eighth off. No cost
is kept but the highest. With more than `MOST_CELLS` the lowest are counted together, as by a DDSketch (Masson, Rim and
Lee, 2019): the low quantiles of costs that differ a thousandfold are then too high.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ratelimit_service.model import SETTLED_BEFORE, Decision, Reserving, SettledById
from ratelimit_service.system.clock import HOUR, SECOND, Clock, duration_in_words, steady_clock

MOST_CELLS: Final = 40

_PARTS: Final = 8
"""Into how many parts `hold` is cut; a rule has one more at once, and again as many for a while when `hold` changes."""


class Reservations(NamedTuple):
    """What became of the reservations of one rule, in one process or in several; amounts are units of its limit."""

    reservations_made: int = 0
    reservations_made_units: int = 0
    reservations_open: int = 0
    """Neither settled, nor is their `hold` over."""
    reservations_open_units: int = 0
    reservations_oldest_seconds: float = 0
    """Of those that are open, since when the oldest one is, to an eighth of `hold`."""
    reservations_settled: int = 0
    """Settled in time: while their ids were known."""
    reservations_overran: int = 0
    """The part of these that cost more than was reserved."""
    reservations_late: int = 0
    """Settles of ids without a reservation: their `hold` was over, or they never had one."""
    reservations_due: int = 0
    """Their `hold` is over."""
    reservations_due_units: int = 0
    reservations_unsettled: int = 0
    """The part of these that nothing settled."""
    reservations_unsettled_units: int = 0
    settled_lately: int = 0
    """Settled in time, in the last one to two hours."""
    overran_lately: int = 0
    settled_p50: int = 0
    """What half of these cost at most."""
    settled_p95: int = 0
    settled_most: int = 0

    @property
    def reservations_due_settled_units(self) -> int:
        """The units of those whose `hold` is over that were settled."""
        return self.reservations_due_units - self.reservations_unsettled_units

    def merge(self, other: "Reservations") -> "Reservations":
        """The same of two instances, or of two rules, together: sums, and the oldest and highest of both."""
        pairs = zip(self._fields, self, other, strict=True)
        return Reservations._make(max(one, more) if name in _HIGHEST else one + more for name, one, more in pairs)


NO_RESERVATIONS: Final = Reservations()

_HIGHEST: Final = frozenset({"reservations_oldest_seconds", "settled_p50", "settled_p95", "settled_most"})


def in_words(found: Reservations, estimate: int) -> Mapping[str, str]:
    """What became of reservations, and what they cost beside the estimate, by subject; nothing of none."""
    words = {}
    if found.reservations_made or found.reservations_open:
        words["reserved"] = f"{found.reservations_open:,} open with {found.reservations_open_units:,} units"
        if found.reservations_oldest_seconds:
            age = duration_in_words(round(found.reservations_oldest_seconds) * SECOND)
            words["reserved"] += f", the oldest for {age}"
        if found.reservations_due_units > 0:
            share = _percent(found.reservations_unsettled_units, found.reservations_due_units)
            words["reserved"] += f"; {share} of what was reserved longer than hold ago was never settled"
    settled = []
    if found.settled_lately:
        of = f"p95 of {found.settled_lately:,} lately: {found.settled_p95:,}"
        settled.append(f"{of}, p50 {found.settled_p50:,}, the most {found.settled_most:,}")
        overran = f"{_percent(found.overran_lately, found.settled_lately)} overran"
        settled.append(f"estimate {estimate:,}: {overran}" if estimate else overran)
    if found.reservations_late:
        settled.append(f"{found.reservations_late:,} late, of ids without a reservation")
    return words | ({"settled": "; ".join(settled)} if settled else {})


def _percent(part: int, whole: int) -> str:
    return f"{100 * max(0, part) / whole:.0f} %"


class Costs:
    """How many cost how much."""

    __slots__ = ("_cells", "most", "overran")

    def __init__(self) -> None:
        self._cells: dict[int, int] = {}
        self.overran = 0
        """Those that cost more than was reserved."""
        self.most = 0

    def add(self, cost: int, *, overran: bool) -> None:
        """Count one."""
        self._add(_cell_of(cost), 1)
        self.overran += overran
        self.most = max(self.most, cost)

    def merge(self, cells: Sequence[tuple[int, int]], overran: int, most: int) -> None:
        """Add what `packed` returned."""
        for cell, count in cells:
            self._add(cell, count)
        self.overran += overran
        self.most = max(self.most, most)

    def packed(self) -> tuple[Sequence[tuple[int, int]], int, int]:
        """All that there is, for another one to `merge`."""
        return tuple(self._cells.items()), self.overran, self.most

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self._cells.values())

    def quantile(self, percent: int) -> int:
        """What so many of a hundred cost at most; 0 without any."""
        left = -(-self.count * percent // 100)
        for cell in sorted(self._cells):
            left -= self._cells[cell]
            if left <= 0:
                return min(_middle_of(cell), self.most)
        return 0

    def _add(self, cell: int, count: int) -> None:
        cells = self._cells
        cells[cell] = cells.get(cell, 0) + count
        if len(cells) > MOST_CELLS:
            lowest, next_lowest = sorted(cells)[:2]
            cells[next_lowest] += cells.pop(lowest)


def _cell_of(cost: int) -> int:
    """Four cells from each power of two to the next; below 8 a cell for each cost."""
    shift = max(0, cost.bit_length() - 3)
    return 4 * shift + (cost >> shift)


def _middle_of(cell: int) -> int:
    shift = max(0, cell // 4 - 1)
    return ((cell - 4 * shift) << shift) + ((1 << shift) - 1) // 2


class ReservationSums:
    """The reservations of one rule that this process has made and settled."""

    __slots__ = ("_before", "_by_end", "_clock", "_costs", "_due", "_hold", "_late", "_overran", "_since")

    def __init__(self, clock: Clock = steady_clock) -> None:
        self._clock = clock
        self._hold = 0
        self._by_end: dict[int, _Part] = {}
        """By the moment at which `hold` is over."""
        self._due = _Part()
        """Those whose moment has passed."""
        self._overran = self._late = 0
        self._since = clock()
        self._before, self._costs = Costs(), Costs()
        """Of the hour before, and of the one since that moment."""

    def note(self, hold: int, cost: int, decision: Decision, *, settles: bool) -> None:
        """Count what a hit of this cost was answered, and what a settle was."""
        self._hold = hold
        if isinstance(decision, Reserving):
            self._part(self._clock(), hold).add(1, cost, 0, 0)
        elif isinstance(decision, SettledById):
            if decision.reserved != SETTLED_BEFORE:
                now = self._clock()
                self._part(now - decision.age, hold).add(0, 0, 1, decision.reserved)
                self._turn(now)
                self._costs.add(cost, overran=decision.over > 0)
                self._overran += decision.over > 0
        elif settles and cost:
            self._late += 1

    def drain(self) -> Sequence[Any] | None:
        """Return all sums, for those of another process to `add`, and reset them; None if there are none."""
        costs = self._lately()
        if not (self._by_end or self._due.any or self._late or costs.count):
            return None
        parts = [(end, part.numbers) for end, part in self._by_end.items()]
        drained = (self._hold, parts, self._due.numbers, self._overran, self._late, costs.packed())
        self._by_end, self._due = {}, _Part()
        self._overran = self._late = 0
        self._before, self._costs = Costs(), Costs()
        return drained

    def add(self, drained: Sequence[Any]) -> None:
        """Add the sums that `drain` returned in another process of this machine."""
        self._hold, parts, due, overran, late, costs = drained
        self._turn(self._clock())
        for end, numbers in parts:
            self._by_end.setdefault(end, _Part()).add(*numbers)
        self._due.add(*due)
        self._overran += overran
        self._late += late
        self._costs.merge(*costs)

    def read(self) -> Reservations:
        """All of it."""
        now = self._clock()
        self._end(now)
        parts, due, costs = [self._by_end[end] for end in sorted(self._by_end)], self._due, self._lately()
        return Reservations(
            due.made + sum(part.made for part in parts),
            due.units + sum(part.units for part in parts),
            sum(part.open for part in parts),
            sum(part.open_units for part in parts),
            self._oldest(now) / SECOND,
            due.settled + sum(part.settled for part in parts),
            self._overran,
            self._late,
            due.made,
            due.units,
            due.open,
            due.open_units,
            costs.count,
            costs.overran,
            costs.quantile(50),
            costs.quantile(95),
            costs.most,
        )

    def _part(self, made: int, hold: int) -> "_Part":
        """The sums of what was made at that moment."""
        length = max(1, hold // _PARTS)
        end = -(-(made + hold) // length) * length
        part = self._by_end.get(end)
        if part is None:
            now = self._clock()
            self._end(now)
            part = self._due if end <= now else self._by_end.setdefault(end, _Part())
        return part

    def _end(self, now: int) -> None:
        for end in [end for end in self._by_end if end <= now]:
            self._due.add(*self._by_end.pop(end).numbers)

    def _oldest(self, now: int) -> int:
        """Since when the oldest open one is; 0 without any."""
        # An answer that came sooner or later than that to the request is counted in the part beside: so the next
        # part must agree.
        found, ends = 0, sorted(self._by_end)
        for index, end in enumerate(ends):
            found += self._by_end[end].open
            after = self._by_end[ends[index + 1]].open if index + 1 < len(ends) else 0
            if found > 0 and found + after > 0:
                return min(max(0, now - end + self._hold), self._hold)
        return 0

    def _lately(self) -> Costs:
        self._turn(self._clock())
        both = Costs()
        both.merge(*self._before.packed())
        both.merge(*self._costs.packed())
        return both

    def _turn(self, now: int) -> None:
        passed = now - self._since
        if passed >= HOUR:
            self._before = self._costs if passed < 2 * HOUR else Costs()
            self._costs = Costs()
            self._since = now


class _Part:
    """Reservations whose `hold` is over at one moment."""

    __slots__ = ("made", "settled", "settled_units", "units")

    def __init__(self) -> None:
        self.made = self.units = self.settled = self.settled_units = 0

    def add(self, made: int, units: int, settled: int, settled_units: int) -> None:
        self.made += made
        self.units += units
        self.settled += settled
        self.settled_units += settled_units

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return self.made, self.units, self.settled, self.settled_units

    @property
    def any(self) -> bool:
        return any(self.numbers)

    @property
    def open(self) -> int:
        return self.made - self.settled

    @property
    def open_units(self) -> int:
        return self.units - self.settled_units
