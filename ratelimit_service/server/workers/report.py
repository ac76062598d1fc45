"""What a worker has counted since it was last asked, as messages to its parent, who adds it up: `sums`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ratelimit_service.rules.rule import Rule
from ratelimit_service.server.engine import Engine
from ratelimit_service.server.series import take_domain, take_tally
from ratelimit_service.telemetry.metric import BLOCK, pack_metrics
from ratelimit_service.telemetry.tally import Path, Tallies, Totals

Numbers = tuple[Path, Path, Sequence[int]]
"""A rule's path; that of one of its values, if it tells them apart; and what was counted, in the order of NUMBERS."""


class Reporter:
    """Takes what an engine has counted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told: dict[str, Counter[str]] = {}

    async def report(self, send: Callable[..., None], number: int) -> None:
        """Send everything since the last report; what counts up begins anew, or is remembered as told.

        Tallies go in pieces, between which calls are answered: ten thousand of them are a megabyte.
        """
        engine, limiter = self._engine, self._engine.limiter
        for piece in _pieces(() if limiter.book is None else limiter.book.rules):
            if piece:
                send("tallies", piece)
            await asyncio.sleep(0)
        calls, engine.method.calls = engine.method.calls, 0
        totals = {name: getattr(limiter.totals, name) for name in Totals.__slots__}
        for name in totals:
            setattr(limiter.totals, name, 0)
        store = limiter.store
        summary = {
            "serving": engine.health.serving,
            "healthy": store.healthy,
            "counters": store.counters,
            "lost": store.lost,
            "errors": self._since("errors", store.errors),
            "metrics": pack_metrics(engine.metrics()),
            "calls": calls,
            "latency": engine.method.latency.take(),
            "waits": limiter.waits.take(),
            "totals": totals,
            "overrides": _taken(limiter.overrides),
            "unknown_domains": _taken(limiter.unknown_domains),
            "unmatched": _taken(limiter.unmatched),
            "domains": [(name, numbers) for name, tally in limiter.domains.items() if (numbers := take_domain(tally))],
        }
        send("report", number, summary)

    def _since(self, what: str, numbers: Mapping[str, int]) -> dict[str, int]:
        now = Counter(numbers)
        more = now - self._told.get(what, Counter())
        self._told[what] = now
        return dict(more)


def _pieces(rules: Sequence[Rule]) -> Iterator[list[Numbers]]:
    """What each rule has counted, a block of rules at a time; one with a tally for each value is a block."""
    piece: list[Numbers] = []
    for index, rule in enumerate(rules, 1):
        if rule.tallies is not None:
            yield [(rule.path, path, numbers) for path, numbers in _taken(rule.tallies)]
        elif numbers := take_tally(rule.tally):
            piece.append((rule.path, (), numbers))
        if index % BLOCK == 0:
            yield piece
            piece = []
    yield piece


def _taken(tallies: Tallies) -> list[tuple[Path, tuple[int, ...]]]:
    return [(path, numbers) for path, tally in tallies.items() if (numbers := take_tally(tally))]
