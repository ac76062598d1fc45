"""Requests that wait for Redis, and how long each may wait. Pure. Hot path.

Law: each request that is not cancelled is answered exactly once: when its last hit is decided, or by policy at its
deadline, whichever comes first. Later decisions are dropped.

A request may wait as long as its caller does, less a margin for the way back. A caller that sends a deadline
(`grpc-timeout`) has chosen it: on a busy machine a healthy Redis may need more than any constant. So `STORE_DEADLINE`
is only an upper bound, where it is set.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.faults import CAUSES, Fault
from ratelimit_service.stores.redis.kept import KeptSettles
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.stores.store import Done
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, MetricType, counter, histogram

log = logging.getLogger(__name__)

DEFAULT_GRANTED: Final = SECOND
"""Microseconds for a caller without a deadline, unless STORE_DEADLINE says so. Such a caller waits as long as it takes:
a second is more than a busy machine needs, and when Redis hangs only the requests of the first second wait."""

MARGIN: Final = 4
"""1/4 of the caller's time is left for the way back: 5 ms of the 20 ms that are Envoy's default."""

MAX_MARGIN: Final = 50_000
"""Microseconds."""

_PRECISION: Final = 6
"""Binary digits of the granted time that count; the rest is rounded off. Requests with equal time share a queue, and
callers that forward what is left of their own deadline send another time with each call."""

_MAX_TIMEOUTS: Final = 4096
"""Callers' timeouts remembered with their queue."""

CLOSE: Final = 0.2
"""An answer in this last part of the granted time nearly missed the deadline."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request whose hits are not all decided; they travel in `parts_left` parts."""

    hits: Sequence[Hit]
    done: Done
    queue: "DeadlineQueue"
    """In which it waits for its deadline."""
    deadline: float
    """Seconds of the monotonic clock."""
    parts_left: int = 0
    answered: bool = False
    sent: bool = False
    """Some part of it was sent."""
    failed: bool = False
    """Some part of it was decided by policy."""
    error: StoreError | None = None

    def complete(self) -> None:
        """Count one more part as decided; the last one answers the request."""
        self.parts_left -= 1
        if self.parts_left > 0 or self.answered:
            return
        self.answered = True
        # Kept until their deadline, the garbage collector would visit them again and again: 20 µs a request with a
        # deadline of a second.
        waiting = self.queue.requests
        while waiting and waiting[0].answered:
            waiting.popleft()
        try:
            self.done(self.error)
        except Exception:  # the callback of one request must not harm the others of its pipeline
            log.exception("a request could not be answered")

    def cancel(self) -> bool:
        """As Cancel says: until the first part of it is sent or decided."""
        if self.sent or self.failed or self.answered:
            return False
        self.answered = True
        return True

    def is_close(self, now: float) -> bool:
        """An answer now comes in time, and nearly missed the deadline."""
        return not self.answered and now > self.deadline - self.queue.granted * CLOSE


@dataclass(slots=True, eq=False)
class DeadlineQueue:
    """Requests that are granted the same time: the first one has the first deadline."""

    granted: float
    """Seconds from the arrival of each to its deadline."""
    requests: deque[PendingRequest] = field(default_factory=deque)
    total: int = 0
    """Requests that were ever in it."""


