"""The running service as metrics and pages read it: the same for one process and for a parent with its workers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ratelimit_service.api.method import Method
from ratelimit_service.limiter.refusals import RefusalSource
from ratelimit_service.rules.bans import BanSummary
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.loading import Loading
from ratelimit_service.stores.store import StoreStatus
from ratelimit_service.telemetry.gauges import Gauges
from ratelimit_service.telemetry.heavy_hitters import HeavyNames
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.telemetry.tally import DomainTallies, Tallies, Tally, Totals
from ratelimit_service.telemetry.top_counts import TopSource


class Counted(Protocol):
    """The counts of a limiter, or of the limiters of all workers together."""

    @property
    def book(self) -> RuleBook | None:
        """The rules, with their tallies."""

    @property
    def overrides(self) -> Tallies:
        """Tallies of limits sent with requests."""

    @property
    def unknown_domains(self) -> Tallies:
        """Requests for domains without rules, counted in `total_hits`."""

    @property
    def unmatched(self) -> HeavyNames:
        """Descriptors that match no rule, by domain and keys."""

    @property
    def domains(self) -> DomainTallies:
        """Requests by domain and outcome."""

    @property
    def totals(self) -> Totals:
        """Counts of the service as a whole."""

    @property
    def ban_summary(self) -> BanSummary:
        """The number of bans in force, and the last ones made."""

    @property
    def waits(self) -> Latency:
        """The times that requests waited for the store."""

    @property
    def top(self) -> TopSource:
        """The descriptors that are asked about, and refused, most."""

    @property
    def refusals(self) -> RefusalSource:
        """Some of the requests that were refused, with why."""

    @property
    def gauges(self) -> Mapping[Tally, Gauges]:
        """The gauges of rules now, by their tallies, of those that have any."""

    @property
    def store(self) -> StoreStatus:
        """The store that has the counters."""


class MeasuredMethod(Method, Protocol):
    """A gRPC method that counts and measures its calls."""

    @property
    def calls(self) -> int:
        """The number of calls that began."""

    @property
    def latency(self) -> Latency:
        """The times that calls took."""


class HealthState(Protocol):
    """The service's health."""

    @property
    def serving(self) -> bool:
        """The health check says SERVING."""

    @property
    def draining_since(self) -> int | None:
        """Microseconds since the epoch; None unless the service is stopping."""


class WorkerState(Protocol):
    """A worker that runs."""

    @property
    def number(self) -> int:
        """The number of the worker, from 1; its replacement has the same."""

    @property
    def pid(self) -> int:
        """The id of its process."""

    @property
    def age_seconds(self) -> float:
        """The seconds for which its process has run."""

    @property
    def restarts(self) -> int:
        """The number of processes before it in its place."""

    @property
    def ready(self) -> bool:
        """It answers calls, or will as soon as there are rules."""

    @property
    def connections(self) -> int:
        """Connections that it has or is about to take."""


class Death(NamedTuple):
    """The unexpected end of a worker."""

    number: int
    when: int
    """Microseconds since the epoch."""
    how: str
    """Its pid and its exit code or signal, in words."""


class Workers(Protocol):
    """All workers."""

    @property
    def alive(self) -> Iterable[WorkerState]:
        """The workers that run."""

    @property
    def deaths(self) -> int:
        """The number of workers that ended unexpectedly."""

    @property
    def last_deaths(self) -> Sequence[Death]:
        """The last of them, in order."""

    async def refresh(self) -> None:
        """Fetch what they have counted until now."""


class ServiceState(NamedTuple):
    """The service."""

    counted: Counted
    method: MeasuredMethod
    """ShouldRateLimit."""
    loading: Loading
    health: HealthState
    metrics: Callable[[], Iterable[Metric]]
    """The metrics of the store and the transport; of all workers together, if there are any."""
    workers: Workers | None = None
    """None in a service of one process."""
