"""How late the event loop is, measured and as a metric: what takes long in it delays all calls."""

import asyncio
from time import perf_counter_ns
from typing import Final, NoReturn

from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, MetricType

_PERIOD_SECONDS: Final = 0.5


def of_lag(lag: Latency) -> Metric:
    """What was measured, as a metric."""
    meaning = "How late a timer of the event loop was, which asks twice a second: that long, other calls waited too."
    return Metric("ratelimit_loop_lag_seconds", MetricType.HISTOGRAM, meaning, [((), lag)])


async def watch_lag(lag: Latency) -> NoReturn:
    """Measure until cancelled."""
    while True:
        started = perf_counter_ns()
        await asyncio.sleep(_PERIOD_SECONDS)  # uvloop's timers are a millisecond late by themselves
        lag.observe(max(0, perf_counter_ns() - started - int(_PERIOD_SECONDS * 1e9)))