class PendingRequests:
    """All requests that wait. With `max_granted` (microseconds) no request is granted more time."""

    def __init__(self, policy: Policy, max_granted: int = 0) -> None:
        self.errors: dict[str, int] = {}
        """Requests of which some part was answered by policy, by the first cause."""
        self.close_calls = 0
        """Requests that were decided in the last fifth of their time."""
        self.at_home: dict[PendingRequest, int] = {}
        """Those that wait for the home Redis of all regions, with how many of their parts do."""
        self.by_timeout: dict[int | None, DeadlineQueue] = {}
        """The queues of timeouts that were seen before; `queue_for` knows all."""
        self.kept = KeptSettles()
        """Those that were answered by policy, and are sent again."""
        self._policy = policy
        self._max_granted = max_granted
        self._queues: dict[int, DeadlineQueue] = {}

    def __len__(self) -> int:
        """The number of requests that wait, or are answered while one before them in their queue waits."""
        return sum(len(queue.requests) for queue in self._queues.values())

    def queue_for(self, timeout: int | None) -> DeadlineQueue:
        """The queue for requests whose caller waits that long, in microseconds; None: the caller has no deadline."""
        if len(self.by_timeout) >= _MAX_TIMEOUTS:
            self.by_timeout.clear()
        granted = self._granted(timeout)
        queue = self._queues.get(granted)
        if queue is None:
            queue = self._queues[granted] = DeadlineQueue(granted / SECOND)
        self.by_timeout[timeout] = queue
        return queue

    def fail(self, request: PendingRequest, hits: Sequence[Hit], fault: Fault, *, without_home: bool = False) -> None:
        """Decide a part of a request by policy; `without_home`: for a fault of the home Redis of all regions."""
        if request.answered:
            return
        cause = fault.cause
        if not request.failed:
            request.failed = True
            self.errors[cause] = self.errors.get(cause, 0) + 1
        error = self._policy.answer(hits, CAUSES[cause].words, without_home=without_home)
        if any(hit.limit.owes for hit in hits):
            self.kept.keep(hits, request.deadline - request.queue.granted, sent=request.sent)
        request.error = request.error or error
        request.complete()

    def expire(self, now: float) -> float | None:
        """Answer the requests whose deadline has passed; returns the next deadline, None when no request waits."""
        soonest: float | None = None
        for queue in tuple(self._queues.values()):  # the callback of an answered request may add a queue
            requests = queue.requests
            while requests:
                request = requests[0]
                if request.answered:  # cancelled
                    requests.popleft()
                elif request.deadline <= now:
                    self._fail_undecided(request, _LATE)
                else:
                    if soonest is None or request.deadline < soonest:
                        soonest = request.deadline
                    break
        return soonest

    def fail_all(self, fault: Fault) -> None:
        """Answer all requests by policy."""
        for queue in tuple(self._queues.values()):
            for request in tuple(queue.requests):
                if not request.answered:
                    self._fail_undecided(request, fault)
            queue.requests.clear()

    def metrics(self) -> Sequence[Metric]:
        """The bounds in force, the time granted, and how many answers were nearly late."""
        bounds = [((("bound", "default"),), (self._max_granted or DEFAULT_GRANTED) / SECOND)]
        if self._max_granted:
            bounds.append(((("bound", "most"),), self._max_granted / SECOND))
        granted = Latency()
        for queue in self._queues.values():
            granted.observe_all(int(queue.granted * 1e9), queue.total)
        return (
            Metric(
                "ratelimit_store_deadline_seconds",
                MetricType.GAUGE,
                "Time the store has for a request: default is for callers without a deadline, most is the maximum.",
                bounds,
                merge_by_min=True,
            ),
            histogram(
                "ratelimit_store_granted_seconds",
                "Time that the store had for a request: the caller's deadline, less the way back.",
                granted,
            ),
            counter(
                "ratelimit_store_late_answers_total",
                "Requests that the store decided in the last 20 % of their deadline.",
                self.close_calls,
            ),
        )

    def _granted(self, timeout: int | None) -> int:
        """The time for Redis, in microseconds, rounded down."""
        if timeout is None:
            return self._max_granted or DEFAULT_GRANTED
        granted = timeout - min(timeout // MARGIN, MAX_MARGIN)
        granted -= granted % (1 << max(0, granted.bit_length() - _PRECISION))
        return min(granted, self._max_granted) if self._max_granted else granted

    def _fail_undecided(self, request: PendingRequest, fault: Fault) -> None:
        """Answer the request: its decided hits as they are, the others by policy."""
        request.parts_left = 0
        undecided = [hit for hit in request.hits if not hasattr(hit, "decision")]
        self.fail(request, undecided, fault, without_home=request in self.at_home)


_LATE: Final = Fault("timeout")
