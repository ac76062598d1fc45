"""The lag of the event loop, measured and as a metric: what takes long in it delays all calls."""

import asyncio
from time import perf_counter_ns
from typing import Final, NoReturn

from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, histogram

_PERIOD_SECONDS: Final = 0.5


def of_lag(lag: Latency) -> Metric:
    """The metric of the measured lag."""
    text = "Delay of a timer of the event loop, measured twice a second; calls waited as long."
    return histogram("ratelimit_loop_lag_seconds", text, lag)


async def watch_lag(lag: Latency) -> NoReturn:
    """Measure until cancelled."""
    while True:
        started = perf_counter_ns()
        await asyncio.sleep(_PERIOD_SECONDS)  # uvloop's timers are a millisecond late by themselves
        lag.observe(max(0, perf_counter_ns() - started - int(_PERIOD_SECONDS * 1e9)))
