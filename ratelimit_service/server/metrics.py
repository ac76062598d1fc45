"""Everything that is counted or measured, as metrics for Prometheus: made at each scrape, never on the hot path.

Names and labels are envoyproxy's, so that dashboards made for it go on working. Ten thousand rules have forty thousand
series, so the text is made in blocks of a fraction of a millisecond, between which the caller lets other work run.

To add a metric, yield it in `metrics()` of the part that counts it (a store, a transport, HTTP connections). Nothing
else is needed, with several workers neither. One about rules or the service as a whole is yielded here. A label with a
new name is added to `_OWN_LABELS`.
"""

import platform
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from ratelimit_service import __version__
from ratelimit_service.algorithms.kinds import KINDS
from ratelimit_service.rules.sources.source import SourceConnection
from ratelimit_service.server.series import (
    CONTROL,
    DOMAIN_NUMBERS,
    NUMBERS,
    STATS,
    DomainSums,
    GaugesByText,
    ReservationsByText,
    RuleTexts,
    TallySums,
    describe_rules,
    emptied,
    merge_gauges,
    merge_reservations,
    plain,
    sum_domains,
    sum_tallies,
)
from ratelimit_service.server.state import MeasuredMethod, ServiceState, Workers
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.metric import (
    Metric,
    MetricType,
    Sample,
    counter,
    counter_by,
    exposition,
    gauge,
    histogram,
    in_blocks,
    label_text,
)
from ratelimit_service.telemetry.processes import ProcessMetrics
from ratelimit_service.telemetry.tally import OUTCOMES, POLICY_ANSWERS, Path

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
        "decided_by",
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
        "counter",
        "shadow",
        "quantile",
    }
)
"""All label names of our metrics."""


class Metrics:
    """All metrics of the service, and those of its HTTP ports; `extra_labels` stand on every series."""

    def __init__(
        self,
        state: ServiceState,
        *,
        http: Callable[[], Iterable[Metric]],
        extra_labels: Iterable[tuple[str, str]],
    ) -> None:
        self._state = state
        self._http = http
        # A label of ours wins, as that of a target does in Prometheus, which renames the other one in the same way.
        self._extra = tuple(
            (f"exported_{name}" if name in _OWN_LABELS else name, value) for name, value in extra_labels
        )
        workers = state.workers
        self._processes = ProcessMetrics(None if workers is None else lambda: [worker.pid for worker in workers.alive])

    def exposition(self, *, openmetrics: bool = False) -> Iterator[str]:
        """All metrics but those of the processes, as text in blocks."""
        text = partial(exposition, extra=self._extra, openmetrics=openmetrics)
        counted = self._state.counted
        # Sums are freed before the next are made: there may be 50,000 tallies.
        sums = yield from sum_tallies(counted, self._path_text)
        yield from text(_tally_metrics(sums))
        yield from emptied(sums)
        rules = yield from describe_rules(counted, self._path_text)
        yield from text(_rule_metrics(rules))
        yield from emptied(rules)
        yield from text(_gauge_metrics((yield from merge_gauges(counted, self._path_text))))
        yield from text(_reservation_metrics((yield from merge_reservations(counted, self._path_text))))
        yield from text(_domain_metrics((yield from sum_domains(counted.domains, self._domain_text))))
        yield from text(self._other_metrics())

    def process(self, *, openmetrics: bool = False) -> str:
        """CPU, memory and files. Counting open files takes long when there are many: not for the event loop."""
        return "".join(exposition(self._processes.metrics(), self._extra, openmetrics=openmetrics))

    def _other_metrics(self) -> Iterator[Metric]:
        state = self._state
        yield from self._unknown_domain_metrics()
        yield from _service_metrics(state)
        yield from _store_metrics(state)
        yield from state.metrics()
        yield from self._http()
        if state.workers is not None:
            yield from _worker_metrics(state.workers)

    def _unknown_domain_metrics(self) -> Iterator[Metric]:
        found: dict[str, int] = {}
        for path, tally in self._state.counted.unknown_domains.items():
            labels = self._path_text(path)
            found[labels] = found.get(labels, 0) + tally.total_hits
        name = "ratelimit_service_rate_limit_domain_not_found"
        yield from _counters(name, "Requests for a domain without rules.", found.items())

    def _path_text(self, path: Path) -> str:
        levels = [plain(level) for level in path]
        if len(levels) > 4:
            levels[3:] = [".".join(levels[3:])]
        return label_text((*zip(("domain", "key1", "key2", "key3"), levels, strict=False), *self._extra))

    def _domain_text(self, domain: str) -> str:
        return label_text((("domain", domain), *self._extra))


