"""The asks of one process to the home Redis for its region, and the hits that wait for it.

A reply of the region's Redis names what is to be asked of home, and hits that were not decided: they wait. An ask and
its hits go through these steps, all of which belong to the process that got the ask in its reply:

1. home grants, by the script that counts there too;
2. what it has granted is deposited in the region's counter;
3. the hits of this process that wait for that counter are sent again;
4. when the lease has ended, what is left of it is collected from the region's counter, and given back.

===========================  =========================================================================================
event                        what becomes of the hits that wait
===========================  =========================================================================================
home has answered            are sent again, after the deposit: now they are decided
this process has not asked   are sent again after a pause: another process of the region has asked, or will
home cannot be reached, or   are denied if the region has a floor, since that is what it keeps without home; otherwise
has not answered in time     the rule's policy answers them. So do others, at once, until home is reached again
their deadline passes        the same
===========================  =========================================================================================

Laws: home debits before it grants, and units whose way is not known are lost, so that no failure allows more than the
limit. Asks, hits that wait, and leases to collect have bounds; what exceeds them is answered as without home, or lost.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Any, Final, NamedTuple

import hiredis

from ratelimit_service.algorithms.lease import Granted
from ratelimit_service.stores.hit import NO_BUNDLE, Hit, NamedCounter
from ratelimit_service.stores.redis.exchanges import Exchanges
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.keys import slot_of
from ratelimit_service.stores.redis.lane import Lane
from ratelimit_service.stores.redis.leases import Ask
from ratelimit_service.stores.redis.link import call_script, within
from ratelimit_service.stores.redis.region_asks import HOME, RegionAsk, RegionScript, at_home
from ratelimit_service.stores.redis.register import Registrar
from ratelimit_service.stores.redis.requests import PendingRequest, PendingRequests
from ratelimit_service.stores.redis.script import Answer, BatchScript, Group, Part, ScriptCall
from ratelimit_service.stores.redis.topology import Topology
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.latency import Latency
from ratelimit_service.telemetry.metric import Metric, counter, counter_by, gauge, histogram

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 1.0
"""Seconds for home to answer; then another process of the region may ask (`leased.ASK_LIFE`)."""

MAX_ASKED: Final = 5000
"""Counters about which home is asked at once: over a way of 140 ms that is 35,000 new counters a second."""

MAX_IN_ASK: Final = 100
"""Counters about which one call asks: a millisecond of Redis."""

MAX_HELD: Final = 10_000
"""Parts of requests that wait."""

MAX_ENDS: Final = 20_000
"""Leases whose end is remembered: 10 MB. What is left of others goes back with the next ask, or is lost."""

_SWEEP: Final = 200
"""Leases from which one sweep gives back: 20 ms of this process."""

_PAUSE: Final = 0.01
"""Seconds, after which hits are sent again for which another process asks: shorter than a region remembers that home
had nothing (`leased.LEAST_DENY`)."""

_PAUSES: Final = 8
"""Pauses in the time that home takes to answer, if that is longer; otherwise a flood would send each hit a hundred
times."""

_MAX_PAUSE: Final = 0.05

_SUSPECT_SECONDS: Final = 2.0
"""Seconds for which a server that did not answer an ask is taken for lost, unless it answers another one."""

_BACK: Final = 0
"""The index, in the numbers of an ask, of the units given back."""

_CLOSE_SECONDS: Final = 0.5
"""Seconds for asks under way, when the process stops."""


class WaitingHits(NamedTuple):
    """A part of a request that waits."""

    request: PendingRequest
    hits: Sequence[Hit]
    group: Group
    lane: Lane
    """To its region's Redis."""


class LeaseEnd(NamedTuple):
    """A lease that home has granted, to be collected when it has ended."""

    due: float
    """Seconds of the monotonic clock."""
    number: int
    """Leases may end at once."""
    term_end: int
    """By the clock of home."""
    ask: RegionAsk
    lane: Lane


