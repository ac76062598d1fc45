"""The counts of workers, as messages to the parent, and the sums that the parent makes of them.

A worker sends, at each scrape and once a second:

- `tallies`: what rules have counted since the last report. The worker counts from 0 again;
- `reservations`: what they have reserved and settled since then;
- `gauges`: what is true of rules now, of those of which anything is;
- `overrides`, `unknown_domains`, `unmatched`, `hot`, `domains`: what else was counted since then by some name;
- `refusals`: a sample of the requests that were refused since then, at most 200;
- `report`: the sums of all; what holds now (health, the store); and the metrics of its store and its transport, whose
  counters go on from the worker's start.

All but the last, which is short, are as long as clients make them. They are sent in pieces, so that neither end is kept
from other work: a megabyte of JSON takes either of them ten milliseconds.

So the parent adds the counts, and merges the last metrics of all workers with those of workers that have exited. No sum
decreases when a worker is replaced.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from ratelimit_service.limiter.hit_log import HitLogs
from ratelimit_service.limiter.refusals import Refusal, RefusalSums
from ratelimit_service.rules.bans import BanSummary
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Rule
from ratelimit_service.server.engine import Engine
from ratelimit_service.server.series import add_domain, add_tally, drain_domain, drain_tally
from ratelimit_service.server.workers.channel import PIECE
from ratelimit_service.server.workers.slot import WorkerSlot
from ratelimit_service.settings import Settings
from ratelimit_service.stores.store import LostServer
from ratelimit_service.telemetry.gauges import NO_GAUGES, Gauges
from ratelimit_service.telemetry.heavy_hitters import HeavyNames, Sketch
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import BLOCK, Metric, merge_metrics, pack_metrics, without_gauges
from ratelimit_service.telemetry.tally import OTHER, DomainTallies, Path, Tallies, Tally, Totals
from ratelimit_service.telemetry.top_counts import TopSums

RuleCounts = tuple[Path, Path, Sequence[int]]
"""A rule's path; the path of one of its values, if it counts them apart; and its counts, in the order of NUMBERS."""


