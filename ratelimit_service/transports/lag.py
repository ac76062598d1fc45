"""How late the event loop is: what takes long in it keeps all calls waiting."""

import asyncio
from time import perf_counter_ns
from typing import Final, NoReturn

from ratelimit_service.telemetry.latency import Latency

PERIOD_SECONDS: Final = 0.5


async def watch_lag(lag: Latency) -> NoReturn:
    """Measure it until it is cancelled. uvloop's timers are a millisecond late by themselves."""
    while True:
        started = perf_counter_ns()
        await asyncio.sleep(PERIOD_SECONDS)
        lag.observe(max(0, perf_counter_ns() - started - int(PERIOD_SECONDS * 1e9)))
