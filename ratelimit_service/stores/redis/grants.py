"""How long Redis has for a request: what its caller grants, less a margin for the way back. Pure. Hot path.

A caller that names a deadline with its call (`grpc-timeout`) waits no longer, and would wait as long: on a busy machine
a Redis that is well may take more than any constant. So `STORE_DEADLINE` is an upper bound only where it is set.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service.stores.redis.waiting import Waiting, WaitingRoom
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, MetricType

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
