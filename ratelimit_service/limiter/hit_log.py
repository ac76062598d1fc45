"""The log of hits, by which the hottest descriptors are found.

A hit counts once, whatever its cost: that is the caller's word, and one hit of four billion would be hotter than all
others together. It costs a look at the length of a list, and an append while there is room. Ten times a second `fold`
gives the hits their names and counts them: at most MAX_PENDING allowed and as many refused ones, 0.3 ms together, so
the log takes 0.3 % of a core at most. Hits for which there was no room are only counted, and those that are in the list
weigh more for them. So up to 5,000 hits a second of each kind every one is counted, and above that a sample is. All of
them by name would cost a call 5 to 15 %: their names and the hits themselves fill the processor's caches.
"""

from collections import Counter
from collections.abc import Collection
from typing import Final

from ratelimit_service.rules.descriptor_name import descriptor_name, key_without_counter
from ratelimit_service.stores.hit import DeniedHit, Hit
from ratelimit_service.telemetry.heavy_hitters import HeavyNames, Sketch
from ratelimit_service.telemetry.top_counts import TopCounts

MAX_PENDING: Final = 512
"""Hits in a list."""


class HitLog:
    """Hits of one kind since they were last taken."""

    __slots__ = ("_names", "pending", "skipped")

    def __init__(self) -> None:
        self.pending: list[Hit] = []
        """The limiter appends to it while it has less than MAX_PENDING."""
        self.skipped = 0
        """Hits for which it had no room."""
        self._names = HeavyNames()

    def add(self, hits: Collection[Hit]) -> None:
        """Log hits, as the limiter does with a single one."""
        if len(self.pending) < MAX_PENDING:
            self.pending += hits
        else:
            self.skipped += len(hits)

    def fold(self) -> None:
        """Count what is pending; called several times a second."""
        pending, names = self.pending, self._names
        if not pending:
            return
        weight = (len(pending) + self.skipped) / len(pending) if self.skipped else 1
        if self.skipped:
            names.merge(Sketch(skipped=self.skipped))
        for hit, times in Counter(pending).items():  # by identity: requests that are alike share their hits
            if hit.cost > 0:
                names.add(name_of(hit), times * weight)
        pending.clear()
        self.skipped = 0

    def drain(self) -> Sketch:
        """Everything since the last time."""
        self.fold()
        return self._names.drain()


def name_of(hit: Hit) -> str:
    """The name of the descriptor and the rule of a hit."""
    key = key_without_counter(hit.rule, hit.domain, hit.entries) if isinstance(hit, DeniedHit) else hit.key
    return descriptor_name(hit.rule, key)


class HitLogs:
    """The hits of one limiter. Those of a rule in shadow mode are all allowed."""

    __slots__ = ("allowed", "refused")

    def __init__(self) -> None:
        self.allowed = HitLog()
        self.refused = HitLog()

    def fold(self) -> None:
        """Count what is pending; called several times a second."""
        self.allowed.fold()
        self.refused.fold()

    def drain(self) -> TopCounts:
        """Everything since the last time."""
        return TopCounts(self.allowed.drain(), self.refused.drain())
