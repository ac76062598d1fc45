"""What an Envoy holds of a counter by RLQS: one-shot leases, and what its reports say of them. Pure.

An Envoy is a holder of leases, as an instance and a region are (`algorithms/lease.py`). It gets units as a token bucket
without a refill, spends them by itself, and reports now and then how many requests it has allowed and denied.

Reports can say less than has happened, never more: what an Envoy has used when its stream breaks is not reported. And
there is no word that an assignment has arrived. So:

==================================  ===================================================================================
event                               what becomes of the units
==================================  ===================================================================================
a grant                             is sent with its end, the term's, in whole seconds of life; it replaces the bucket
                                    that the Envoy has, and what was left in that is burnt
a report                            spends `left`: what was allowed since the report before
two reports after a grant           what was burnt is given back: it was not used, and cannot be any more
two reports after a lease's death   the same of what was left in it
the term ends, the stream breaks    what is left is lost: it may have been used
more was allowed than `left`        in a soft stream a `debt`, taken before anything else: an Envoy whose requests pass
                                    without an assignment has such; else it was allowed by leases of an earlier stream
==================================  ===================================================================================

Laws: the sum of what Envoys allow <= the sum of what is taken of the counter <= the limit, in each window, as long as
each assignment arrives within `DELIVERY`, and requests are denied where there is no assignment, or an expired one. No
failure of this process, of a store or of an Envoy makes units.
"""

from math import isqrt
from typing import Final, NamedTuple

from ratelimit_service.algorithms.lease import Granted, Lease, Wanted
from ratelimit_service.model import MAX_FIELD, Limit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.tally import Tally

DELIVERY: Final = SECOND // 4
"""Microseconds in which an assignment arrives: a lease ends so much before its window."""

LIFE: Final = 20
"""Seconds that a lease lives at most unless it is renewed, or three intervals of reports: what idle Envoys hold comes
back soon."""

_LEAST_GAP: Final = SECOND // 20
"""Microseconds; a demand that is measured in less is no measure."""

_FIRST: Final = 10
"""Units that a bucket gets at first, or a twentieth of the limit: its demand is not known yet."""

_RETRY: Final = SECOND
"""Microseconds after which a counter that was used up is asked again: others may have given back."""

_RESERVE: Final = 4 * SECOND // 10
"""Microseconds before a bucket is empty, by its demand, at which the Envoy gets another one. What is left in the old
one is burnt, for a while at least; an empty one denies."""

_SPACING: Final = SECOND // 2
"""Microseconds between two buckets of an Envoy, at least."""

_MILLI: Final = 1000 * SECOND


class TokenBucket(NamedTuple):
    """Units for an Envoy, and the seconds for which it may spend them."""

    units: int
    ttl: int


class Quota:
    """A counter, as the Envoys of this process share it."""

    __slots__ = ("demand", "empty_until", "end", "holders", "key", "limit", "room", "rule", "tally")

    def __init__(self, rule: Rule, limit: Limit, key: str, tally: Tally) -> None:
        self.rule = rule
        self.limit = limit
        """With terms as long as the windows, or their parts."""
        self.key = key
        self.tally = tally
        self.holders = 0
        self.demand = 0
        """Of all holders, in thousandths of a unit per second."""
        self.room = limit.requests
        """What could still be taken, as the store answered last."""
        self.end = 0
        """Of the term, by the local clock; not earlier than in truth."""
        self.empty_until = 0
        """Nothing can be taken until then."""

    def answered(self, granted: Granted, now: int) -> None:
        """Learn from an answer of the store."""
        self.room = granted.room
        self.end = now + granted.term_end - granted.store_now
        self.empty_until = 0 if granted.room else min(self.end, now + _RETRY)


