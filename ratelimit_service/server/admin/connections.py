"""All HTTP connections, of all ports: a bound of their own, so that they cannot take the files of gRPC's.

When there are as many as there may be, one is closed for a new one, so that clients that hold connections keep no other
out: the one that has asked nothing for longest. Bytes that never become a request count for nothing, and one whose
request is at work stays while there is another.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from ratelimit_service.telemetry.metric import Metric, MetricType
from ratelimit_service.telemetry.notices import Notices

_NAME: Final = "ratelimit_http_connections"


class Closable(Protocol):
    """A connection, as far as it is needed here."""

    @property
    def at_work(self) -> bool:
        """It waits for this process, and not for its client."""

    def close(self) -> None:
        """Close it as soon as all that was written is sent."""

    def abort(self) -> None:
        """Close it at once."""


class HttpConnections:
    """At most `most`."""

    def __init__(self, most: int, notices: Notices) -> None:
        self._most = most
        self._notices = notices
        self._evicted = 0
        self._open: dict[Closable, None] = {}
        """The one whose request began or ended last, or that was made last, comes last."""

    def enter(self, connection: Closable) -> None:
        """Count a new one, and close another if they are too many."""
        if len(self._open) >= self._most:
            oldest = next((each for each in self._open if not each.at_work), next(iter(self._open)))
            self.leave(oldest)
            self._evicted += 1
            oldest.abort()
            self._notices.warn(
                f"{self._most} HTTP connections are open, the most there may be (HTTP_MAX_CONNECTIONS):"
                " the one that has asked nothing for longest is closed for each new one"
            )
        self._open[connection] = None

    def touch(self, connection: Closable) -> None:
        """A request of it began or ended."""
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def leave(self, connection: Closable) -> None:
        """It is closed."""
        self._open.pop(connection, None)

    def close(self) -> None:
        """Close all."""
        for connection in tuple(self._open):
            connection.close()

    def metrics(self) -> Sequence[Metric]:
        """As metrics."""
        return (
            Metric(_NAME, MetricType.GAUGE, "HTTP connections that are open.", [((), len(self._open))]),
            Metric(
                f"{_NAME}_evicted_total",
                MetricType.COUNTER,
                "HTTP connections closed for newer ones: HTTP_MAX_CONNECTIONS were open.",
                [((), self._evicted)],
            ),
        )
