"""Leases: units of a counter that are charged in advance, and that one instance then spends without a call.

The store's clock is cut into terms of one length, and at every end of a window, or of a part of one. Each instance has
a *phase* for a counter, by which its terms begin later than at multiples of their length, so that not all ask at once;
but not of a bucket, of which a unit that is given back counts by when the leases of others may end. A lease ends with
the term in which it was taken, so a unit counts in the window, or the part, in which it is spent. A bucket is charged
as if at the term's end: charged now, it would regain tokens while the lease is held.

`take` comes after the hits of the same call, and is charged by `hit` as they are; without it a call is its hits. What
is left of a lease is given back into what it was charged to, by the `give` of the algorithm. The Lua twin is
`leasing.lua`.
"""

from typing import Final, NamedTuple, Protocol

from ratelimit_service.algorithms.algorithm import Algorithm
from ratelimit_service.model import Limit, State
from ratelimit_service.system.clock import SECOND

_TERMS: Final = 10
"""In a window: in longer terms quiet instances hold what others need, 30 % of it with terms as long as the window."""

_LONGEST: Final = 3 * SECOND
"""Of a term. Where 30 hits a second come on each of 1,000 counters, terms of a second send 5 to 9 % of them, these half
as many; and what an instance holds is no larger a part of a window than in short ones."""

LEAST_TERM: Final = SECOND // 8
"""That a bucket is lent for where `least` does not fit for longer; in shorter terms, with regions a tenth of a second
apart, most hits would wait for the next loan."""

_SHARE: Final = 4
"""One in so many of the units that are left is lent at once, so that the last ones go to all who ask."""


class Leasing(Algorithm, Protocol):
    """An algorithm that leases.

    If room returns while a lease is held, it also has `lent_from(state, term_end)`: the state that such a lease is
    charged to.
    """

    def term(self, limit: Limit) -> int:
        """The length of a term."""

    def term_end(self, state: State | None, limit: Limit, now: int, phase: int) -> int:
        """The end of the term that `now` is in; terms begin that much later than at multiples of their length."""

    def give(self, state: State | None, limit: Limit, units: int, term_end: int, now: int) -> State | None:
        """Give back units of a lease that ended then, or will: the new state."""


class Taken(NamedTuple):
    """A lease, and what is left."""

    state: State | None
    units: int
    room: int
    """What could still be charged."""
    term_end: int
    reset_after: int
    retry_after: int
    """The time until one unit could be charged, when neither a unit was taken nor any is left."""


def take(  # noqa: PLR0913, PLR0917 - a counter, what is asked, and when
    algorithm: Leasing, state: State | None, limit: Limit, least: int, extra: int, now: int, phase: int = 0
) -> Taken:
    """Charge up to `extra` units, which last for a whole term; `least`: if they are scarce, but there are so many."""
    end = algorithm.term_end(state, limit, now, phase)
    lent_from = getattr(algorithm, "lent_from", None)
    before = state if lent_from is None else lent_from(state, end)
    _, look = algorithm.hit(before, limit, 0, now)
    if look.remaining < least and lent_from is not None and algorithm.hit(state, limit, 0, now)[1].remaining >= least:
        # What the bucket regains until the term's end is not lent: so it is lent for less.
        while look.remaining < least and end - now >= 2 * LEAST_TERM:
            end = now + (end - now) // 2
            before = lent_from(state, end)
            _, look = algorithm.hit(before, limit, 0, now)
    wanted = max(least, extra * (end - now) // algorithm.term(limit))
    units = min(look.remaining, wanted, max(least, look.remaining // _SHARE))
    if units > 0:
        state, look = algorithm.hit(before, limit, units, now)
    else:
        _, look = algorithm.hit(state, limit, 0, now)
    retry = 0 if units or look.remaining else algorithm.hit(state, limit, 1, now)[1].retry_after
    return Taken(state, units, look.remaining, end, look.reset_after, retry)


def length_of_term(span: int, window: int, longest: int = 0) -> int:
    """The largest whole fraction of the span that is at most `longest`; or a tenth of the window, and three seconds."""
    longest = longest or max(1, min(_LONGEST, window // _TERMS))
    return max(1, -(-span // max(1, -(-span // longest))))


def next_term(length: int, now: int, phase: int = 0) -> int:
    """The end of the term that `now` is in, without regard to windows."""
    return now - (now - phase) % length + length
