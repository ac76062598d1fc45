"""Leases: units of a counter that are charged in advance, and that a holder then spends without a call. Pure.

A lease has two sides. The *store* that has the counter grants it, by `take`, and takes back what was not spent, by the
`give` of the algorithm. A *holder* has a `Lease`, and allows hits by it: an instance, which remembers its leases in
memory (`stores/redis/leases.py`), or a region, whose leases are in its own Redis (`kinds/leased.py`). The Lua twin is
`lease.lua`.

Terms. The store's clock is cut into terms of one length, and at every end of a window, or of a part of one. Each
instance has a *phase* for a counter, by which its terms begin later than at multiples of their length, so that not all
ask at once; but not of a bucket, of which a unit that is given back counts by when the leases of others may end, and
not where a part has few terms, of which the phase would make one more. A lease ends with the term in which it was
granted, so a unit counts in the window, or the part, in which it is spent. A bucket is charged as if at the term's end:
charged now, it would regain tokens while the lease is held.

==========  =================================  ========================================================================
a lease is  when                               what the holder does
==========  =================================  ========================================================================
empty       `left` is 0                        asks for one, as soon as there is demand
live        `left` > 0, and `now` < `end`      spends it; asks for more in advance, when `left` is low
ended       `left` > 0, and `now` >= `end`     expires it: what is left can only be given back
asked for   `now` < `asked_until`              asks for nothing more
denied      `now` < `deny_until`               denies what is more than is left, without an ask
==========  =================================  ========================================================================

=========  ============================================================================================================
event      what becomes of the units
=========  ============================================================================================================
`spend`    leave `left`
`refund`   those that were spent of this lease are `left` again
`ask`      those in `back` are given back, before the store takes others
`deposit`  what was granted is added to `left`, until `end`; what is left of another term expires
`expire`   those in `left` become `back`, to be given back for their term; of two terms only those of the later one,
           since an ask has one `back_end`: the others are lost
=========  ============================================================================================================

An ask or an answer that is lost, and a holder that dies, lose what was on its way or leased: so no failure makes units.

Laws: the store is charged before it grants, and the lease before a hit is allowed, so all holders together never allow
more than the limit. A unit is spent before the end of the term in which it was charged, by the store's clock: a lease
is counted from the moment of the ask, which is earlier than what the store did. Units of two terms are never mixed.
Units are conserved: granted = spent + returned + lost + `left` + `back`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, cast

from ratelimit_service.algorithms.algorithm import Algorithm
from ratelimit_service.model import Limit, State
from ratelimit_service.system.clock import SECOND

_TERMS: Final = 10
"""The terms in a window: in longer ones quiet instances hold what others need, 30 % of it with terms as long as the
window."""

_LONGEST: Final = 3 * SECOND
"""The longest term. Where 30 hits a second come on each of 1,000 counters, terms of a second send 5 to 9 % of them,
these half as many; and what an instance holds is no larger a part of a window than in short ones."""

LEAST_TERM: Final = SECOND // 8
"""The shortest term of a bucket where `least` does not fit for longer; in shorter terms, with regions a tenth of a
second apart, most hits would wait for the next lease."""

_SHARE: Final = 4
"""One in so many of the units that are left is granted at once, so that the last ones go to all who ask."""

_DRIFT: Final = 1000
"""A lease is shorter than its term by one in so many parts: Linux lets clocks that are being adjusted run up to 500 ppm
fast or slow."""


class Leasing(Algorithm, Protocol):
    """An algorithm that leases."""

    @property
    def leased_from(self) -> Callable[[State | None, int], State | None] | None:
        """The state that a lease until then is charged to, of a bucket, in which room returns while it is held."""

    def term(self, limit: Limit) -> int:
        """The length of a term."""

    def staggered(self, limit: Limit) -> bool:
        """Whether instances have phases."""

    def term_end(self, state: State | None, limit: Limit, now: int, phase: int) -> int:
        """The end of the term that `now` is in; terms begin that much later than at multiples of their length."""

    def give(self, state: State | None, limit: Limit, units: int, term_end: int, now: int) -> State | None:
        """Give back units of a lease that ended then, or will: the new state."""


def leasing(algorithm: Algorithm) -> Leasing:
    """The algorithm of a limit that leases."""
    return cast("Leasing", algorithm)


class Granted(NamedTuple):
    """The answer of the store to an ask."""

    units: int
    room: int
    """What could still be charged."""
    term_end: int
    """By the store's clock, as `store_now`."""
    reset_after: int
    retry_after: int
    """The time until one unit could be charged, when neither a unit was taken nor any is left."""
    store_now: int

    def end(self, asked: int, early: int = 0) -> int:
        """The time when the units have to be spent, or so much earlier, by the clock of a holder that asked then."""
        rest = self.term_end - self.store_now
        return asked + rest - max(early, rest // _DRIFT)


def take(  # noqa: PLR0913, PLR0917 - a counter, what is asked, and when
    algorithm: Leasing, state: State | None, limit: Limit, least: int, extra: int, now: int, phase: int = 0
) -> tuple[State | None, Granted]:
    """Charge up to `extra` units, which last for a whole term; `least`: if they are scarce, but there are so many."""
    end = algorithm.term_end(state, limit, now, phase)
    leased_from = algorithm.leased_from
    before = state if leased_from is None else leased_from(state, end)
    _, look = algorithm.hit(before, limit, 0, now)
    if look.remaining < least and leased_from is not None and algorithm.hit(state, limit, 0, now)[1].remaining >= least:
        # What the bucket regains until the term's end is not granted: so the lease is a shorter one.
        while look.remaining < least and end - now >= 2 * LEAST_TERM:
            end = now + (end - now) // 2
            before = leased_from(state, end)
            _, look = algorithm.hit(before, limit, 0, now)
    wanted = max(least, extra * (end - now) // algorithm.term(limit))
    # What is needed now is granted whole; of what is asked for in advance a share, so that others get some too.
    units = min(look.remaining, wanted, max(least, look.remaining // _SHARE))
    if units > 0:
        state, look = algorithm.hit(before, limit, units, now)
    else:
        _, look = algorithm.hit(state, limit, 0, now)
    retry = 0 if units or look.remaining else algorithm.hit(state, limit, 1, now)[1].retry_after
    return state, Granted(units, look.remaining, end, look.reset_after, retry, now)


def length_of_term(span: int, window: int, longest: int = 0) -> int:
    """The largest whole fraction of the span that is at most `longest`; or a tenth of the window, and three seconds."""
    longest = longest or max(1, min(_LONGEST, window // _TERMS))
    return max(1, -(-span // max(1, -(-span // longest))))


def next_term(length: int, now: int, phase: int = 0) -> int:
    """The end of the term that `now` is in, without regard to windows."""
    return now - (now - phase) % length + length


class Wanted(NamedTuple):
    """The ask of a holder: units to give back, and then how many to take."""

    back: int
    back_end: int
    least: int
    """Those that are needed now."""
    extra: int
    """Those that are demanded in a whole term, beside what is left."""


@dataclass(slots=True)
class Lease:
    """The units that a holder has of one counter. Moments are by the holder's clock, but for ends of terms."""

    left: int = 0
    """Units to spend."""
    granted: int = 0
    """With those that were spent of this lease."""
    end: int = 0
    """Of `left`; never later than `term_end` is in truth."""
    term_end: int = 0
    """The same by the store's clock."""
    back: int = 0
    """Units of an ended lease, to be given back."""
    back_end: int = 0
    """Their `term_end`."""
    asked_until: int = 0
    """Until when an ask may still be answered."""
    deny_until: int = 0
    """Until when the store is known to have too little."""
    retry_at: int = 0
    """When the store may have a unit again, as it answered last."""
    reset_at: int = 0
    round_trip: int = 0
    """From an ask to its deposit."""
    demand: int = 0
    """Units of hits since then, denied ones too."""
    since: int = 0
    rate: int = 0
    """Thousandths of a unit that are demanded in a term."""

    @property
    def held(self) -> int:
        """All units that are here."""
        return self.left + self.back

    def spend(self, cost: int) -> int:
        """Spend what is left, but no more than the cost: how many units."""
        units = min(cost, self.left)
        self.left -= units
        return units

    def refund(self, units: int) -> int:
        """Have units again that were spent of this lease: how many."""
        back = min(units, self.granted - self.left)  # what an earlier lease spent was charged to another term
        self.left += back
        return back

    def deposit(self, units: int, end: int, term_end: int) -> int:
        """Have units to spend until that moment, of the term with this end: how many others are lost."""
        lost = 0
        if term_end != self.term_end:  # units of two terms are never mixed: each goes back to its own
            lost = self.expire()
            self.end, self.term_end = 0, term_end
        self.left += units
        self.granted += units
        self.end = max(self.end, end)
        return lost

    def expire(self) -> int:
        """Have what is left given back: how many units are lost."""
        units, self.left, self.granted = self.left, 0, 0
        return self.put_back(units, self.term_end)

    def put_back(self, units: int, term_end: int) -> int:
        """Have units of the term with this end given back: how many are lost, of these or of others."""
        if not units or (self.back and term_end < self.back_end):  # an ask has one `back_end`: the later one is kept
            return units
        same = term_end == self.back_end
        lost, self.back = (0, self.back + units) if same else (self.back, units)
        self.back_end = term_end
        return lost

    def measure(self, now: int, term: int, memory: int) -> None:
        """Measure the rate: what was demanded since it was measured last, and before that for so long."""
        measured = max(0, now - self.since) + memory
        self.rate = 1000 * self.demand * term // measured + self.rate * memory // measured
        self.demand, self.since = 0, now

    def low(self, extra: int, round_trip: int, term: int) -> int:
        """The units that have to be left, or more are asked for in advance: less than half of what an ask brings."""
        # Two round trips: one more ask may be under way before what is demanded meanwhile is granted.
        return min(2 * (self.rate // 1000) * round_trip // term, extra // 2)

    def ask(self, least: int, extra: int, until: int) -> Wanted:
        """Ask for so many, less what is left, and give back what is to be; it is answered until that moment."""
        wanted = Wanted(self.back, self.back_end, least, max(0, extra - self.left))
        self.back, self.asked_until = 0, until
        return wanted
