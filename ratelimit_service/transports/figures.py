"""What every transport tells of itself."""

from collections.abc import Sequence

from ratelimit_service.telemetry.figures import Figure, Sort
from ratelimit_service.telemetry.latency import Latency


def of_calls(streams: int, taken: int) -> Sequence[Figure]:
    """Its calls: those that are open, and all that there were."""
    name = "ratelimit_grpc_streams"
    return (
        Figure(name, Sort.GAUGE, "gRPC calls that are open.", [((), streams)]),
        Figure(f"{name}_opened_total", Sort.COUNTER, "gRPC calls taken.", [((), taken)]),
    )


def of_lag(lag: Latency) -> Figure:
    """The loop that it runs in."""
    meaning = "How late a timer of the event loop was, which asks twice a second: that long, other calls waited too."
    return Figure("ratelimit_loop_lag_seconds", Sort.HISTOGRAM, meaning, [((), lag)])
