"""What is counted of all connections of a transport: plain integers, made into metrics when somebody asks. Hot path."""

import logging
from collections import Counter
from collections.abc import Sequence

from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, MetricType
from ratelimit_service.transports.http2.limits import Bound
from ratelimit_service.transports.transport import of_calls

log = logging.getLogger(__name__)


class Counts:
    """Everything that happened so far."""

    __slots__ = (
        "accepted",
        "answers",
        "ended",
        "received",
        "refused",
        "resets_received",
        "resets_sent",
        "sent",
        "streams",
    )

    def __init__(self) -> None:
        self.accepted = 0
        """Connections, those included that were one too many."""
        self.ended: Counter[str] = Counter()
        """Connections that are gone, by the reason: all that were accepted and are not open."""
        self.streams = 0
        """Calls that were taken."""
        self.resets_received = 0
        self.resets_sent = 0
        self.refused: dict[Bound, int] = dict.fromkeys(Bound, 0)
        self.received = 0
        """Bytes, of connections that are gone."""
        self.sent = 0
        """The same."""
        self.answers = Latency()
        """From the read that brought questions until the answer of the last of them was written, for all of them."""

    def turn_away(self, most: int) -> None:
        """Count a connection that was refused because there were as many as may be; the first is told in the log.

        Connections without end: each costs a file and some memory, and the other clients' must not suffer.
        """
        self.accepted += 1
        self.ended["too_many_connections"] += 1
        self.refused[Bound.CONNECTIONS] += 1
        if self.refused[Bound.CONNECTIONS] == 1:
            log.warning("connections are refused: there are %d, the most there may be", most)

    def metrics(self, *, connections: int, streams: int, memory: int, received: int, sent: int) -> Sequence[Metric]:
        """As metrics; what is open is told by who knows it."""
        ended = [((("reason", reason),), count) for reason, count in sorted(self.ended.items())]
        refused = [((("limit", bound.value),), count) for bound, count in self.refused.items()]
        resets = [((("by", "client"),), self.resets_received), ((("by", "service"),), self.resets_sent)]
        size = "ratelimit_grpc_connections"
        return (
            Metric(size, MetricType.GAUGE, "gRPC connections.", [((), connections)]),
            Metric(f"{size}_accepted_total", MetricType.COUNTER, "gRPC connections accepted.", [((), self.accepted)]),
            Metric(f"{size}_ended_total", MetricType.COUNTER, "gRPC connections ended, by the reason.", ended),
            *of_calls(streams, self.streams),
            Metric(
                "ratelimit_grpc_memory_bytes",
                MetricType.GAUGE,
                "What gRPC connections hold for their clients: messages, headers, bytes that wait.",
                [((), memory)],
            ),
            Metric("ratelimit_grpc_resets_total", MetricType.COUNTER, "Streams reset, by whom.", resets),
            Metric(
                "ratelimit_grpc_refused_total",
                MetricType.COUNTER,
                "Connections ended, and calls refused, because a client ran into a limit.",
                refused,
            ),
            Metric("ratelimit_grpc_received_bytes_total", MetricType.COUNTER, "Bytes of clients.", [((), received)]),
            Metric("ratelimit_grpc_sent_bytes_total", MetricType.COUNTER, "Bytes to clients.", [((), sent)]),
            Metric(
                "ratelimit_grpc_answer_seconds",
                MetricType.HISTOGRAM,
                "How long calls took, from the read that brought them until their answers were written.",
                [((), self.answers)],
            ),
        )
