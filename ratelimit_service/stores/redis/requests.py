"""Requests that wait for their hits to be decided, and how long each may wait. Pure. Hot path.

Law: each that is not taken back is answered exactly once: by its last decision, or when its time is over by policy,
whichever comes first. What comes later is dropped.

A request has the time that its caller grants, less a margin for the way back. A caller that names a deadline with its
call (`grpc-timeout`) waits no longer, and would wait as long: on a busy machine a Redis that is well may take more than
any constant. So `STORE_DEADLINE` is an upper bound only where it is set.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service.errors import StoreError
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.faults import CAUSES, Fault
from ratelimit_service.stores.redis.policy import Policy
from ratelimit_service.stores.store import Done
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, MetricType

log = logging.getLogger(__name__)


class Waiting:
    """A request; its hits travel in `left` parts, to one server each."""

    __slots__ = ("answered", "deadline", "done", "error", "failed", "granted", "hits", "left", "sent")

    def __init__(self, hits: Sequence[Hit], done: Done, deadline: float, granted: float) -> None:
        self.hits = hits
        self.done = done
        self.deadline = deadline
        """Seconds of the monotonic clock."""
        self.granted = granted
        """Seconds that it had when it came."""
        self.left = 0
        self.answered = False
        self.sent = False
        """Some part of it is on its way, or was."""
        self.failed = False
        """Some part of it was decided by policy."""
        self.error: StoreError | None = None

    def settle(self) -> None:
        """One more part has its decisions; the last one answers the request."""
        self.left -= 1
        if self.left <= 0 and not self.answered:
            self.answer()

    def cancel(self) -> bool:
        """As Cancel says: as long as no part of it is sent, or decided."""
        if self.sent or self.failed or self.answered:
            return False
        self.answered = True
        return True

    def answer(self) -> None:
        """Now. Whatever the caller does with it harms no other request of the batch."""
        self.answered = True
        try:
            self.done(self.error)
        except Exception:
            log.exception("a request could not be answered")


class WaitingRoom:
    """All requests that wait, a queue for each time that is granted: in each the first has the first deadline."""

    def __init__(self, policy: Policy) -> None:
        self.errors: dict[str, int] = {}
        """Requests of which some part was answered by policy, by the first cause."""
        self.close_calls = 0
        """Requests that were decided in the last fifth of their time."""
        self._policy = policy
        self._queues: dict[int, deque[Waiting]] = {}

    def __len__(self) -> int:
        """How many wait, or have been answered while one before them in their queue waits."""
        return sum(map(len, self._queues.values()))

    def queue(self, granted: int) -> Callable[[Waiting], None]:
        """Puts requests that are granted so many microseconds where they wait."""
        return self._queues.setdefault(granted, deque()).append

    def fail(self, waiting: Waiting, hits: Sequence[Hit], fault: Fault) -> None:
        """Decide a part of a request by policy."""
        if waiting.answered:
            return
        cause = fault.cause
        if not waiting.failed:
            waiting.failed = True
            self.errors[cause] = self.errors.get(cause, 0) + 1
        error = self._policy.answer(hits, CAUSES[cause].words)
        waiting.error = waiting.error or error
        waiting.settle()

    def dismiss(self) -> None:
        """Forget those at the heads of the queues that have been answered.

        Were they kept until their deadline, the garbage collector would go through them again and again: 20 µs a
        request with a deadline of a second.
        """
        for queue in self._queues.values():
            while queue and queue[0].answered:
                queue.popleft()

    def expire(self, now: float) -> float | None:
        """Answer what has waited too long; says when the next one's time is over, None when none waits."""
        soonest: float | None = None
        for queue in tuple(self._queues.values()):  # what is answered may ask again
            while queue:
                waiting = queue[0]
                if not waiting.answered:
                    if waiting.deadline > now:
                        if soonest is None or waiting.deadline < soonest:
                            soonest = waiting.deadline
                        break
                    self._give_up(waiting, _LATE)
                queue.popleft()
        return soonest

    def clear(self, fault: Fault) -> None:
        """Answer all."""
        for queue in tuple(self._queues.values()):
            for waiting in tuple(queue):
                if not waiting.answered:
                    self._give_up(waiting, fault)
            queue.clear()

    def _give_up(self, waiting: Waiting, fault: Fault) -> None:
        """Answer what is decided as it is, and the rest by policy."""
        waiting.left = 0
        self.fail(waiting, [hit for hit in waiting.hits if not hasattr(hit, "decision")], fault)


_LATE: Final = Fault("timeout")


DEFAULT: Final = SECOND
"""Microseconds for a caller that names no deadline, unless STORE_DEADLINE says so. Such a caller waits as long as it
takes: a second is more than a busy machine needs, and when Redis hangs only the requests of the first second wait."""

MARGIN: Final = 4
"""One part in so many of what is granted is left for the way back: 5 ms of the 20 that Envoy grants by default."""

MOST_MARGIN: Final = 50_000
"""Microseconds."""

_PRECISION: Final = 6
"""Binary digits of a deadline that count; the rest is rounded off. Requests with one deadline wait in one queue, and
callers that tell what is left of a deadline of their own tell another time with each call."""

_MOST_KNOWN: Final = 4096
"""Timeouts remembered as they came."""


class Grant:
    """What some requests are granted; `enter` puts one of them into their queue."""

    __slots__ = ("enter", "requests", "seconds")

    def __init__(self, seconds: float, enter: Callable[[Waiting], None]) -> None:
        self.seconds = seconds
        self.enter = enter
        self.requests = 0


class Grants:
    """By what callers grant, in microseconds; None by those that do not say. With `most` none is granted more."""

    def __init__(self, room: WaitingRoom, most: int = 0) -> None:
        self.known: dict[int | None, Grant] = {}
        """By what came before; `of` has all."""
        self._room = room
        self._most = most
        self._grants: dict[int, Grant] = {}

    def of(self, timeout: int | None) -> Grant:
        """What is granted by this caller."""
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        microseconds = self._granted(timeout)
        grant = self._grants.get(microseconds)
        if grant is None:
            enter = self._room.queue(microseconds)
            grant = self._grants[microseconds] = Grant(microseconds / SECOND, enter)
        self.known[timeout] = grant
        return grant

    def metrics(self) -> Sequence[Metric]:
        """What is in force, and what was granted."""
        bounds = [((("bound", "default"),), (self._most or DEFAULT) / SECOND)]
        if self._most:
            bounds.append(((("bound", "most"),), self._most / SECOND))
        granted = Latency()
        for grant in self._grants.values():
            granted.observe_all(int(grant.seconds * 1e9), grant.requests)
        return (
            Metric(
                "ratelimit_store_deadline_seconds",
                MetricType.GAUGE,
                "Time for the store to answer: of a call that has no deadline itself (default), of any (most, if set).",
                bounds,
                merge_by_min=True,
            ),
            Metric(
                "ratelimit_store_granted_seconds",
                MetricType.HISTOGRAM,
                "Time that the store was given for a request: what its caller granted, less the way back.",
                [((), granted)],
            ),
        )

    def _granted(self, timeout: int | None) -> int:
        """Rounded down, in microseconds."""
        if timeout is None:
            return self._most or DEFAULT
        granted = timeout - min(timeout // MARGIN, MOST_MARGIN)
        granted -= granted % (1 << max(0, granted.bit_length() - _PRECISION))
        return min(granted, self._most) if self._most else granted
