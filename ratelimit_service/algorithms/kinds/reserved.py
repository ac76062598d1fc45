"""Reservations: a request is charged what it may cost under its id, and what it has cost is settled by that id.

=============================  =======================================================================================
event                          what becomes of it
=============================  =======================================================================================
a request that fits            is charged; a *memo* under its id says when, and how many units, for `hold`
a request that is denied       leaves nothing
the same id, not settled yet   is allowed and charged nothing, a retry of the same request; `hold` begins anew
settled, for less              the rest goes back at the moment of the reservation: into its window or part, or nowhere
settled, for more              the overrun is owed now, or answers longer than a window would cost their estimate only
settled again                  changes nothing, for `REMEMBERED`
settled, of an unknown id      is owed in full
never settled                  stays charged: what it has cost is not known, which is not 0
a request with a settled id    is a new one
=============================  =======================================================================================

Windows give back at a moment by the `give` of leases. A bucket must know whether it has been full meanwhile. Let its
backlog be the time until it is full. Charged d less at the start it would now be less by min(d, the least backlog since
then): what time has given back cannot be given back again. So the state of a bucket has *groups* behind it, pairs of a
moment and the least backlog since, both rising. With these a settle leaves the state that the actual cost would have
left from the start, to a microsecond for each settle; with more than 16 groups, or after a debt that was cut, less goes
back.

A counter may end before its memos: by a reset, or evicted. The next one was not charged for them, so they give nothing
back to it. A bucket has no group of theirs then; the state of a window has the moment behind it when it began.

A memo is a second counter, one for each id: when it is forgotten, when it was made, and the units, or `SETTLED`.
The Lua twin is `reserved.lua`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any, Final

from ratelimit_service.algorithms import token_bucket
from ratelimit_service.algorithms.algorithm import expiry
from ratelimit_service.algorithms.kinds.places import holder_of
from ratelimit_service.algorithms.lease import leasing
from ratelimit_service.model import (
    MAX_REQUESTS,
    SETTLED_BEFORE,
    Algorithm,
    Charge,
    Decision,
    Kind,
    Limit,
    Reserving,
    SettledById,
    State,
)
from ratelimit_service.system.clock import SECOND, duration_in_words

Memo = tuple[int, int, int]
Groups = list[tuple[int, int]]

REMEMBERED: Final = 10 * SECOND
"""For which a settled id is remembered: a settle that is sent again is charged once."""

SETTLED: Final = SETTLED_BEFORE

_AT_ONCE: Final = 8
"""Requests of the estimate that a limit should have room for, at once."""
_IN_BURST: Final = 4
_SHORT_HOLD: Final = 30 * SECOND

_MOST_GROUPS: Final = 16
_GROUP: Final = Struct("qq")


@dataclass(frozen=True, slots=True)
class Reserved(Kind):
    """A request reserves what it may cost."""

    hold: int
    """Microseconds for which an id can be settled."""
    estimate: int = 0
    """What a request reserves that does not say its cost; 0: the cost of any request."""
    at_most: int = MAX_REQUESTS
    """The most that a request reserves."""
    bucket: bool = False
    """A bucket counts, whose room returns with time."""
    holder: int = 0
    """The 64-bit digest of the id whose hit this is; 0 for none."""

    twin = "reserved"
    composite = has_second = reserves = True
    in_runs = False
    longest_denial = 0  # a settle makes room at any moment, in any process
    only_counted_so = "reserve: what goes back depends on the algorithm"
    why_not_leased = "reserve: any process may settle what another one has reserved"

    @property
    def second_ending(self) -> str:
        """As Kind says: of each id."""
        return f"|{self.twin}/{self.holder:016x}"

    def hit(
        self, charge: Charge, state: State | None, second: Memo | None, limit: Limit, cost: int, now: int
    ) -> tuple[State | None, Memo | None, Decision]:
        """Charge `cost` and note it under the id, unless that has a reservation: as Kind says."""
        before, groups = self._parted(charge, state, limit, now)
        memo = _in_force(second, now)
        if cost > 0 and memo is not None and memo[2] != SETTLED:
            _, look = charge(before, limit, 0, now)
            memo = (now + self.hold, *memo[1:])
            decision = Decision(True, look.remaining, 0, look.reset_after, 0)
            return self._joined(before, groups, now), memo, decision
        after, decision = charge(before, limit, cost, now)
        if cost > 0 and decision.allowed:
            at = now
            decision = Reserving(True, decision.remaining, decision.over, decision.reset_after, 0)
            if self.bucket:
                groups = _passed(groups, backlog(before, limit, now))
                groups = _opened(groups, now, backlog(after, limit, now), self.hold)
            elif groups:
                at = max(now, groups[0][0])  # the clock may have stepped back
            memo = (now + self.hold, at, cost)
        return self._joined(after, groups, now), memo, decision

    def owe(
        self, algorithm: Algorithm, state: State | None, second: Memo | None, limit: Limit, cost: int, now: int
    ) -> tuple[State | None, Memo | None, Decision]:
        """Settle the id: as Kind says. `over` is the overrun, what was not reserved."""
        own, groups = self._parted(algorithm.hit, state, limit, now)
        memo = _in_force(second, now)
        _, at, units = memo or (0, now, 0)
        over, known = 0, memo is not None
        if units != SETTLED:
            if cost > units:
                over = cost - units
                groups = _passed(groups, backlog(own, limit, now)) if self.bucket else groups
                own = algorithm.owe(own, limit, over, now)
                if self.bucket and token_bucket.owes_most(own, limit, now):
                    groups = []
            elif cost < units and self.bucket:
                own, groups = _give(own, groups, limit, units - cost, at, now)
            elif cost < units and groups and at >= groups[0][0]:
                own = leasing(algorithm).give(own, limit, units - cost, at + 1, now)
            if memo is not None or cost:
                memo = (now + REMEMBERED, at, SETTLED)
        _, look = algorithm.hit(own, limit, 0, now)
        if known:
            age = 0 if units == SETTLED else max(0, now - at)
            look = SettledById(look.allowed, look.remaining, over, look.reset_after, look.retry_after, units, age)
        else:
            look.over = over
        return self._joined(own, groups, now), memo, look

    def reservation(self, second: Memo | None, now: int) -> int:
        """As Kind says."""
        memo = _in_force(second, now)
        return 0 if memo is None else 1 if memo[2] == SETTLED else 2

    def held_by(self, limit: Limit, holder: str) -> Limit:
        """With the digest of the id."""
        return replace(limit, kind=replace(self, holder=holder_of(holder)))

    def taken(self, cost: int, *, told: bool) -> int:
        """The cost that was told, or else the estimate; no more than a request may reserve."""
        return min(cost if told else self.estimate or cost, self.at_most)

    def share(self, limit: Limit, part: Callable[[int], int], whole: Callable[[int], int]) -> Kind:
        """The kind with that share of `at_most`, but at least the estimate, as far as the share has room for it."""
        estimate = min(self.estimate, limit.capacity)
        at_most = min(limit.capacity, max(part(self.at_most), estimate))
        return replace(self, estimate=estimate, at_most=max(1, at_most))

    def numbers(self, limit: Limit, algorithm: Algorithm, interval: int) -> tuple[int, ...]:
        """For how long, and whether of a bucket; the id is in the name of the memo."""
        return self.hold, int(self.bucket)

    def words(self, limit: Limit, holder: str) -> Mapping[str, str]:
        """`each request_id reserves 4,000 for 5 min, at most 50,000`."""
        units = f"{self.estimate:,}" if self.estimate else "its cost"
        return {
            "reserve": f"each {holder} reserves {units} for {duration_in_words(self.hold)}, at most {self.at_most:,}"
        }

    def described(self, limit: Limit, second_key: str) -> Mapping[str, Any]:
        """What a request reserves."""
        return {"reserve": {"hold": self.hold / SECOND, "estimate": self.estimate or None, "at_most": self.at_most}}

    def options(self, limit: Limit, holder: str) -> Mapping[str, Any]:
        """Its own."""
        own = {"id": holder, "hold": self.hold, "estimate": self.estimate or None, "at_most": self.at_most}
        return {"reserve": own}

    def key_suffix(self, algorithm: str, limit: Limit) -> str:
        """The state is another one."""
        return f"|{algorithm}/reserved/{limit.window}"

    def lint(self, limit: Limit, algorithm: str) -> Iterator[tuple[str, str]]:
        """Warns where few requests have room at once, or what they give back is mostly lost."""
        hold = duration_in_words(self.hold)
        if 0 < limit.requests < _AT_ONCE * self.estimate:
            few = limit.requests // self.estimate
            message = f"with an estimate of {self.estimate:,} a limit of {limit.requests:,} has room for {few} at once"
            yield "reserve", f"{message}; write a smaller estimate, above which a request overruns, or a larger limit"
        if 0 < limit.burst < _IN_BURST * self.estimate:
            few = limit.burst // self.estimate
            message = f"with an estimate of {self.estimate:,} a burst of {limit.burst:,} has room for {few} at once"
            yield "reserve", f"{message}; write a burst of {_IN_BURST * self.estimate:,}, or more"
        if self.hold < _SHORT_HOLD:
            message = f"what is settled after a hold of {hold} is charged twice"
            yield "reserve", f"{message}; write more than the longest request takes, such as hold: 5 minutes"
        if limit.window < self.hold and not self.bucket:
            message = f"a hold of {hold} is longer than the window of {duration_in_words(limit.window)}"
            yield "reserve", f"{message}: what goes back to one that is over is lost; write algorithm: token_bucket"

    def _parted(self, charge: Charge, state: State | None, limit: Limit, now: int) -> tuple[State | None, Groups]:
        """The state of the algorithm, and the groups; of a window one, whose moment is when the state began."""
        if state is None or expiry(state) <= now:
            return None, []
        if not isinstance(state, bytes):
            return state[:-1], [(state[-1], 0)]
        size = token_bucket.STATE.size if self.bucket else len(state) - _GROUP.size
        own, groups = state[:size], [*_GROUP.iter_unpack(state[size:])]
        if self.bucket:
            present, _ = charge(own, limit, 0, now)
            # Another one where it was charged by a clock that was ahead.
            return present, groups if present == own else []
        return own, groups

    def _joined(self, own: State | None, groups: Groups, now: int) -> State | None:
        if own is None:
            return None
        if not self.bucket:
            groups = groups or [(now, 0)]
        if not isinstance(own, bytes):
            return (*own, groups[0][0])
        return b"".join((own, *(_GROUP.pack(*group) for group in groups)))


def backlog(state: bytes | None, limit: Limit, now: int) -> int:
    """The time until a bucket is full, rounded down."""
    return token_bucket.missing_at(state, limit.requests, now) // max(1, limit.requests)


def _in_force(memo: Memo | None, now: int) -> Memo | None:
    return memo if memo is not None and memo[0] > now else None


def _passed(groups: Groups, low: int) -> Groups:
    """The groups when the backlog is so large, which a charge makes larger."""
    left = list(groups)
    moment = None
    while left and left[-1][1] >= low:
        moment, _ = left.pop()
    return left if moment is None else [*left, (moment, low)]


def _opened(groups: Groups, now: int, low: int, hold: int) -> Groups:
    """The groups with one of a reservation made now, which has made the backlog so large."""
    at = now
    left = list(groups)
    if left and left[-1][0] >= now:  # another one of this moment, or the clock has stepped back
        at, _ = left.pop()
    left.append((at, low))
    while len(left) > 1 and left[1][0] <= now - hold:
        del left[0]
    if len(left) > _MOST_GROUPS:  # the reservations of one join those before it: one that loses least by that
        del left[min(range(1, len(left) - 1), key=lambda number: left[number][1] - left[number - 1][1])]
    return left


def _give(
    own: bytes | None, groups: Groups, limit: Limit, units: int, at: int, now: int
) -> tuple[bytes | None, Groups]:
    """Give back units of a bucket that were charged at that moment: its state, and the groups."""
    groups = _passed(groups, backlog(own, limit, now))
    index = sum(moment <= at for moment, _ in groups) - 1
    if own is None or index < 0:
        return own, groups
    rate, least = limit.requests, groups[index][1]
    back = min(units * limit.window, least * rate)
    missing = token_bucket.missing_at(own, rate, now) - back
    given = -(-back // rate)
    left = max(0, least - given)
    lows = [
        (moment, min(low, left) if number < index else max(0, low - given))
        for number, (moment, low) in enumerate(groups)
    ]
    return token_bucket.state_of(missing, rate, now), lows
