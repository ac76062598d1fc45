"""What every transport tells of itself."""

from collections.abc import Sequence

from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, MetricType


def of_calls(streams: int, taken: int) -> Sequence[Metric]:
    """Its calls: those that are open, and all that there were."""
    name = "ratelimit_grpc_streams"
    return (
        Metric(name, MetricType.GAUGE, "gRPC calls that are open.", [((), streams)]),
        Metric(f"{name}_opened_total", MetricType.COUNTER, "gRPC calls taken.", [((), taken)]),
    )


def of_lag(lag: Latency) -> Metric:
    """The loop that it runs in."""
    meaning = "How late a timer of the event loop was, which asks twice a second: that long, other calls waited too."
    return Metric("ratelimit_loop_lag_seconds", MetricType.HISTOGRAM, meaning, [((), lag)])