def _tally_metrics(sums: TallySums) -> Iterator[Metric]:
    for index, stat in enumerate(STATS):
        name = f"ratelimit_service_rate_limit_{stat.name}{'_total' if stat.ours else ''}"
        samples: Iterator[Sample | None] = (
            (labels, numbers[index]) if numbers[index] or stat.name in shown else None
            for labels, (numbers, shown) in sums.items()
        )
        yield from _counters(name, stat.help, samples)
    for kind in KINDS.values():
        for outcome, counts in kind.outcomes.items():
            more = label_text((("outcome", outcome),))
            of_outcome = [NUMBERS.index(count) for count in counts]
            samples = (
                (f"{labels},{more}", sum(numbers[index] for index in of_outcome)) if kind.tallied[0] in shown else None
                for labels, (numbers, shown) in sums.items()
            )
            yield from _counters(f"ratelimit_{kind.tallied[0]}_total", kind.outcomes_help, samples)
    name = "ratelimit_rule_policy_answers_total"
    for number, policy, outcome in POLICY_ANSWERS:
        index, more = NUMBERS.index(number), label_text((("policy", policy), ("outcome", outcome)))
        samples = (
            (f"{labels},{more}", numbers[index]) if numbers[index] else None for labels, (numbers, _) in sums.items()
        )
        yield from _counters(name, "Cost of hits that the rule's failure policy answered, without the store.", samples)


def _rule_metrics(rules: RuleTexts) -> Iterator[Metric]:
    # Dashboards join these with the counters of rules, so there is one series of each for one set of labels.
    limit = gauge("ratelimit_rule_limit", "Requests that the rule's limit allows in one window.", 0)
    yield from in_blocks(
        limit,
        ((labels, rule.limit.requests) if rule.limit is not None else None for labels, (rule, _) in rules.items()),
    )
    info = gauge("ratelimit_rule_info", "Always 1. The labels describe the rule; join it with the rule's counters.", 1)
    yield from in_blocks(info, ((f"{labels},{more}", 1) for labels, (_, more) in rules.items()))


_GAUGES: Final = (
    ("leases_held", "Counters of the rule of which processes hold units, charged in Redis in advance.", "leased"),
    ("lease_units_held", "Units of these counters that are not spent yet.", "held"),
    ("queue_requests", "Requests that wait for their turns in the rule's queues.", "waiting"),
    (
        "queue_longest_wait_seconds",
        "Longest wait for a turn, of those given in the last one to two minutes.",
        "longest_wait_seconds",
    ),
    (
        "places_taken",
        "The most places of one counter that were taken in the last one to two minutes, when this service was asked.",
        "places_taken",
    ),
    ("on_loan", "The most that one counter of an elastic limit had on loan in the last one to two minutes.", "on_loan"),
)
"""The rest of the metric's name, its help, and the number."""


def _gauge_metrics(gauges: GaugesByText) -> Iterator[Metric]:
    for name, text, number in _GAUGES:
        samples = (
            (labels, getattr(found, number)) if number in shown else None for labels, (found, shown) in gauges.items()
        )
        yield from in_blocks(Metric(f"ratelimit_rule_{name}", MetricType.GAUGE, text, []), samples)


_RESERVATIONS: Final = (
    ("reservations_total", "Reservations made.", "made"),
    ("reserved_units_total", "Units of these.", "made_units"),
    ("reservations_settled_total", "Reservations settled within hold.", "settled"),
    ("reservations_overran_total", "The part of these that cost more than was reserved.", "overran"),
    ("reservations_late_total", "Settles of ids without a reservation: hold was over, or it never had one.", "late"),
    ("reserved_units_due_total", "Units reserved longer than hold ago, here.", "due_units"),
    (
        "reserved_units_due_settled_total",
        "Units reserved longer than hold ago, anywhere, and settled here; summed over instances, the rest was not.",
        "due_settled_units",
    ),
    (
        "reservations_open",
        "Reservations made within hold, here, less those settled here: sum it over all instances.",
        "open",
    ),
    ("reserved_units_open", "Units of these: sum it over all instances.", "open_units"),
    ("reservations_oldest_seconds", "Age of the oldest of these that is not settled here.", "oldest_seconds"),
)
"""The rest of the metric's name, its help, and of the name of the number."""