class Home:
    """The home Redis as one process of a region asks it."""

    def __init__(
        self,
        topology: Topology,
        script: BatchScript,
        pending: PendingRequests,
        registrar: Registrar,
        *,
        clustered: bool,
    ) -> None:
        self.topology = topology
        self.registrar = registrar
        self._floors = registrar.floors
        self._script = script
        self._region = RegionScript()
        self._pending = pending
        self._clustered = clustered
        self._waiting_hits: dict[str, list[WaitingHits]] = {}
        """By the key of the counter."""
        self._asking: set[str] = set()
        """Keys of counters about which home is asked, and not late with its answer."""
        self._asked = 0
        """Counters about which home is asked, with those for which it is late."""
        self._pausing: set[str] = set()
        """Keys whose hits are sent again after a pause."""
        self._suspected: dict[Lane | None, float] = {}
        """The servers of home that did not answer an ask, and until when they are taken for lost."""
        self._ends: list[LeaseEnd] = []
        """A heap."""
        self._terms: set[tuple[str, int]] = set()
        """The keys of these leases' counters, and when their terms end."""
        self._numbers = count()
        self._max_asked, self._max_waiting, self._max_ends = MAX_ASKED, MAX_HELD, MAX_ENDS
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0
        """Parts in `_held`."""
        self.granted = self.returned = self.lost = 0
        """Units."""
        self.asks = 0
        self.failed = Counter[str]()
        """Asks that were not answered, by cause."""
        self._round_trip = 0.0
        """That of the last ask, in seconds."""
        self._round_trips = Latency()
        self._exchanges = Exchanges(topology, script, self._floors.region, self._start)

    def wait_for_home(self, lane: Lane, call: ScriptCall, answer: Answer) -> Sequence[Part]:
        """Ask for what the answer to this call names, and keep what waits; returns the parts that are decided."""
        waiting = {*answer.waiting}
        leased = []
        for ask in answer.asked:
            if ask.limit.kind.exchanges:
                self._exchanges.plan(lane, ask)
            else:
                leased.append(ask)
        self._ask_all(lane, leased)
        if not waiting:
            return call.parts
        decided = []
        for part in call.parts:
            of_part = [hit for hit in part.hits if hit in waiting]
            if not of_part or part.request.answered:
                decided.append(part)
                continue
            bundles = {hit.together for hit in of_part} - {NO_BUNDLE}
            hits = [hit for hit in part.hits if hit in waiting or hit.together in bundles]
            self._add_waiting(of_part[0], WaitingHits(part.request, hits, part.group, lane))
        return decided

    def sweep(self) -> None:
        """Give back what is left of leases that have ended, some at a time."""
        now, ends = monotonic(), self._ends
        for _ in range(min(_SWEEP, self._max_asked - self._asked)):
            if not ends or ends[0].due > now:
                break
            end = heappop(ends)
            self._asked += 1
            self._terms.discard((end.ask.key, end.term_end))
            self._start(self._give_back(end))
        self.registrar.sweep()

    async def reset(self, hit: Hit) -> None:
        """Remove what home has of a counter of this region, so that its whole limit is free there. Raises Fault."""
        if hit.limit.kind.waits_for_home:
            name = self._name_of(hit)
            await self.topology.execute(name, "UNLINK", name)
        elif hit.limit.kind.exchanges:
            await self._exchanges.reset(hit)

    async def close(self) -> None:
        """Wait a moment for what is asked and given back; what is left then is for the region's other processes."""
        self.sweep()
        late = monotonic() + _CLOSE_SECONDS
        while self._asked and monotonic() < late:  # noqa: ASYNC110 - it has a deadline
            await asyncio.sleep(_PAUSE)
        await self.registrar.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def metrics(self) -> Sequence[Metric]:
        """Metrics of what was asked of home, and of what has become of what it has granted."""
        return (
            gauge(
                "ratelimit_region_home_healthy",
                "1 if the home Redis of all regions can be reached, else 0.",
                int(self.topology.healthy),
                merge_by_min=True,
            ),
            counter("ratelimit_region_units_lent_total", "Units that the home Redis has granted.", self.granted),
            counter("ratelimit_region_units_returned_total", "Units of these given back, unspent.", self.returned),
            counter(
                "ratelimit_region_units_burnt_total",
                "Units lost with a failure of a Redis: neither spent nor given back.",
                self.lost,
            ),
            counter(
                "ratelimit_region_asks_total", "Requests for units that this process sent to the home Redis.", self.asks
            ),
            counter_by(
                "ratelimit_region_asks_failed_total",
                "Failed requests to the home Redis, by cause (overload: not sent).",
                "cause",
                self.failed.items(),
            ),
            histogram(
                "ratelimit_region_ask_seconds",
                "Time from a request for units to the answer of the home Redis.",
                self._round_trips,
            ),
            gauge("ratelimit_region_waiting", "Requests that wait for an answer of the home Redis.", self._waiting),
            *self._exchanges.metrics(),
            *self.registrar.metrics(),
        )

    # Hits that wait

    def _add_waiting(self, first: Hit, waiting: WaitingHits) -> None:
        """Keep a part until its first hit that waits can be decided, or answer it if home cannot be asked."""
        key = first.key
        fault = self._fault(first)
        if fault is not None:
            self._pending.fail(waiting.request, waiting.hits, fault, without_home=True)
            return
        self._waiting += 1
        self._pending.at_home[waiting.request] = self._pending.at_home.get(waiting.request, 0) + 1
        self._waiting_hits.setdefault(key, []).append(waiting)
        if key not in self._asking and key not in self._pausing:
            self._pausing.add(key)
            pause = min(max(_PAUSE, self._round_trip / _PAUSES), _MAX_PAUSE)
            asyncio.get_running_loop().call_later(pause, self._on_pause, key)

    def _fault(self, hit: Hit) -> Fault | None:
        """The reason why the hit cannot wait for home, if it cannot."""
        name = self._name_of(hit)
        fault = self._lost_fault(name)
        if fault is not None:
            return fault
        if monotonic() < self._suspected.get(self.topology.lane_of(name), 0.0):
            return Fault("timeout")
        if self._waiting >= self._max_waiting or (self._asked >= self._max_asked and hit.key not in self._asking):
            return Fault("overload")
        return None

    def _lost_fault(self, name: str) -> Fault | None:
        """The reason why the server of home that has this counter cannot be asked, if it is known to be lost."""
        lane = self.topology.lane_of(name)
        if lane is None:
            return Fault("unreachable")
        return None if lane.lost is None or lane.answers else Fault(lane.lost.cause)

    def _name_of(self, hit: Hit | RegionAsk) -> str:
        """The name of its counter at home."""
        return self._script.key(NamedCounter(hit.rule, hit.limit, hit.key + HOME))

    def _on_pause(self, key: str) -> None:
        self._pausing.discard(key)
        if key not in self._asking:
            self._send_again(key)

    def _pop_waiting(self, key: str) -> Sequence[WaitingHits]:
        waiting = self._waiting_hits.pop(key, ())
        self._waiting -= len(waiting)
        of_request = self._pending.at_home
        for each in waiting:
            of_request[each.request] -= 1
            if not of_request[each.request]:
                del of_request[each.request]
        return waiting

    def _send_again(self, key: str) -> None:
        for request, hits, group, lane in self._pop_waiting(key):
            if request.answered:
                request.complete()
            else:
                lane.put(Part(request, hits, group))

    # Asks

    def _ask_all(self, lane: Lane, asked: Sequence[RegionAsk]) -> None:
        """Ask home, in one call for the counters of a slot; without a Cluster for all."""
        calls: dict[int, list[RegionAsk]] = {}
        for ask in asked:
            if self._asked >= self._max_asked:
                self.failed["overload"] += 1
                self.lost += ask.numbers[_BACK]
                continue
            self._asked += 1
            self._asking.add(ask.key)
            calls.setdefault(slot_of(self._name_of(ask)) if self._clustered else 0, []).append(ask)
        for of_slot in calls.values():
            for start in range(0, len(of_slot), MAX_IN_ASK):
                self._start(self._borrow(lane, of_slot[start : start + MAX_IN_ASK]))

    async def _borrow(self, lane: Lane, asks: Sequence[RegionAsk]) -> None:
        """Ask home, deposit what it grants, and have the hits decided that wait for it."""
        # What waits is answered then. What home has granted all the same is deposited when it comes.
        late = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._on_late, lane, asks)
        try:
            await self.registrar.fresh()
            sent = monotonic()
            grants = await self._take([self._wanted(ask) for ask in asks])
            late.cancel()
            found = zip(asks, grants, strict=True)
            await asyncio.gather(*(self._deposit(lane, ask, granted, sent) for ask, granted in found))
            for ask in asks:
                self._asking.discard(ask.key)
                self._send_again(ask.key)
        except Fault as fault:
            at_home = self.topology.lane_of(self._name_of(asks[0]))
            refused = fault.cause == "protocol" or isinstance(fault.__cause__, hiredis.ReplyError)
            if refused and at_home is not None:
                at_home.refused(fault)
            self._fail_waiting(lane, asks, fault)
        finally:
            late.cancel()
            self._asked -= len(asks)

    def _wanted(self, ask: RegionAsk) -> Ask:
        """The units to ask for, by what the register leaves of the limit."""
        now = int(monotonic() * SECOND)
        ask = ask._replace(limit=self._floors.limit_of(ask.rule, ask.limit, now))
        if ask.numbers[_BACK] and not self._floors.is_steady(ask.rule, now):
            self.lost += ask.numbers[_BACK]
            ask = ask._replace(numbers=(0, *ask.numbers[1:]))
        return at_home(ask)

    def _on_late(self, lane: Lane, asks: Sequence[RegionAsk]) -> None:
        self._suspected[self.topology.lane_of(self._name_of(asks[0]))] = monotonic() + _SUSPECT_SECONDS
        self._fail_waiting(lane, asks, Fault("timeout"))

    def _fail_waiting(self, lane: Lane, asks: Sequence[RegionAsk], fault: Fault) -> None:
        """Answer what waits, because home cannot be reached."""
        self.failed[fault.cause] += 1
        for ask in asks:
            if ask.limit.floor is not None:  # then the region denies for a moment what the floor does not allow
                self._start(self._deposit(lane, ask, None, 0.0))
            self._asking.discard(ask.key)
            for waiting in self._pop_waiting(ask.key):
                self._pending.fail(waiting.request, waiting.hits, fault, without_home=True)

    async def _take(self, wanted: Sequence[Ask]) -> Sequence[Granted]:
        """Ask home for units; returns its grants. Raises Fault."""
        name = self._script.key(wanted[0].counter)
        keys, arguments, _ = self._script.encode((), wanted)
        sent = monotonic()
        back = sum(ask.back for ask in wanted)
        try:
            grants = self._script.decode(await self._execute(name, keys, arguments), (), wanted).granted
        except Fault as fault:
            # It may have granted before.
            lost = sum(ask.extra for ask in wanted) if fault.cause in {"reset", "protocol"} else 0
            self.granted += lost
            self.lost += lost + back
            raise
        self._round_trip = monotonic() - sent
        self._round_trips.observe(int(self._round_trip * 1e9))
        self._suspected.pop(self.topology.lane_of(name), None)
        self.granted += sum(granted.units for granted in grants)
        self.returned += back
        return grants

    async def _execute(self, name: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        while (lane := self.topology.lane_of(name)) is not None and lane.connects:  # noqa: ASYNC110 - soon it is or fails
            await asyncio.sleep(_PAUSE)
        if (fault := self._lost_fault(name)) is not None:
            raise fault
        self.asks += 1
        return await call_script(partial(self.topology.execute, name), self._script, keys, arguments)

    async def _deposit(self, lane: Lane, ask: RegionAsk, granted: Granted | None, sent: float) -> None:
        """Put what home has granted into the region's counter, or that it is unreachable, and remember when it ends."""
        units = 0 if granted is None else granted.units
        try:
            keys, arguments = self._region.deposit(ask, granted)
            await within(ANSWER_SECONDS, call_script(lane.execute, self._region, keys, arguments))
        except Fault:
            self.lost += units
            return
        if granted is None or not units or (ask.key, granted.term_end) in self._terms:
            return
        if len(self._ends) < self._max_ends:
            self._terms.add((ask.key, granted.term_end))
            due = sent + (granted.term_end - granted.store_now) / SECOND
            heappush(self._ends, LeaseEnd(due, next(self._numbers), granted.term_end, ask, lane))

    async def _give_back(self, end: LeaseEnd) -> None:
        try:
            keys, arguments = self._region.collect(end.ask)
            reply = await within(ANSWER_SECONDS, call_script(end.lane.execute, self._region, keys, arguments))
            back = self._region.collected(end.ask, reply)
            wanted = None if back is None else self._wanted(back)
            if wanted is not None and wanted.back:
                await self._take([wanted])
        except Fault:
            pass  # what was left stays in the counter, or is lost
        finally:
            self._asked -= 1

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request to the home Redis failed", exc_info=error)