class Holding:
    """What one Envoy holds of a counter. Moments are by the local clock."""

    __slots__ = (
        *(
            "_alive",
            "_alive_at",
            "_burnt",
            "_dead_reports",
            "_lives_until",
            "_reports",
            "_scarce",
            "_sent",
            "_size",
            "_used",
        ),
        *("debt", "demand", "denied_until", "last_report", "lease", "lost", "quota", "traffic_at"),
    )

    def __init__(self, quota: Quota, now: int) -> None:
        self.quota = quota
        quota.holders += 1
        self.lease = Lease()
        """`left` is what was granted in its term and not reported as used; the Envoy can spend no more than that."""
        self.demand = 0
        """In thousandths of a unit per second."""
        self.debt = 0
        """What was allowed without a lease, and is not charged yet."""
        self.last_report = 0
        self.traffic_at = now
        """When a report had requests last."""
        self.denied_until = 0
        """The Envoy was told to deny until then."""
        self.lost = 0
        """Units that were neither used, as far as is known, nor given back."""
        self._size = 0
        """Of the bucket that the Envoy has."""
        self._used = 0
        """Of that, by the reports."""
        self._alive = 0
        """What was left in it, about, when it was measured."""
        self._alive_at = 0
        self._lives_until = 0
        self._sent = 0
        self._scarce = False
        """There was not room for what all demand."""
        self._reports = 0
        """Since it was sent."""
        self._dead_reports = 0
        """Since it has died."""
        self._burnt = 0
        """What was left when it was replaced, and was not reported as used since."""

    def report(self, allowed: int, denied: int, elapsed: int, now: int, *, soft: bool) -> None:
        """Count what was allowed and denied since the last report; `elapsed` is used for a first one only."""
        lease, total = self.lease, allowed + denied
        gap = max(now - self.last_report, _LEAST_GAP) if self.last_report else elapsed
        # Rises at once, and falls by half; no more than what a second can use of the limit.
        rate = min(_MILLI * total // gap, 1000 * self.quota.limit.requests) if gap else 0
        demand = max(rate, (self.demand + rate) // 2)
        self.quota.demand += demand - self.demand
        self.demand = demand
        if total:
            self.traffic_at = now
        spent = lease.spend(allowed)
        if soft:
            self.debt += allowed - spent
        # The report may cover a time before the bucket came.
        used = min(allowed, demand * (now - self._sent) // _MILLI) if not self._reports else allowed
        self._used += used
        self._alive, self._alive_at = max(0, self._size - self._used), now
        self._burnt = max(0, self._burnt - allowed)
        self._reports += 1
        self.last_report = now
        self._reclaim(now)

    def _reclaim(self, now: int) -> None:
        """Have given back what the Envoy cannot use any more."""
        lease = self.lease
        if now >= lease.end:
            self.lost += lease.left
            lease.left = self._burnt = 0
            return
        if now > self._lives_until + DELIVERY:
            self._dead_reports += 1
            if self._dead_reports > 1 and lease.left:
                self.lost += lease.put_back(lease.left, lease.term_end)
                lease.left = self._burnt = self._alive = 0
        # One report may have been on its way when the bucket was sent; the second one was made when it was there.
        elif self._reports > 1 and now - self._sent >= SECOND and self._burnt:
            back = min(self._burnt, lease.left)
            lease.left -= back
            self._burnt = 0
            self.lost += lease.put_back(back, lease.term_end)

    def wanted(self, now: int, interval: int, *, start: bool = False) -> int:
        """The units to take now, beside the debt; 0 for none. `start`: of a window that has just begun.

        `interval` is the time between two reports of this Envoy.
        """
        quota = self.quota
        limit = quota.limit.requests
        room = limit if start or now >= quota.end else quota.room
        rest = quota.limit.window if now >= quota.end else quota.end - now
        if now < quota.empty_until or rest < SECOND + DELIVERY:
            return 0
        if not self.demand:
            # An idle lease is left to die. Before the first one nothing is known of the demand.
            return 0 if self._sent else min(max(_FIRST, limit // 20), MAX_FIELD)
        if self.traffic_at < self.last_report or (now < self._low and now < self._lives_until):
            return 0
        need = 2 + self.demand * min(rest, interval * 5 // 2) // _MILLI
        # The last ones go to those who come first: a share of them would last for milliseconds.
        share = min(room * self.demand // quota.demand, room // 2)
        fair = max(1, share, self.demand * _SPACING // _MILLI)
        self._scarce = fair < need
        return min(need, fair, MAX_FIELD)

    @property
    def _low(self) -> int:
        """When its units are low, or another bucket may be sent."""
        # Where there is not enough for all, some are denied in any case, and nothing is to be burnt: requests come as
        # they like, and may be later by two standard deviations.
        alive = self._alive + 2 * isqrt(self._alive) if self._scarce else self._alive
        empty = self._alive_at + _MILLI * alive // max(1, self.demand)
        return max(empty if self._scarce else empty - _RESERVE, self._sent + _SPACING)

    def low_at(self, now: int) -> int | None:
        """When more is to be taken, if that is before the next report."""
        if not self.demand or self.traffic_at < self.last_report:
            return None
        return low if now < (low := self._low) < self._lives_until else None

    def ask(self, units: int) -> Wanted:
        """Ask for so many, give back what is to be, and have the debt charged."""
        return self.lease.ask(min(units + self.debt, MAX_FIELD), 0, 1)

    def answered(self, granted: Granted | None, asked: int, now: int, interval: int) -> TokenBucket | None:
        """The store has answered what was asked at that moment: what the Envoy is to have now, if anything."""
        lease = self.lease
        lease.asked_until = 0
        if granted is None:
            return None
        self.quota.answered(granted, now)
        paid = min(granted.units, self.debt)
        self.debt -= paid
        units = granted.units - paid
        if not units:
            return None
        if granted.term_end != lease.term_end:
            self.lost += lease.held  # of an earlier term: it may have been used and not be reported yet
            lease.left = lease.back = self._burnt = 0
        end = granted.end(asked)
        ttl = min((end - DELIVERY - now) // SECOND, _life(interval))
        if ttl < 1:
            lease.term_end, lease.end = granted.term_end, end
            self.lost += lease.put_back(units, granted.term_end)
            return None
        self._burnt = lease.left
        self.lost += lease.deposit(units, end, granted.term_end)
        self._size = self._alive = units
        self._used, self._alive_at = 0, now
        self._sent, self._lives_until = now, now + ttl * SECOND
        self._reports = self._dead_reports = self.denied_until = 0
        return TokenBucket(units, ttl)

    def renewal(self, now: int, interval: int) -> TokenBucket | None:
        """The same bucket, if it has units and dies before the report after next, and may live for longer."""
        if (
            not self.lease.left
            or now - self.traffic_at > 2 * interval
            or self._lives_until > now + 2 * interval + SECOND
        ):
            return None
        return self._renew(now, interval)

    def last_renewal(self, now: int) -> TokenBucket | None:
        """The same bucket for the last whole seconds of the term: its life was cut to such when it was sent."""
        return self._renew(now, 0) if self.lease.left else None

    def _renew(self, now: int, interval: int) -> TokenBucket | None:
        ttl = min((self.lease.end - DELIVERY - now) // SECOND, _life(interval))
        until = now + ttl * SECOND
        # An Envoy whose bucket has expired would fill it again.
        if ttl < 1 or until < self._lives_until + SECOND // 4 or now + DELIVERY >= self._lives_until:
            return None
        self._lives_until = until
        return TokenBucket(self._size, ttl)

    @property
    def last_renewal_at(self) -> int:
        """When the last renewal is due: two seconds before a lease has to end, which has a second to live then."""
        return self.lease.end - DELIVERY - 2 * SECOND

    def is_idle(self, now: int, idle: int) -> bool:
        """Whether there were no requests for so long, and nothing is held."""
        return now - self.traffic_at >= idle and not self.lease.held and not self.debt and not self.lease.asked_until

    def close(self) -> None:
        """The Envoy has gone, or the rule: what it holds is lost."""
        self.quota.holders -= 1
        self.quota.demand -= self.demand
        self.lost += self.lease.left
        self.demand = self.lease.left = 0


def _life(interval: int) -> int:
    """Seconds."""
    return max(LIFE, 3 * interval // SECOND)