_QUANTILES: Final = (("0.5", "settled_p50"), ("0.95", "settled_p95"), ("1", "settled_most"))


def _reservation_metrics(reservations: ReservationsByText) -> Iterator[Metric]:
    for name, text, number in _RESERVATIONS:
        kind = MetricType.COUNTER if name.endswith("_total") else MetricType.GAUGE
        samples: Iterator[Sample | None] = (
            (labels, getattr(found, f"reservations_{number}")) for labels, (found, _) in reservations.items()
        )
        yield from in_blocks(Metric(f"ratelimit_rule_{name}", kind, text, []), samples)
    cost = Metric("ratelimit_rule_settled_cost", MetricType.GAUGE, "What reservations cost in the last two hours.", [])
    for quantile, number in _QUANTILES:
        more = label_text((("quantile", quantile),))
        samples = (
            (f"{labels},{more}", getattr(found, number)) if found.settled_lately else None
            for labels, (found, _) in reservations.items()
        )
        yield from in_blocks(cost, samples)
    text = "Units that a request reserves which does not say its cost."
    samples = ((labels, estimate) if estimate else None for labels, (_, estimate) in reservations.items())
    yield from in_blocks(Metric("ratelimit_rule_reserve_estimate", MetricType.GAUGE, text, []), samples)


def _domain_metrics(domains: DomainSums) -> Iterator[Metric]:
    name = "ratelimit_requests_total"
    for index, outcome in enumerate(OUTCOMES):
        more = label_text((("outcome", outcome),))
        samples = ((f"{labels},{more}", numbers[index]) for labels, numbers in domains.items())
        yield from _counters(
            name, "Requests by domain and outcome. Requests for domains without rules have the domain other.", samples
        )
    for index, name, text in (
        (
            DOMAIN_NUMBERS.index("unmatched"),
            "ratelimit_unmatched_descriptors_total",
            "Descriptors that match no rule of their domain; they are not limited.",
        ),
        (
            DOMAIN_NUMBERS.index("no_address"),
            "ratelimit_not_an_address_total",
            "Values that are not IP addresses, of keys whose rules compare or count addresses.",
        ),
        (DOMAIN_NUMBERS.index("banned"), "ratelimit_banned_descriptors_total", "Descriptors that a ban denied."),
        (
            DOMAIN_NUMBERS.index("too_long"),
            "ratelimit_too_long_descriptors_total",
            "Descriptors denied for a value too long for the patterns that it is compared with.",
        ),
    ):
        yield from _counters(name, text, ((labels, numbers[index]) for labels, numbers in domains.items()))


def _service_metrics(state: ServiceState) -> Iterator[Metric]:
    counted, loading = state.counted, state.loading
    totals, book = counted.totals, counted.book
    yield counter_by(
        "ratelimit_service_should_rate_limit_error",
        "Calls that ended with an error: service_error for the request or missing rules, redis_error for the store.",
        "err_type",
        [("service_error", totals.service_errors), ("redis_error", totals.store_errors)],
    )
    yield counter(
        "ratelimit_service_global_shadow_mode",
        "Denied requests that SHADOW_MODE turned into OK.",
        totals.global_shadow_mode,
    )
    yield counter("ratelimit_service_config_load_success", "Successful loads of the rules.", loading.successes)
    yield counter("ratelimit_service_config_load_error", "Failed loads of the rules.", loading.failures)
    method = ("grpc_method", method_name(state.method))
    yield counter("ratelimit_service_total_requests", "Calls over gRPC and by POST /json.", state.method.calls, method)
    yield histogram(
        "ratelimit_service_response_time_seconds",
        "Time from the bytes of a request to the bytes of its response, without that in a queue.",
        state.method.latency,
        method,
    )
    yield gauge("ratelimit_rules", "Rules in force.", len(book.rules) if book else 0)
    yield gauge("ratelimit_bans", "Bans in force.", counted.ban_summary.total)
    yield gauge("ratelimit_domains", "Domains that have rules.", len(book.domains) if book else 0)
    yield gauge(
        "ratelimit_reload_last_success_timestamp_seconds",
        "Time of the last successful load of the rules; 0 before the first.",
        (loading.last_success or 0) / SECOND,
    )
    yield gauge(
        "ratelimit_reload_last_attempt_successful",
        "1 if what all sources of rules have is in force, 0 if some could not be loaded.",
        int(loading.successes > 0 and not loading.problems),
    )
    source = "Always 1. The labels are the source of rules, and the version of its documents in force."
    versions = [((("source", feed.source.kind), ("version", feed.version)), 1) for feed in loading.feeds]
    yield Metric("ratelimit_rules_source_info", MetricType.GAUGE, source, versions)
    for feed in loading.feeds:
        if (connection := feed.source.connection) is not None:
            yield from connection_metrics(connection)
    yield gauge("ratelimit_serving", "1 if the health check says SERVING, else 0.", int(state.health.serving))
    yield gauge(
        "ratelimit_build_info",
        "Always 1. The labels are the versions of the service and of Python.",
        1,
        ("version", __version__),
        ("python", platform.python_version()),
    )


