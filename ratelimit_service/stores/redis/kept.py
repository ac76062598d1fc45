"""Settles that Redis could not charge: kept, and sent again when the server of their counter answers.

Law: a settle is charged once, or dropped and counted as such. Only one of a reservation is kept, whose id makes it safe
to send it twice: one that may have arrived is sent again for as long as its id is remembered as settled, `REMEMBERED`,
and one that was never sent for as long as an id can be settled, `hold`. Both end with the process.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from ratelimit_service.algorithms.kinds.reserved import REMEMBERED, Reserved
from ratelimit_service.errors import StoreError
from ratelimit_service.model import SETTLED_BEFORE, SettledById, settling
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import NO_LIMIT, Hit, NamedCounter, OnCounter
from ratelimit_service.stores.store import Done
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.metric import Metric, counter, counter_by, gauge
from ratelimit_service.telemetry.tally import KEPT, Settlements, Tally

log = logging.getLogger(__name__)

MOST: Final = 10_000
"""Settles that are kept at once: those of ten seconds without Redis, at a thousand a second."""

MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of all: names of counters have values of clients, which may be long."""

_BASE_BYTES: Final = 300
"""Bytes of one, without the characters of its counter's name."""

GRANTED: Final = SECOND
"""Microseconds that Redis has for one that is sent again."""

_SURE: Final = (REMEMBERED - 2 * GRANTED) / SECOND
"""Seconds for one that may have arrived, from when it came."""

_AT_ONCE: Final = 256
"""Settles that are sent again with one sweep, or looked at: half a millisecond."""

IsUp = Callable[[OnCounter], bool]
"""Whether the server of a counter can decide hits."""

SendAgain = Callable[[Hit, Done], None]
"""Sends a hit to the server of its counter."""


class _Kept(NamedTuple):
    """A settle without what its rule knows."""

    rule: Rule
    key: str
    holder: int
    cost: int
    tally: Tally
    """Of the hits on it that are not settles."""
    until: float
    """Seconds of the monotonic clock, after which it is not sent any more."""


class KeptHit(Hit):
    """The hit of a settle that was kept, and is kept again if it fails."""

    __slots__ = ("until",)

    until: float


class KeptSettles:
    """The settles of this process that wait for Redis."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self.sent_again = 0
        """Those that were decided then."""
        self.dropped = {"full": 0, "old": 0}
        """Those that were not sent, by cause."""

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, hits: Sequence[Hit], came: float, *, sent: bool) -> None:
        """Keep those that settle a reservation, of hits that a policy has answered; `sent`: they may have arrived."""
        for hit in hits:
            kind = hit.limit.kind
            if not (hit.limit.owes and isinstance(kind, Reserved)):
                continue
            until = hit.until if isinstance(hit, KeptHit) else came + kind.hold / SECOND
            if sent:
                until = min(until, came + _SURE)
            size = _size(hit.key)
            if len(self._kept) >= MOST or self._bytes + size > MOST_BYTES:
                self.dropped["full"] += 1
                if isinstance(hit, KeptHit):  # the others are counted with their answer
                    hit.tally.add("settles_dropped", hit.cost)
                continue
            self._bytes += size
            tally = hit.tally.tally if isinstance(hit.tally, Settlements) else hit.tally
            kept = _Kept(hit.rule, hit.key, kind.holder, hit.cost, tally, until)
            if sent:
                self._kept.appendleft(kept)  # there is less time for it
            else:
                self._kept.append(kept)
            if hit.by_policy is not None:
                hit.by_policy = hit.by_policy._replace(policy=KEPT)

    def sweep(self, now: float, is_up: IsUp, send: SendAgain) -> None:
        """Send some again, and drop those that are too old."""
        kept = self._kept
        rules: dict[Rule, Rule] = {}
        for _ in range(min(len(kept), _AT_ONCE)):
            settle = kept.popleft()
            if settle.until > now and not is_up(NamedCounter(settle.rule, settle.rule.limit or NO_LIMIT, settle.key)):
                kept.append(settle)
                continue
            self._bytes -= _size(settle.key)
            if settle.until <= now:
                self.dropped["old"] += 1
                settle.tally.add("settles_dropped", settle.cost)
                continue
            rule = rules.get(settle.rule)
            if rule is None:  # no policy charges it once more
                rule = rules[settle.rule] = replace(settle.rule, on_store_failure="error")
            hit = _again(settle, rule)
            send(hit, partial(self._on_sent, hit))

    def close(self) -> None:
        """What is kept is lost."""
        if self._kept:
            log.warning("%d settles are lost: Redis did not answer until the stop", len(self._kept))
        self._kept.clear()

    def metrics(self) -> Sequence[Metric]:
        """How many there are, and what became of the others."""
        return (
            gauge("ratelimit_store_settles_kept", "Settles that wait until Redis answers again.", len(self._kept)),
            counter(
                "ratelimit_store_settles_sent_again_total",
                "Settles that Redis had not answered, and that it has decided when they were sent again.",
                self.sent_again,
            ),
            counter_by(
                "ratelimit_store_settles_dropped_total",
                "Settles that Redis had not answered, and that were not sent again, by cause "
                "(full: too many are kept; old: Redis was away for too long).",
                "cause",
                self.dropped.items(),
            ),
        )

    def _on_sent(self, hit: Hit, error: StoreError | None) -> None:
        if error is not None:
            return  # it is kept again
        self.sent_again += 1
        decision = hit.decision
        if isinstance(decision, SettledById) and decision.reserved == SETTLED_BEFORE:
            hit.tally.add("settled", hit.cost)  # when it was sent first, which nothing has counted
            return
        hit.tally.count(hit.cost, decision, hit.rule.scale, hit.rule.shadow)
        if hit.rule.measured is not None:
            hit.rule.measured.measure(hit.limit, hit.cost, decision)


def _again(settle: _Kept, rule: Rule) -> KeptHit:
    hit = KeptHit(rule, settle.key, settle.cost, tally=Settlements(settle.tally), quota=False)
    kind = hit.limit.kind
    assert isinstance(kind, Reserved)
    hit.limit = settling(replace(hit.limit, kind=replace(kind, holder=settle.holder)))
    hit.until = settle.until
    return hit


def _size(key: str) -> int:
    return _BASE_BYTES + len(key)
