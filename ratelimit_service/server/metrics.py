"""Tallies and gauges as Prometheus reads them, at scrape; nothing of it is on the hot path.

Names and labels are upstream's, so that dashboards made for it go on working. Everything is written in blocks of a
fraction of a millisecond, between which the caller lets other work run: ten thousand rules are forty thousand lines.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import add
from typing import Final, Protocol

from ratelimit_service import __version__
from ratelimit_service.rules.watch import Watcher
from ratelimit_service.rules.words import window_in_words
from ratelimit_service.server.series import (
    BLOCK,
    NUMBERS,
    STATS,
    Counted,
    domain_numbers,
    plain,
    sums,
    tallies_of,
)
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Labels, Metric, head, label_text, line
from ratelimit_service.telemetry.processes import Processes, Workers
from ratelimit_service.telemetry.tally import OUTCOMES, POLICY_ANSWERS, Path


class Calls(Protocol):
    """What a method tells of its calls."""

    @property
    def path(self) -> str:
        """As in the `:path` header."""

    @property
    def calls(self) -> int:
        """How many began."""

    @property
    def latency(self) -> Latency:
        """How long they took."""


class Serving(Protocol):
    """What is known of the service's health."""

    @property
    def serving(self) -> bool:
        """Callers should come."""

    @property
    def draining_since(self) -> int | None:
        """Microseconds since the epoch; None unless the service is about to stop."""


class Connections(Protocol):
    """What a transport, or HTTP, tells of its connections."""

    def metrics(self) -> Sequence[Metric]:
        """As metrics."""


_OWN_LABELS: Final = frozenset(
    {
        "domain",
        "key1",
        "key2",
        "key3",
        "err_type",
        "grpc_method",
        "le",
        "store",
        "cause",
        "generation",
        "version",
        "python",
        "reason",
        "limit",
        "bound",
        "by",
        "worker",
        "outcome",
        "policy",
        "name",
        "place",
        "algorithm",
        "window",
    }
)