def connection_metrics(connection: SourceConnection) -> Iterator[Metric]:
    """The metrics of a control plane that sends the rules."""
    yield gauge(
        "ratelimit_xds_connected", "1 if there is a stream to the control plane, else 0.", int(connection.connected)
    )
    yield gauge(
        "ratelimit_xds_connection_changed_timestamp_seconds",
        "Time when the stream to the control plane was opened, or lost.",
        connection.since / SECOND,
    )
    yield gauge(
        "ratelimit_xds_snapshot_kept",
        "1 while the rules are those of the snapshot on disk, and the control plane has sent none since the start.",
        int(bool(connection.kept)),
    )
    yield counter(
        "ratelimit_xds_snapshots_received_total", "Snapshots that the control plane sent.", connection.received
    )
    yield counter_by(
        "ratelimit_xds_snapshots_answered_total",
        "Snapshots that were answered, with ACK or NACK. Of those that come too fast only the newest is.",
        "outcome",
        [("accepted", connection.accepted), ("refused", connection.rejected)],
    )
    yield gauge(
        "ratelimit_xds_version_info",
        "Always 1. The label is the version that was accepted last, as the control plane says it.",
        1,
        ("version", CONTROL.sub("_", connection.version)),
    )


def _store_metrics(state: ServiceState) -> Iterator[Metric]:
    """The metrics that every store has; of one in memory, nothing waits and nothing fails."""
    store, of_store = state.counted.store, ("store", state.counted.store.name)
    yield gauge(
        "ratelimit_store_counters", "Counters in the store; with Redis, keys in its database.", store.counters, of_store
    )
    yield counter(
        "ratelimit_store_evicted_counters_total",
        "Unexpired counters that were evicted because the store was full.",
        store.evicted,
        of_store,
    )
    yield gauge("ratelimit_store_healthy", "1 if the store can decide hits, else 0.", int(store.healthy), of_store)
    yield histogram(
        "ratelimit_store_answer_seconds",
        "Time that requests waited for the store, including those that the failure policy answered.",
        state.counted.waits,
        of_store,
    )
    yield Metric(
        "ratelimit_store_errors_total",
        MetricType.COUNTER,
        "Requests that the store could not decide, by cause; the failure policy answered them.",
        [((of_store, ("cause", cause)), number) for cause, number in sorted(store.errors.items())],
    )


def _worker_metrics(workers: Workers) -> Iterator[Metric]:
    yield Metric(
        "ratelimit_worker_connections",
        MetricType.GAUGE,
        "gRPC connections of each worker.",
        [((("worker", str(worker.number)),), worker.connections) for worker in workers.alive],
    )
    yield counter(
        "ratelimit_worker_deaths_total", "Worker processes that ended unexpectedly, and were replaced.", workers.deaths
    )


def _counters(name: str, text: str, samples: Iterable[Sample | None]) -> Iterator[Metric]:
    return in_blocks(Metric(name, MetricType.COUNTER, text, []), samples)


def method_name(method: MeasuredMethod) -> str:
    """`ShouldRateLimit`, without its service."""
    return method.path.rpartition("/")[2]
