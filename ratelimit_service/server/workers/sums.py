"""What all workers together have counted, those that are gone too; the parent has it, and shows it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Rule
from ratelimit_service.server.series import add_domain, add_tally
from ratelimit_service.server.workers.report import Numbers
from ratelimit_service.server.workers.slot import WorkerSlot
from ratelimit_service.settings import Settings
from ratelimit_service.stores.store import Lost
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, merge_metrics, without_gauges
from ratelimit_service.telemetry.tally import OTHER, DomainTallies, Path, Tallies, Totals


class SharedStore:
    """The store as all workers that there are see it."""

    evicted = 0
    """A store that is shared is outside these processes, and such a one forgets nothing."""

    def __init__(self, name: str, posts: Sequence[WorkerSlot]) -> None:
        self.name = name
        self.errors: Counter[str] = Counter()
        """Requests that it could not decide, by cause."""
        self._posts = posts

    @property
    def healthy(self) -> bool:
        """The worst of all counts: some calls have the worker that cannot reach it."""
        ready = [post for post in self._posts if post.ready]
        return bool(ready) and all(post.healthy for post in ready)

    @property
    def counters(self) -> int:
        """All of them count the same ones, at times a few seconds apart."""
        return max((post.counters for post in self._posts if post.ready), default=0)

    @property
    def lost(self) -> Sequence[Lost]:
        """Each server that some worker cannot use, as the worker sees it that lost it first."""
        found: dict[str, Lost] = {}
        for lost in (lost for post in self._posts if post.ready for lost in post.lost):
            first = found.get(lost.server)
            if first is None or lost.since < first.since:
                found[lost.server] = lost
        return tuple(found.values())


class Sums:
    """Tallies like those of a limiter, to which every worker's counts are added; what was added stays."""

    def __init__(self, settings: Settings, posts: Sequence[WorkerSlot]) -> None:
        self.book: RuleBook | None = None
        self.store = SharedStore(settings.backend_type, posts)
        self.totals = Totals()
        self.overrides = Tallies(OTHER, settings.metrics_max_values)
        self.unknown_domains = Tallies(OTHER, settings.metrics_max_values)
        self.unmatched = Tallies(OTHER, settings.metrics_max_values)
        self.domains = DomainTallies()
        self.waits = Latency()
        self.calls = 0
        self.latency = Latency()
        self._posts = posts
        self._gone: Sequence[Metric] = ()
        self._rules: dict[Path, Rule] = {}

    def publish(self, book: RuleBook) -> None:
        """Show these rules from now on; their tallies are in them."""
        self.book = book
        self.domains.know(book.domains)
        self._rules = {rule.path: rule for rule in book.rules}

    def metrics(self) -> Sequence[Metric]:
        """What the transports and stores of all tell of themselves, those that are gone too."""
        return merge_metrics([self._gone, *(post.metrics for post in self._posts)])

    def bury(self, post: WorkerSlot) -> None:
        """Remember what lasts of the metrics of a worker that has ended."""
        self._gone = merge_metrics([self._gone, without_gauges(post.metrics)])

    def add_tallies(self, piece: Iterable[Numbers]) -> None:
        """Count what a worker has counted by rules. Those of a rule that has gone meanwhile go with it."""
        for path, value_path, numbers in piece:
            rule = self._rules.get(tuple(path))
            if rule is not None:
                by_value = rule.tallies if value_path else None  # the worker may have told by the rule of before
                add_tally(rule.tally if by_value is None else by_value.of(tuple(value_path)), numbers)

    def add(self, summary: Mapping[str, Any]) -> None:
        """Count everything else that it has counted."""
        self.calls += summary["calls"]
        self.latency.add(*summary["latency"])
        self.waits.add(*summary["waits"])
        self.store.errors.update(summary["errors"])
        for name, number in summary["totals"].items():
            setattr(self.totals, name, getattr(self.totals, name) + number)
        for tallies, more in (
            (self.overrides, summary["overrides"]),
            (self.unknown_domains, summary["unknown_domains"]),
            (self.unmatched, summary["unmatched"]),
        ):
            for path, numbers in more:
                add_tally(tallies.of(tuple(path)), numbers)
        for domain, numbers in summary["domains"]:
            add_domain(self.domains.of(domain), numbers)
