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
from typing import Final, NamedTuple

from ratelimit_service.model import Decision, Limit
from ratelimit_service.verdict import Hit

_SWEEP: Final = 1000
"""Refusals looked at in one sweep: 0.1 ms."""

BYTES: Final = 250
"""What one takes, about."""


class _Refusal(NamedTuple):
    until: float
    """Seconds of the monotonic clock."""
    cost: int
    """Of the hit that was refused; 0 when any hit would be."""
    limit: Limit
    decision: Decision


class Refusals:
    """At most so many; the oldest make way. With `windows` also of fixed windows that count refused hits."""

    def __init__(self, most: int, *, windows: bool = False) -> None:
        self.known: OrderedDict[str, _Refusal] = OrderedDict()
        self._most = most
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
                del known[hit.key]
                left.append(hit)
                continue
            limit = hit.rule.limit
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
                self.known.pop(hit.key, None)
                continue
            decision = hit.decision
            if hit.together or decision.retry_after <= 0:
                continue
            limit = hit.rule.limit
            if limit is None:
                continue
            if limit.count_refused:
                if not self._windows or hit.rule.algorithm.name != "fixed_window" or limit.first_request:
                    continue
                cost = 0
            else:
                cost = hit.cost
            known = self.known
            if len(known) >= self._most and hit.key not in known:
                known.popitem(last=False)
            known[hit.key] = _Refusal(asked + decision.retry_after / 1_000_000, cost, limit, decision)

    def forget(self) -> None:
        """Ask for all of them again: counters were reset."""
        self.known.clear()
        self._to_sweep.clear()

    def sweep(self, now: float) -> None:
        """Forget some of what is over."""
        if not self._to_sweep:
            self._to_sweep = list(self.known)
        known = self.known
        for key in islice(self._to_sweep, _SWEEP):
            refusal = known.get(key)
            if refusal is not None and refusal.until <= now:
                del known[key]
        del self._to_sweep[:_SWEEP]
