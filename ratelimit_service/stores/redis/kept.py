"""Settles that Redis could not charge: kept, and sent again when the server of their counter answers.

Law: a settle is charged once, or dropped and counted as such. Only one of a reservation is kept, whose id makes it safe
to send it twice: one that may have arrived is sent again for as long as its id is remembered as settled, `REMEMBERED`,
and one that was never sent for as long as an id can be settled, `hold`. Both end with the process.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
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

SendAgain = Callable[[Sequence[Hit], Done], None]
"""Sends the hits of a settle to the server of their counters."""


class _HitOfSettle(NamedTuple):
    """A hit without what its rule knows."""

    rule: Rule
    key: str
    holder: int
    cost: int
    tally: Tally
    """Of the hits on it that are not settles."""
    together: int


class _Kept(NamedTuple):
    """A settle: one hit, or those of a list of which one is charged."""

    hits: Sequence[_HitOfSettle]
    until: float
    """Seconds of the monotonic clock, after which it is not sent any more."""
    size: int
    """Bytes."""


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
        for settle in _settles(hits):
            hit = settle[0]
            until = hit.until if isinstance(hit, KeptHit) else came + hit.limit.kind.hold / SECOND
            if sent:
                until = min(until, came + _SURE)
            size = sum(_BASE_BYTES + len(each.key) for each in settle)
            if len(self._kept) >= MOST or self._bytes + size > MOST_BYTES:
                self.dropped["full"] += 1
                if isinstance(hit, KeptHit):  # the others are counted with their answer
                    hit.tally.add("settles_dropped", hit.cost)
                continue
            self._bytes += size
            kept = _Kept([_charge_of(each) for each in settle], until, size)
            if sent:
                self._kept.appendleft(kept)  # there is less time for it
            else:
                self._kept.append(kept)
            for each in settle:
                if each.by_policy is not None:
                    each.by_policy = each.by_policy._replace(policy=KEPT)

    def sweep(self, now: float, is_up: IsUp, send: SendAgain) -> None:
        """Send some again, and drop those that are too old."""
        kept = self._kept
        rules: dict[Rule, Rule] = {}
        for _ in range(min(len(kept), _AT_ONCE)):
            settle = kept.popleft()
            first = settle.hits[0]
            if settle.until > now and not is_up(NamedCounter(first.rule, first.rule.limit or NO_LIMIT, first.key)):
                kept.append(settle)
                continue
            self._bytes -= settle.size
            if settle.until <= now:
                self.dropped["old"] += 1
                first.tally.add("settles_dropped", first.cost)
                continue
            hits = []
            for each in settle.hits:
                rule = rules.get(each.rule)
                if rule is None:  # no policy charges it once more
                    rule = rules[each.rule] = replace(each.rule, on_store_failure="error")
                hits.append(_again(each, rule, settle.until))
            send(hits, partial(self._on_sent, hits))

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

    def _on_sent(self, hits: Sequence[Hit], error: StoreError | None) -> None:
        if error is None:  # else it is kept again
            self.sent_again += 1
            for hit in hits:
                if not hit.spared:
                    _count(hit)


def _count(hit: Hit) -> None:
    decision = hit.decision
    if isinstance(decision, SettledById) and decision.reserved == SETTLED_BEFORE:
        hit.tally.add("settled", hit.cost)  # when it was sent first, which nothing has counted
        return
    hit.tally.count(hit.cost, decision, hit.rule.scale, hit.rule.shadow)
    if hit.rule.measured is not None:
        hit.rule.measured.measure(hit.limit, hit.cost, decision)


def _settles(hits: Sequence[Hit]) -> Iterator[Sequence[Hit]]:
    """The settles of a reservation among these hits."""
    reserved = [hit for hit in hits if hit.limit.owes and hit.limit.kind.reserves]
    for together, members in groupby(reserved, attrgetter("together")):
        settles = list(members)
        yield from [settles] if together else [[hit] for hit in settles]


def _charge_of(hit: Hit) -> _HitOfSettle:
    kind = hit.limit.kind
    assert isinstance(kind, Reserved)
    tally = hit.tally.tally if isinstance(hit.tally, Settlements) else hit.tally
    return _HitOfSettle(hit.rule, hit.key, kind.holder, hit.cost, tally, hit.together)


def _again(kept: _HitOfSettle, rule: Rule, until: float) -> KeptHit:
    tally = Settlements(kept.tally)
    hit = KeptHit(rule, kept.key, kept.cost, tally=tally, quota=False, together=kept.together)
    kind = hit.limit.kind
    assert isinstance(kind, Reserved)
    hit.limit = settling(replace(hit.limit, kind=replace(kind, holder=kept.holder)))
    hit.until = until
    return hit
