"""Denied counters remembered locally, so that a flood of equal hits needs no call to Redis. Pure. Hot path.

A denial says after which wait the same hit would be allowed; until then the answer is known, unless there is a refund.
A refund of this process removes the entry; one of another process takes effect here when the wait is over, and a reset
by `ratelimit counters` within seconds. A refund to a limit that has a second counter in common with others makes room
for all of them, so it removes theirs.
Denials of limits that lease are remembered by their leases (`leases.py`), since others give back units before the wait
is over.

Where denied hits count, each of them moves the counter and has to be sent; except to a fixed window of the calendar, if
`LOCAL_CACHE_SIZE_IN_BYTES` is set. Such a window stays over its limit until it ends; further hits are not counted, as
in envoyproxy. And except to a blocked counter, which is charged nothing and denies every hit until the block ends.

Where a wait may be over earlier, as others give back what they hold, a kind of limit says for how long a denial may be
remembered (`longest_denial`).
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from sys import getsizeof
from typing import Final, NamedTuple

from ratelimit_service.model import NEVER, Blocked, Decision, Limit
from ratelimit_service.stores.hit import Hit

_SWEEP: Final = 1000
"""Entries that one sweep looks at: 0.1 ms."""

ENTRY_BYTES: Final = 500
"""The least that an entry takes. One with a name of the longest kind takes up to five times as much."""

_BESIDE_NAME: Final = ENTRY_BYTES - getsizeof("x")
"""Bytes without the name; with a limit of its own, which came with the request."""


class _Denied(NamedTuple):
    until: float
    """Seconds of the monotonic clock."""
    cost: int
    """Of the hit that was denied; 0 when a hit of any cost is denied. A blocked counter denies every cost."""
    limit: Limit
    decision: Decision
    longer: int
    """Microseconds that the wait is longer than it is remembered."""


class DeniedCache:
    """Takes at most `max_bytes`, and evicts the oldest entry first.

    With `windows` it also remembers fixed windows that count denied hits.
    """

    def __init__(self, max_bytes: int, *, windows: bool = False) -> None:
        self.known: OrderedDict[str, _Denied] = OrderedDict()
        """By the counter's key."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._windows = windows
        self._to_sweep: list[str] = []
        self._members: dict[str, set[str]] = {}
        """By the name of a second counter, in whatever domain, the known keys of limits that have it in common."""

    def answer(self, hits: Sequence[Hit], now: float) -> Sequence[Hit]:
        """Decide the hits that are known to be denied; returns the others."""
        known = self.known
        left: list[Hit] = []
        for index, hit in enumerate(hits):
            if hit.together:
                # The answer to a hit of a bundle depends on the counters of all. Bundles come last.
                return [*left, *hits[index:]]
            entry = known.get(hit.key)
            if entry is None:
                left.append(hit)
                continue
            cost = hit.cost
            if cost < 0 or entry.until <= now:
                self._remove(hit.key)
                left.append(hit)
                continue
            limit = hit.limit
            if limit is not entry.limit and limit != entry.limit:
                left.append(hit)
                continue
            before = entry.decision
            wait = int((entry.until - now) * 1_000_000)
            if isinstance(before, Blocked):
                hit.decision = _still_blocked(before, cost, wait, same_cost=cost == entry.cost)
            elif cost == entry.cost or (cost and not entry.cost):
                wait += entry.longer
                reset = before.reset_after - before.retry_after + wait
                over = before.over if entry.cost else cost
                hit.decision = Decision(False, before.remaining, over, reset, wait)
            else:
                left.append(hit)
                continue
            hit.tally.over_limit_with_local_cache += hit.decision.over
        return left

    def learn(self, decided: Sequence[Hit], sent: float) -> None:
        """Add the denied hits of a script call that was sent at that moment; remove those with a refund."""
        for hit in decided:
            decision, limit = hit.decision, hit.limit
            if hit.cost < 0:
                self._remove(hit.key)
                for key in [*self._members.get(limit.kind.common, ())]:
                    self._remove(key)
                continue
            wait, cost = decision.retry_after, hit.cost
            if isinstance(decision, Blocked):
                wait = decision.blocked_for
            elif limit.count_refused and limit.kind.moved_by_denials:
                if not self._windows or hit.rule.algorithm.name != "fixed_window" or limit.first_request:
                    continue
                cost = 0
            wait = min(wait, limit.kind.longest_denial)
            if hit.together or wait <= 0 or hit.rule.lease or limit.owes:
                continue
            known = self.known
            if hit.key not in known:
                self._bytes += _size(hit.key)
                while self._bytes > self._max_bytes and known:
                    self._remove(next(iter(known)))
            known[hit.key] = _Denied(sent + wait / 1_000_000, cost, limit, decision, decision.retry_after - wait)
            if common := limit.kind.common:
                self._members.setdefault(common, set()).add(hit.key)

    def clear(self) -> None:
        """Remove all entries: counters were reset."""
        self.known.clear()
        self._bytes = 0
        self._to_sweep.clear()
        self._members.clear()

    def sweep(self, now: float) -> None:
        """Remove some of the expired entries."""
        if not self._to_sweep:
            self._to_sweep = list(self.known)
        known = self.known
        for key in islice(self._to_sweep, _SWEEP):
            entry = known.get(key)
            if entry is not None and entry.until <= now:
                self._remove(key)
        del self._to_sweep[:_SWEEP]

    def _remove(self, key: str) -> None:
        entry = self.known.pop(key, None)
        if entry is not None:
            self._bytes -= _size(key)
            if common := entry.limit.kind.common:
                self._members[common].discard(key)


def _still_blocked(before: Blocked, cost: int, wait: int, *, same_cost: bool) -> Blocked:
    """The decision on a hit of this cost while the counter is blocked for `wait`; `before`: the one remembered."""
    retry, reset = wait, max(wait, before.reset_after - before.blocked_for + wait)
    if same_cost:  # of any other cost it is not known how long it would be denied without the block
        retry = before.retry_after if before.retry_after == NEVER else before.retry_after - before.blocked_for + wait
    return Blocked(False, 0, cost, reset, retry, wait)


def _size(key: str) -> int:
    return _BESIDE_NAME + getsizeof(key)