class Reporter:
    """Reports what the engine of a worker has counted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reported_errors: Counter[str] = Counter()

    async def report(self, send: Callable[..., None], number: int) -> None:
        """Send everything that was counted since the last report; `number` is that of the parent's request.

        Calls are answered between the pieces.
        """
        engine, limiter = self._engine, self._engine.limiter
        rules, gauges = () if limiter.book is None else limiter.book.rules, limiter.gauges
        by_kind: Mapping[str, Iterable[Item | None]] = {
            "tallies": _drain_rules(rules),
            "reservations": () if limiter.book is None else _drain_reservations(limiter.book.reserving),
            "gauges": _gauges_of(rules, gauges) if gauges else (),
            "overrides": _drain_all(limiter.overrides),
            "unknown_domains": _drain_all(limiter.unknown_domains),
            "unmatched": limiter.unmatched.drain().packed(_NAMES),
            "hot": _drain_top(limiter.top),
            "domains": _drain_domains(limiter.domains),
            "refusals": limiter.refusals.drain(),
        }
        for kind, items in by_kind.items():
            for piece in _pieces(items):
                if piece:
                    send(kind, piece)
                await asyncio.sleep(0)
        calls, engine.method.calls = engine.method.calls, 0
        totals = {name: getattr(limiter.totals, name) for name in Totals.__slots__}
        for name in totals:
            setattr(limiter.totals, name, 0)
        store, bans = limiter.store, limiter.ban_summary
        errors = Counter(store.errors)
        new_errors, self._reported_errors = errors - self._reported_errors, errors
        summary = {
            "serving": engine.health.serving,
            "healthy": store.healthy,
            "counters": store.counters,
            "lost": store.lost,
            "warnings": store.warnings,
            "bans": (bans.total, [ban.text for ban in bans.newest]),
            "errors": dict(new_errors),
            "metrics": pack_metrics(engine.metrics()),
            "calls": calls,
            "latency": engine.method.latency.drain(),
            "exemplars": engine.method.latency.drain_exemplars(),
            "waits": limiter.waits.drain(),
            "totals": totals,
        }
        send("report", number, summary)


_NAMES: Final = 8
"""The names of a sketch in one item: a name may have 3,600 bytes as JSON."""

_BYTES: Final = 4
"""The most bytes of JSON for each character that `repr` writes."""

Item = tuple[Any, ...]
"""The counts by one name."""


def _pieces(items: Iterable[Item | None]) -> Iterator[list[Item]]:
    """The items in pieces of at most PIECE bytes, if none is longer, and of at most BLOCK that were looked at."""
    piece: list[Item] = []
    size = 0
    for looked_at, item in enumerate(items, 1):
        more = _BYTES * len(repr(item))
        if size + more > PIECE or looked_at % BLOCK == 0:
            yield piece
            piece, size = [], 0
        if item is not None:
            piece.append(item)
            size += more
    yield piece


def _drain_rules(rules: Iterable[Rule]) -> Iterator[RuleCounts | None]:
    """The counts of the rules; of one that counts values apart, those of each value."""
    for rule in rules:
        if rule.tallies is None:
            yield (rule.path, (), numbers) if (numbers := drain_tally(rule.tally)) else None
        else:
            for found in _drain_all(rule.tallies):
                yield found and (rule.path, *found)


def _drain_reservations(rules: Iterable[Rule]) -> Iterator[Item | None]:
    for rule in rules:
        sums = None if rule.measured is None else rule.measured.reservations
        drained = None if sums is None else sums.drain()
        yield None if drained is None else (rule.path, drained)


def _drain_all(tallies: Tallies) -> Iterator[tuple[Path, Sequence[int]] | None]:
    return ((path, numbers) if (numbers := drain_tally(tally)) else None for path, tally in tallies.items())


def _gauges_of(rules: Iterable[Rule], gauges: Mapping[Tally, Gauges]) -> Iterator[Item | None]:
    return ((rule.path, gauges[rule.tally]) if rule.tally in gauges else None for rule in rules)


def _drain_top(log: HitLogs) -> Iterator[Item]:
    """The sketches of a log, of which there are several of each number."""
    return ((number, packed) for number, sketch in enumerate(log.drain()) for packed in sketch.packed(_NAMES))


def _drain_domains(domains: DomainTallies) -> Iterator[Item | None]:
    return ((name, numbers) if (numbers := drain_domain(tally)) else None for name, tally in domains.items())


class MergedCounts:
    """The counts of all workers, like those of one limiter, and their metrics."""

    def __init__(self, settings: Settings, slots: Sequence[WorkerSlot]) -> None:
        self.book: RuleBook | None = None
        self.store = MergedStoreStatus(settings.backend_type, slots)
        self.totals = Totals()
        self.overrides = Tallies(OTHER, settings.metrics_max_values)
        self.unknown_domains = Tallies(OTHER, settings.metrics_max_values)
        self.unmatched = HeavyNames()
        self.domains = DomainTallies()
        self.waits = Latency()
        self.top = TopSums()
        self.refusals = RefusalSums()
        self.calls = 0
        self.latency = Latency()
        self._slots = slots
        self._final: Sequence[Metric] = ()
        """The counters and histograms of workers that have exited."""
        self._rules: dict[Path, Rule] = {}

    def publish(self, book: RuleBook) -> None:
        """Count by these rules from now on; the counts are in their tallies."""
        self.book = book
        self.domains.add_domains(book.domains)
        self._rules = {rule.path: rule for rule in book.rules}

    def rule_at(self, path: Sequence[str]) -> Rule | None:
        """The rule with this path."""
        return self._rules.get(tuple(path))

    @property
    def ban_summary(self) -> BanSummary:
        """As the worker has them that reports the fewest: the others know more, and it will in a moment."""
        ready = [slot.bans for slot in self._slots if slot.ready]
        return min(ready, key=attrgetter("total"), default=BanSummary(0, ()))

    @property
    def gauges(self) -> Mapping[Tally, Gauges]:
        """The gauges of rules in all workers, as each has reported them last."""
        found: dict[Tally, Gauges] = {}
        for path, gauges in (each for slot in self._slots for each in slot.gauges):
            rule = self._rules.get(path)
            if rule is not None:
                found[rule.tally] = gauges.merge(found.get(rule.tally, NO_GAUGES))
        return found

    def metrics(self) -> Sequence[Metric]:
        """The metrics of the stores and transports of all workers, those that have exited included."""
        return merge_metrics([self._final, *(slot.metrics for slot in self._slots)])

    def add_final_counters(self, slot: WorkerSlot) -> None:
        """Keep the counters and histograms, not the gauges, of a worker that has exited."""
        self._final = merge_metrics([self._final, without_gauges(slot.metrics)])

    def add_tallies(self, piece: Iterable[RuleCounts]) -> None:
        """Add what a worker has counted by rules; the counts of rules that no longer exist are dropped."""
        for path, value_path, numbers in piece:
            rule = self._rules.get(tuple(path))
            if rule is not None:
                # The worker may still use the previous book, in which the rule did not count values apart, or did.
                by_value = rule.tallies if value_path else None
                add_tally(rule.tally if by_value is None else by_value.of(tuple(value_path)), numbers)

    def add_piece(self, kind: str, piece: Iterable[Any]) -> None:
        """Add what a worker has counted by names of this kind."""
        match kind:
            case "overrides" | "unknown_domains":
                tallies = self.overrides if kind == "overrides" else self.unknown_domains
                for path, numbers in piece:
                    add_tally(tallies.of(tuple(path)), numbers)
            case "unmatched":
                for packed in piece:
                    self.unmatched.merge(Sketch(*packed))
            case "hot":
                for number, packed in piece:
                    self.top.add(number, Sketch(*packed))
            case "domains":
                for domain, numbers in piece:
                    add_domain(self.domains.of(domain), numbers)
            case "refusals":
                self.refusals.add(Refusal(*fields) for fields in piece)
            case "reservations":
                for path, drained in piece:
                    rule = self.rule_at(path)
                    if rule is not None and rule.measured is not None:
                        rule.measured.reservation_sums.add(drained)

    def add(self, summary: Mapping[str, Any]) -> None:
        """Add the sums that a worker has counted, from its report."""
        self.calls += summary["calls"]
        self.latency.add(*summary["latency"])
        self.latency.add_exemplars(summary["exemplars"])
        self.waits.add(*summary["waits"])
        self.store.errors.update(summary["errors"])
        for name, number in summary["totals"].items():
            setattr(self.totals, name, getattr(self.totals, name) + number)


class MergedStoreStatus:
    """The status of the store that all workers share."""

    evicted = 0
    """A shared store is outside these processes; only one in memory evicts counters."""

    def __init__(self, name: str, slots: Sequence[WorkerSlot]) -> None:
        self.name = name
        self.errors: Counter[str] = Counter()
        """Requests that it could not decide, by cause."""
        self._slots = slots

    @property
    def healthy(self) -> bool:
        """All workers that are ready can use it: some calls reach the worker that cannot."""
        ready = [slot for slot in self._slots if slot.ready]
        return bool(ready) and all(slot.healthy for slot in ready)

    @property
    def counters(self) -> int:
        """The largest number that a worker reports: all count the same counters, some a few seconds later."""
        return max((slot.counters for slot in self._slots if slot.ready), default=0)

    @property
    def lost(self) -> Sequence[LostServer]:
        """Each server that some worker cannot use, as the first worker that lost it reports it."""
        found: dict[str, LostServer] = {}
        for lost in (lost for slot in self._slots if slot.ready for lost in slot.lost):
            first = found.get(lost.server)
            if first is None or lost.since < first.since:
                found[lost.server] = lost
        return tuple(found.values())

    @property
    def warnings(self) -> Sequence[str]:
        """Each once that some worker has."""
        return [*dict.fromkeys(text for slot in self._slots if slot.ready for text in slot.warnings)]
