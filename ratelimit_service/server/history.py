"""What happened lately: sixty minutes of requests by domain, and the last minute of calls, as differences of counts.

The counts are those that metrics show, of all workers where there are several. `look` compares them with those of its
last look, so no call costs more, and a reload of rules loses nothing.

Time is the machine's steady clock: when its wall clock is set, no minute is lost or counted twice.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import sub
from typing import Final, NamedTuple

from ratelimit_service.server.series import domain_numbers
from ratelimit_service.server.state import ServiceState
from ratelimit_service.system.clock import MINUTE, SECOND, Clock, steady_clock
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.telemetry.tally import MAX_PATH_LENGTH, OTHER, OUTCOMES

MINUTES: Final = 60
MAX_DOMAINS: Final = 50
"""With sums of their own: 2,500 bytes and the name for each, 330 kB when all names are as long as they may be."""
LOOK_SECONDS: Final = 5
"""Between two looks. One at a hundred domains takes 0.1 ms, at ten thousand 4 ms, or 14 ms when all had requests."""

_LOOKS: Final = 60 // LOOK_SECONDS + 1
_WIDTH: Final = len(OUTCOMES)
_OTHER: Final = OTHER[0]

Numbers = tuple[int, ...]
"""A count for each of OUTCOMES."""


class RequestHistory:
    """The requests of the last sixty minutes, by domain and outcome, for the first MAX_DOMAINS that have any.

    A domain without requests for sixty minutes makes room. The requests of all others are added up as `other`, with
    those for domains without rules.
    """

    def __init__(self) -> None:
        self._minute = 0
        self._sums = {_OTHER: _new_sums()}
        self._seen: dict[str, Numbers] = {}
        """The counts of each domain at the last look: 400 bytes for each that has had a request."""

    @property
    def domains(self) -> Sequence[str]:
        """Those with sums of their own, and `other`."""
        return tuple(self._sums)

    def add(self, minute: int, counts: Iterable[tuple[str, Numbers]]) -> None:
        """Add what the counts have grown by since the last time to the minute of that number."""
        self._begin(minute)
        at = minute % MINUTES * _WIDTH
        for domain, numbers in counts:
            before = self._seen.get(domain)
            if numbers == before or (before is None and not any(numbers)):
                continue
            self._seen[domain] = numbers
            sums = self._sums_of(domain)
            for index, grown in enumerate(numbers if before is None else map(sub, numbers, before), at):
                sums[index] += max(0, grown)

    def rows(self, domain: str) -> Iterator[Sequence[int]]:
        """For each of OUTCOMES the requests of each minute, the oldest first; the last minute is the running one."""
        sums, first = self._sums[domain], (self._minute + 1) % MINUTES
        for index in range(_WIDTH):
            column = sums[index::_WIDTH]
            yield (column[first:] + column[:first]).tolist()

    def _begin(self, minute: int) -> None:
        """Clear the minutes that begin, and free the domains that had no request in those that are left."""
        begun = range(max(self._minute + 1, minute - MINUTES + 1), minute + 1)
        if not begun:
            return
        for sums in self._sums.values():
            for each in begun:
                at = each % MINUTES * _WIDTH
                sums[at : at + _WIDTH] = array("Q", bytes(8 * _WIDTH))
        self._minute = minute
        self._sums = {domain: sums for domain, sums in self._sums.items() if domain == _OTHER or any(sums)}

    def _sums_of(self, domain: str) -> "array[int]":
        sums = self._sums.get(domain)
        if sums is None and len(self._sums) <= MAX_DOMAINS and len(domain) <= MAX_PATH_LENGTH:
            sums = self._sums[domain] = _new_sums()
        return self._sums[_OTHER] if sums is None else sums


class Snapshot(NamedTuple):
    """Counts since the start, at one moment."""

    when: int
    """By the steady clock."""
    calls: int
    latency: Latency
    waits: Latency
    lag: Latency | None
    """None if the transport does not measure it."""
    errors: Mapping[str, int]
    """Of the store, by cause."""


class LastMinute(NamedTuple):
    """What happened since the oldest snapshot that is at most a minute old."""

    seconds: float
    calls: int
    latency: Latency
    waits: Latency
    lag: Latency | None
    errors: Mapping[str, int]


class History:
    """What happened lately in the service."""

    def __init__(self, state: ServiceState, clock: Clock = steady_clock) -> None:
        self.requests = RequestHistory()
        self._state = state
        self._clock = clock
        self._started = clock()
        self._snapshots = deque([Snapshot(self._started, 0, Latency(), Latency(), None, {})], maxlen=_LOOKS)

    @property
    def running_seconds(self) -> float:
        """How much of the running minute has passed."""
        return (self._clock() - self._started) % MINUTE / SECOND

    def look(self) -> None:
        """Take a snapshot, and add what was counted since the last look. Called every LOOK_SECONDS."""
        self.update()
        self._snapshots.append(self._snapshot())

    def update(self) -> None:
        """Add what was counted since the last look to the running minute."""
        minute = (self._clock() - self._started) // MINUTE
        domains = self._state.counted.domains.items()
        self.requests.add(minute, ((domain, domain_numbers(tally)[:_WIDTH]) for domain, tally in domains))

    def last_minute(self) -> LastMinute:
        """The last minute; less after the start."""
        now = self._snapshot()
        # Looks may be late, and a machine that slept looks at nothing.
        oldest = next((each for each in self._snapshots if now.when - each.when <= MINUTE), self._snapshots[-1])
        return LastMinute(
            (now.when - oldest.when) / SECOND,
            now.calls - oldest.calls,
            _difference(now.latency, oldest.latency),
            _difference(now.waits, oldest.waits),
            None if now.lag is None else _difference(now.lag, oldest.lag or Latency()),
            dict(sorted((Counter(now.errors) - Counter(oldest.errors)).items())),
        )

    def _snapshot(self) -> Snapshot:
        counted, method = self._state.counted, self._state.method
        return Snapshot(
            self._clock(),
            method.calls,
            _copy(method.latency),
            _copy(counted.waits),
            _loop_lag(self._state.metrics()),
            dict(counted.store.errors),
        )


def _new_sums() -> "array[int]":
    return array("Q", bytes(8 * MINUTES * _WIDTH))


def _loop_lag(metrics: Iterable[Metric]) -> Latency | None:
    for metric in metrics:
        if metric.name == "ratelimit_loop_lag_seconds":
            value = metric.samples[0][1]
            return _copy(value) if isinstance(value, Latency) else None
    return None


def _copy(latency: Latency) -> Latency:
    copy = Latency()
    copy.add(latency.counts, latency.nanoseconds)
    return copy


def _difference(now: Latency, before: Latency) -> Latency:
    # A worker that was killed takes what it had not reported with it: no number may become negative.
    difference = Latency()
    counts = [max(0, one - other) for one, other in zip(now.counts, before.counts, strict=True)]
    difference.add(counts, max(0, now.nanoseconds - before.nanoseconds))
    return difference