class Metrics:
    """Everything that is counted, by all `workers` if there are any; `extra_labels` stand on every series."""

    def __init__(  # noqa: PLR0913 - whatever there is to count
        self,
        counted: Counted,
        methods: Sequence[Calls],
        watcher: Watcher,
        health: Serving,
        *,
        extra_labels: Iterable[tuple[str, str]] = (),
        connections: Callable[[], Connections | None] = lambda: None,
        http: Connections | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._counted = counted
        self._methods = methods
        self._watcher = watcher
        self._health = health
        self._connections = connections
        self._http = http
        # A label of ours wins, as that of a target does in Prometheus, which calls the other one so too.
        self._extra = tuple(
            (f"exported_{name}" if name in _OWN_LABELS else name, value) for name, value in extra_labels
        )
        self._workers = workers
        self._processes = Processes(lambda labels: self._labels(*labels), workers)

    def exposition(self) -> Iterator[str]:
        """All metrics but the process's own, as text in blocks."""
        yield from self._rules()
        yield from self._limits()
        yield from self._domains()
        yield from self._unknown_domains()
        yield from self._service()
        yield self._gauges()
        yield self._store()
        for metric in self._counted.store.metrics():
            yield self._text(metric)
        for connections in (self._connections(), self._http):
            for metric in () if connections is None else connections.metrics():
                yield self._text(metric)
        if self._workers is not None:
            yield self._of_workers(self._workers)

    def process(self) -> str:
        """CPU, memory and files. Counting open files takes long when there are many: not for the loop."""
        return self._processes.text()

    def _labels(self, *labels: tuple[str, str]) -> str:
        return label_text((*labels, *self._extra))

    def _rules(self) -> Iterator[str]:
        found = yield from sums(self._counted, self._path_labels)
        for index, (stat, meaning, ours) in enumerate(STATS):
            name = f"ratelimit_service_rate_limit_{stat}{'_total' if ours else ''}"
            yield head(name, "counter", meaning)
            yield from _in_blocks(
                line(name, labels, numbers[index])
                for labels, (numbers, shown) in found.items()
                if numbers[index] or stat in shown
            )
        name = "ratelimit_rule_policy_answers_total"
        yield head(name, "counter", "Cost of hits answered without the store, by the rule's policy.")
        for number, policy, outcome in POLICY_ANSWERS:
            index = NUMBERS.index(number)
            more = label_text((("policy", policy), ("outcome", outcome)))
            yield from _in_blocks(
                line(name, f"{labels},{more}", numbers[index])
                for labels, (numbers, _) in found.items()
                if numbers[index]
            )

    def _limits(self) -> Iterator[str]:
        """What dashboards join with the counters of rules: one series of each for one set of labels."""
        limits: dict[str, str] = {}
        about: dict[str, str] = {}
        name, info = "ratelimit_rule_limit", "ratelimit_rule_info"
        for rule in () if self._counted.book is None else self._counted.book.rules:
            limit = rule.limit
            more = label_text(
                (
                    ("name", rule.name),
                    ("place", "" if rule.place is None else f"{rule.place.path}:{rule.place.line}"),
                    ("algorithm", "" if limit is None else rule.algorithm.name),
                    ("window", "" if limit is None else window_in_words(limit)),
                )
            )
            for path, _ in tallies_of(rule):
                labels = self._path_labels(path)
                if labels not in about:
                    about[labels] = line(info, f"{labels},{more}", 1)
                    if limit is not None:
                        limits[labels] = line(name, labels, limit.requests)
            if len(about) % BLOCK == 0:
                yield ""
        yield head(name, "gauge", "Requests that the limit of the rule allows in one window.")
        yield from _in_blocks(limits.values())
        yield head(info, "gauge", "1; the labels tell what the rule is, to be joined with its counters.")
        yield from _in_blocks(about.values())

    def _domains(self) -> Iterator[str]:
        found: dict[str, tuple[int, ...]] = {}
        for count, (domain, tally) in enumerate(self._counted.domains.items()):
            if count % BLOCK == 0:
                yield ""
            labels = self._labels(("domain", plain(domain)))
            numbers = domain_numbers(tally)
            found[labels] = tuple(map(add, numbers, found[labels])) if labels in found else numbers
        name = "ratelimit_requests_total"
        yield head(name, "counter", "Requests by domain and outcome; other is what is asked without a domain's rules.")
        for index, outcome in enumerate(OUTCOMES):
            more = label_text((("outcome", outcome),))
            yield from _in_blocks(line(name, f"{labels},{more}", numbers[index]) for labels, numbers in found.items())
        name = "ratelimit_unmatched_descriptors_total"
        yield head(name, "counter", "Descriptors that no rule of their domain fits: they are not limited.")
        yield from _in_blocks(line(name, labels, numbers[-1]) for labels, numbers in found.items())

    def _path_labels(self, path: Path) -> str:
        levels = [plain(level) for level in path]
        if len(levels) > 4:
            levels[3:] = [".".join(levels[3:])]
        return self._labels(*zip(("domain", "key1", "key2", "key3"), levels, strict=False))

    def _unknown_domains(self) -> Iterator[str]:
        name = "ratelimit_service_rate_limit_domain_not_found"
        yield head(name, "counter", "Requests for a domain that has no rules.")
        found: dict[str, int] = {}
        for path, tally in self._counted.unknown_domains.items():
            labels = self._path_labels(path)
            found[labels] = found.get(labels, 0) + tally.total_hits
        yield from _in_blocks(line(name, labels, number) for labels, number in found.items())

    def _service(self) -> Iterator[str]:
        totals, watcher = self._counted.totals, self._watcher
        name = "ratelimit_service_should_rate_limit_error"
        yield head(name, "counter", "Calls that could not be answered, because of the request or rules, or the store.")
        yield line(name, self._labels(("err_type", "service_error")), totals.service_errors)
        yield line(name, self._labels(("err_type", "redis_error")), totals.store_errors)
        for name, value, meaning in (
            (
                "ratelimit_service_global_shadow_mode",
                totals.global_shadow_mode,
                "Refusals that SHADOW_MODE turned to OK.",
            ),
            ("ratelimit_service_config_load_success", watcher.successes, "Times the rules were loaded."),
            ("ratelimit_service_config_load_error", watcher.failures, "Times the rules could not be loaded."),
        ):
            yield head(name, "counter", meaning) + line(name, self._labels(), value)
        name = "ratelimit_service_total_requests"
        yield head(name, "counter", "Calls, over gRPC and by POST /json.")
        for method in self._methods:
            yield line(name, self._labels(("grpc_method", method_name(method))), method.calls)
        name = "ratelimit_service_response_time_seconds"
        yield head(name, "histogram", "How long calls took, from their bytes to the answer's.")
        for method in self._methods:
            yield self._histogram(name, [("grpc_method", method_name(method))], method.latency)

    def _histogram(self, name: str, labels: Labels, latency: Latency) -> str:
        """In one block, so that no call is in one of its lines and not in the next."""
        calls = latency.calls
        lines = [
            line(f"{name}_bucket", self._labels(*labels, ("le", repr(bucket.seconds))), bucket.calls)
            for bucket in latency.buckets()
        ]
        lines.append(line(f"{name}_bucket", self._labels(*labels, ("le", "+Inf")), calls))
        lines.append(line(f"{name}_sum", self._labels(*labels), latency.nanoseconds / 1e9))
        lines.append(line(f"{name}_count", self._labels(*labels), calls))
        return "".join(lines)

    def _store(self) -> str:
        """Only for a store outside this process anybody waits, and it alone cannot always be asked."""
        store, of_store = self._counted.store, ("store", self._counted.store.name)
        waits, errors = "ratelimit_store_answer_seconds", "ratelimit_store_errors_total"
        return (
            head(waits, "histogram", "How long requests waited for the store, those answered by policy too.")
            + self._histogram(waits, [of_store], self._counted.waits)
            + head(errors, "counter", "Requests answered by policy, by what was wrong with the store.")
            + "".join(
                line(errors, self._labels(of_store, ("cause", cause)), number)
                for cause, number in sorted(store.errors.items())
            )
        )

    def _text(self, metric: Metric) -> str:
        name = metric.name
        return head(name, metric.type, metric.help) + "".join(
            self._histogram(name, labels, value)
            if isinstance(value, Latency)
            else line(name, self._labels(*labels), value)
            for labels, value in metric.samples
        )

    def _of_workers(self, workers: Workers) -> str:
        alive = tuple(workers.alive)
        name, deaths = "ratelimit_worker_connections", "ratelimit_worker_deaths_total"
        return (
            head(name, "gauge", "gRPC connections of each worker.")
            + "".join(line(name, self._labels(("worker", str(worker.number))), worker.load) for worker in alive)
            + head(deaths, "counter", "Workers that ended without being told to.")
            + line(deaths, self._labels(), workers.deaths)
        )

    def _gauges(self) -> str:
        book, store, watcher = self._counted.book, self._counted.store, self._watcher
        of_store = ("store", store.name)
        loaded = watcher.successes > 0 and not watcher.problems
        build = (("version", __version__), ("python", platform.python_version()))
        return "".join(
            head(name, kind, meaning) + line(name, self._labels(*labels), value)
            for name, kind, value, labels, meaning in (
                ("ratelimit_rules", "gauge", len(book.rules) if book else 0, (), "Rules in force."),
                ("ratelimit_domains", "gauge", len(book.domains) if book else 0, (), "Domains that have rules."),
                (
                    "ratelimit_reload_last_success_timestamp_seconds",
                    "gauge",
                    (watcher.last_success or 0) / SECOND,
                    (),
                    "When the rules in force were loaded; 0 until then.",
                ),
                (
                    "ratelimit_reload_last_attempt_successful",
                    "gauge",
                    int(loaded),
                    (),
                    "1 when the rules in force are those on disk, 0 when those on disk could not be loaded.",
                ),
                ("ratelimit_store_counters", "gauge", store.counters, (of_store,), "Counters held."),
                (
                    "ratelimit_store_evicted_counters_total",
                    "counter",
                    store.evicted,
                    (of_store,),
                    "Counters forgotten for want of room before they had expired.",
                ),
                ("ratelimit_store_healthy", "gauge", int(store.healthy), (of_store,), "1 when the store can decide."),
                ("ratelimit_serving", "gauge", int(self._health.serving), (), "1 when health says SERVING."),
                ("ratelimit_build_info", "gauge", 1, build, "1; the labels tell what runs."),
            )
        )


def _in_blocks(lines: Iterable[str]) -> Iterator[str]:
    """The lines, joined to texts that take a fraction of a millisecond each."""
    block = []
    for each in lines:
        block.append(each)
        if len(block) >= BLOCK:
            yield "".join(block)
            block.clear()
    yield "".join(block)


def method_name(method: Calls) -> str:
    """`ShouldRateLimit`, without its service."""
    return method.path.rpartition("/")[2]
