"""Counters that have refused, so that a flood of the same costs no call. Pure. Hot path.

A refusal says after which wait the same hit would be allowed; until then the answer is known, unless somebody gives
something back. A refund of this process clears what is known; one of another process is seen when the wait is over, and
a reset by `ratelimit counters` within seconds.
Where refused hits count, every one of them moves the counter, and has to be asked: but for a fixed window of the
calendar, if `LOCAL_CACHE_SIZE_IN_BYTES` says so. It stays over its limit until it ends, whatever comes; what comes is
not counted any more, as in upstream.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from sys import getsizeof
from typing import Final, NamedTuple

from ratelimit_service.model import Decision, Limit
from ratelimit_service.stores.hit import Hit

_SWEEP: Final = 1000
"""Refusals looked at in one sweep: 0.1 ms."""

BYTES: Final = 500
"""What one takes at the least. One with a name of the longest kind takes up to five times as much."""

_BESIDE_NAME: Final = BYTES - getsizeof("x")
"""Of these; with a limit of its own, which came with the request."""


class _Refusal(NamedTuple):
    until: float
    """Seconds of the monotonic clock."""
    cost: int
    """Of the hit that was refused; 0 when any hit would be."""
    limit: Limit
    decision: Decision


class Refusals:
    """At most so many bytes; the oldest make way. With `windows` also of fixed windows that count refused hits."""

    def __init__(self, most: int, *, windows: bool = False) -> None:
        self.known: OrderedDict[str, _Refusal] = OrderedDict()
        self._most = most
        self._bytes = 0
        self._windows = windows
        self._to_sweep: list[str] = []

    def answer(self, hits: Sequence[Hit], now: float) -> Sequence[Hit]:
        """Decide the hits whose answer is known; the others are left."""
        known = self.known
        left: list[Hit] = []
        for index, hit in enumerate(hits):
            if hit.together:
                # What one of a bundle is told depends on the counters of all. Bundles come last.
                return [*left, *hits[index:]]
            refusal = known.get(hit.key)
            if refusal is None:
                left.append(hit)
                continue
            cost = hit.cost
            if cost < 0 or refusal.until <= now:
                self._drop(hit.key)
                left.append(hit)
                continue
            limit = hit.limit
            if (cost == refusal.cost or (cost and not refusal.cost)) and (
                limit is refusal.limit or limit == refusal.limit
            ):
                wait = int((refusal.until - now) * 1_000_000)
                before = refusal.decision
                reset = before.reset_after - before.retry_after + wait
                over = before.over if refusal.cost else cost
                hit.decision = Decision(False, before.remaining, over, reset, wait)
                hit.tally.over_limit_with_local_cache += hit.decision.over
            else:
                left.append(hit)
        return left

    def learn(self, told: Sequence[Hit], asked: float) -> None:
        """Remember what these hits, which were sent at that moment, were refused; forget it where they gave back."""
        for hit in told:
            if hit.cost < 0:
                self._drop(hit.key)
                continue
            decision = hit.decision
            if hit.together or decision.retry_after <= 0:
                continue
            limit = hit.limit
            if limit.count_refused:
                if not self._windows or hit.rule.algorithm.name != "fixed_window" or limit.first_request:
                    continue
                cost = 0
            else:
                cost = hit.cost
            known = self.known
            if hit.key not in known:
                self._bytes += _size(hit.key)
                while self._bytes > self._most and known:
                    self._drop(next(iter(known)))
            known[hit.key] = _Refusal(asked + decision.retry_after / 1_000_000, cost, limit, decision)

    def forget(self) -> None:
        """Ask for all of them again: counters were reset."""
        self.known.clear()
        self._bytes = 0
        self._to_sweep.clear()

    def sweep(self, now: float) -> None:
        """Forget some of what is over."""
        if not self._to_sweep:
            self._to_sweep = list(self.known)
        known = self.known
        for key in islice(self._to_sweep, _SWEEP):
            refusal = known.get(key)
            if refusal is not None and refusal.until <= now:
                self._drop(key)
        del self._to_sweep[:_SWEEP]

    def _drop(self, key: str) -> None:
        if self.known.pop(key, None) is not None:
            self._bytes -= _size(key)


def _size(key: str) -> int:
    return _BESIDE_NAME + getsizeof(key)
