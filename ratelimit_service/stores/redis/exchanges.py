"""Exchanges of counts between regions, for limits with `regions: synced`.

A reply of the region's Redis says of a counter when its next exchange should begin. The process that got the reply then
collects the region's count, takes it to the home Redis, and deposits in the region what the others have counted there,
by the small script `sync.lua`. When that fails, or the process dies, the region goes on with what it knows, and the
next charge but one has another exchange planned.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from ratelimit_service.algorithms import fixed_window
from ratelimit_service.stores.hit import Hit, NamedCounter
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.lane import Lane
from ratelimit_service.stores.redis.link import call_script, within
from ratelimit_service.stores.redis.region_asks import HOME, RegionAsk, StepScript
from ratelimit_service.stores.redis.replies import fitting, integers
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.stores.redis.topology import Topology
from ratelimit_service.system.clock import SECOND, system_clock
from ratelimit_service.telemetry.metric import Metric, counter, counter_by

MAX_EXCHANGES: Final = 1000
"""Due or under way in one process. With more hot counters than that in an interval, each is exchanged less often."""

Arguments = tuple[str | int, ...]

ANSWER_SECONDS: Final = 1.0
"""Seconds for each of the three steps."""


class SyncScript(StepScript):
    """The steps of an exchange."""

    twins, name = ("synced",), "sync.lua"

    def collect(self, end: int) -> Arguments:
        """Read what this region has counted in the window with this end, 0 if there is nothing to exchange."""
        return "collect", self.now(), end

    def exchange(self, end: int, region: str, own: int) -> Arguments:
        """At home: what the others have counted; it learns what this region has."""
        return "exchange", self.now(), end, region, own

    def deposit(self, end: int, others: int) -> Arguments:
        """Write to a counter what the others have counted."""
        return "deposit", self.now(), end, others


class Exchanges:
    """The exchanges of one process of this region."""

    def __init__(
        self,
        topology: Topology,
        script: BatchScript,
        region: str,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._home = topology
        self._names = script
        self._region = region
        self._start = start
        """Has a coroutine run, until it ends or the process stops."""
        self._script = SyncScript()
        self._due = 0
        """And under way."""
        self.done = 0
        self.failed = Counter[str]()
        """By cause."""

    def plan(self, lane: Lane, ask: RegionAsk) -> None:
        """Exchange the counts of a counter after the time that its script has named."""
        if self._due >= MAX_EXCHANGES:
            self.failed["overload"] += 1
            return
        self._due += 1
        self._start(self._run(lane, ask))

    async def _run(self, lane: Lane, ask: RegionAsk) -> None:
        end, wait = ask.numbers
        try:
            await asyncio.sleep(wait / SECOND)
            await self._exchange(lane, ask, end)
        except Fault as fault:
            self.failed[fault.cause] += 1
        finally:
            self._due -= 1

    async def _exchange(self, lane: Lane, ask: RegionAsk, end: int) -> None:
        """Raises Fault."""
        script = self._script
        own = await self._count(lane.execute, ask.name, script.collect(end))
        if own:
            name = self._name_of(ask, end)
            others = await self._count(partial(self._home.execute, name), name, script.exchange(end, self._region, own))
            await within(ANSWER_SECONDS, call_script(lane.execute, script, [ask.name], script.deposit(end, others)))
            self.done += 1

    async def reset(self, hit: Hit) -> None:
        """Have home forget what regions have counted in the present window; each tells it again. Raises Fault."""
        now = system_clock()
        name = self._name_of(hit, now + fixed_window.hit(None, hit.limit, 0, now)[1].reset_after)
        await self._home.execute(name, "UNLINK", name)

    def _name_of(self, counter: Hit | RegionAsk, end: int) -> str:
        """At home, of the window with this end."""
        return self._names.key(NamedCounter(counter.rule, counter.limit, f"{counter.key}{HOME}/{end}"))

    async def _count(self, execute: Callable[..., Any], key: str, arguments: Arguments) -> int:
        """Run the step, and return its count. Raises Fault."""
        reply = await within(ANSWER_SECONDS, call_script(execute, self._script, [key], arguments))
        with fitting("the script of exchanges"):
            return next(integers([reply], 1))

    def metrics(self) -> Sequence[Metric]:
        """Metrics of exchanges."""
        return (
            counter(
                "ratelimit_region_exchanges_total", "Exchanges of a counter's counts with other regions.", self.done
            ),
            counter_by(
                "ratelimit_region_exchanges_failed_total",
                "Exchanges that failed, by cause.",
                "cause",
                self.failed.items(),
            ),
        )
