"""Counts of all connections of a transport: plain integers, made into metrics for a scrape."""

import logging
from collections import Counter
from collections.abc import Sequence

from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, counter, counter_by, gauge, histogram
from ratelimit_service.transports.http2.limits import Bound
from ratelimit_service.transports.transport import of_calls

log = logging.getLogger(__name__)


class Counts:
    """The counts since the start."""

    __slots__ = (
        "accepted",
        "ended",
        "received",
        "refused",
        "resets_received",
        "resets_sent",
        "sent",
        "service_time",
        "streams",
    )

    def __init__(self) -> None:
        self.accepted = 0
        """Connections, refused ones included."""
        self.ended: Counter[str] = Counter()
        """Connections that were accepted and are not open, by the reason."""
        self.streams = 0
        """Calls that were accepted."""
        self.resets_received = 0
        self.resets_sent = 0
        self.refused: dict[Bound, int] = dict.fromkeys(Bound, 0)
        self.received = 0
        """Bytes received on connections that are gone."""
        self.sent = 0
        """Bytes sent on them."""
        self.service_time = Latency()
        """Time from a read until the response to its last call was written, for all calls of the read."""

    def refuse_connection(self, most: int) -> None:
        """Count a connection that was refused because there are `most`; only the first is logged.

        A flood of connections: each costs a file and some memory, and other clients must not lose theirs.
        """
        self.accepted += 1
        self.ended["too_many_connections"] += 1
        self.refused[Bound.CONNECTIONS] += 1
        if self.refused[Bound.CONNECTIONS] == 1:
            log.warning("refusing connections: %d are open, which is the maximum", most)

    def metrics(self, *, connections: int, streams: int, memory: int, received: int, sent: int) -> Sequence[Metric]:
        """As metrics; the arguments are the sums over open connections."""
        name = "ratelimit_grpc_connections"
        resets = [("client", self.resets_received), ("service", self.resets_sent)]
        refused = [(bound.value, count) for bound, count in self.refused.items()]
        return (
            gauge(name, "Open gRPC connections.", connections),
            counter(f"{name}_accepted_total", "gRPC connections accepted.", self.accepted),
            counter_by(
                f"{name}_ended_total", "gRPC connections ended, by reason.", "reason", sorted(self.ended.items())
            ),
            *of_calls(streams, self.streams),
            gauge(
                "ratelimit_grpc_memory_bytes",
                "Bytes of memory that gRPC connections hold: messages, headers, buffers.",
                memory,
            ),
            counter_by("ratelimit_grpc_resets_total", "Streams reset, by the client or by the service.", "by", resets),
            counter_by(
                "ratelimit_grpc_refused_total",
                "Connections ended and calls refused because a client exceeded a limit.",
                "limit",
                refused,
            ),
            counter("ratelimit_grpc_received_bytes_total", "Bytes received from gRPC clients.", received),
            counter("ratelimit_grpc_sent_bytes_total", "Bytes sent to gRPC clients.", sent),
            histogram(
                "ratelimit_grpc_answer_seconds",
                "Service time of gRPC calls: from the read until the response was written.",
                self.service_time,
            ),
        )
