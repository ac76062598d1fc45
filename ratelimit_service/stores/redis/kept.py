"""Settles that Redis could not charge: kept, and sent again, which is safe by the id of their reservation. Pure.

Redis remembers a settled id for some seconds, so one that it charged although its answer was lost counts once, if it is
back by then. What is not sent within the `hold` of the reservation is dropped and counted, and so is what comes while
as many are kept as may be: a few megabytes, whatever callers send.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from ratelimit_service.model import Limit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.system.clock import Clock
from ratelimit_service.telemetry.tally import Tally

MOST: Final = 10_000

AT_ONCE: Final = 256
"""Sent again by one sweep: a Redis that is back is not to be busy with these alone."""


class _Kept(NamedTuple):
    until: int
    rule: Rule
    limit: Limit
    key: str
    cost: int
    tally: Tally


class KeptHit(Hit):
    """A settle that is sent again, until that moment."""

    __slots__ = ("until",)

    until: int


class KeptSettles:
    """At most `most` of them, the first come."""

    def __init__(self, clock: Clock, most: int = MOST) -> None:
        self._clock = clock
        self._most = most
        self._kept: deque[_Kept] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, hit: Hit) -> bool:
        """Keep a hit if it settles a reservation, and there is room."""
        limit = hit.limit
        if not limit.owes or not limit.kind.reserves or len(self._kept) >= self._most:
            return False
        until = hit.until if isinstance(hit, KeptHit) else self._clock() + limit.kind.hold
        self._kept.append(_Kept(until, hit.rule, limit, hit.key, hit.cost, hit.tally))
        return True

    def take(self) -> Sequence[Hit]:
        """Take some of those that are kept, as new hits; those that are too late are dropped."""
        now = self._clock()
        hits = []
        for _ in range(min(AT_ONCE, len(self._kept))):
            until, rule, limit, key, cost, tally = self._kept.popleft()
            if until <= now:
                tally.add("settles_dropped", cost)
                continue
            hit = KeptHit(rule, key, cost, tally=tally, quota=False)
            hit.limit, hit.until = limit, until
            hits.append(hit)
        return hits
