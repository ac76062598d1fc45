"""Regions that share a limit, told what happens to them: hits, messages that are late or lost, deaths, cuts.

Each region has a store and several processes; the home store is elsewhere, and all clocks differ by hours. No time
passes by itself and nothing is sent unless the schedule says so. The stores are the Python of the algorithms, a real
Redis, or both, which then have to agree at each step. What was allowed is held to the bound of the whole limit.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol, cast

from redis import Redis as Client

from ratelimit_service.algorithms import State, lease
from ratelimit_service.algorithms.kinds import leased as regional
from ratelimit_service.algorithms.kinds.leased import RegionCounter
from ratelimit_service.algorithms.lease import Granted
from ratelimit_service.model import Decision, Limit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.region_asks import RegionAsk, RegionScript, at_home, deposit_of
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.system.clock import HOUR
from ratelimit_service.telemetry.tally import Tally
from tests.clocks import Clock
from tests.leases.fleet import SAVE, Allowed, step
from tests.parts import parts_of

KEY = "shop|user=ada"

Reply = tuple[list[Decision | None], list[RegionAsk]]


class RegionStore(Protocol):
    """Has one counter of a region."""

    def run(self, limit: Limit, costs: Sequence[int], now: int) -> Reply:
        """One script call of a process with this limit; the hits without a decision wait."""

    def deposit(self, ask: RegionAsk, granted: Granted | None, now: int) -> None:
        """Bring what home has answered."""

    def collect(self, ask: RegionAsk, now: int) -> RegionAsk | None:
        """Take out what is left of an ended lease."""


class HomeStore(Protocol):
    """Has the counter of home."""

    def run(self, ask: RegionAsk, now: int) -> Granted:
        """One script call."""


class RegionInPython:
    """The functions of `regional`, or of what stands in for it."""

    def __init__(self, rule: Rule, functions: Any = regional) -> None:
        self.rule = rule
        self.functions = functions
        self.state: RegionCounter | None = None

    @property
    def held(self) -> int:
        """Units of leases."""
        return self.state.lease.left + self.state.lease.back if self.state else 0

    def run(self, limit: Limit, costs: Sequence[int], now: int) -> Reply:
        rule = self.rule
        before, waiting, asks = self.state, 0, []
        decisions: list[Decision | None] = []
        for cost in costs:
            self.state, decision = self.functions.hit(rule.algorithm, self.state, limit, cost, now)
            waiting += cost if decision is None else 0
            decisions.append(decision)
        if self.state is not before:
            self.state, wanted = self.functions.ask(rule.algorithm, self.state, limit, waiting, now)
            if wanted is not None:
                asks.append(RegionAsk(rule, limit, KEY, f"rl2|{KEY}", [*wanted], now))
        return decisions, asks

    def deposit(self, ask: RegionAsk, granted: Granted | None, now: int) -> None:
        length = regional.term(ask.rule.algorithm, ask.limit)
        self.state = self.functions.deposit(self.state, length, deposit_of(ask, granted), now)

    def collect(self, ask: RegionAsk, now: int) -> RegionAsk | None:
        self.state, *back = self.functions.collect(self.state, regional.term(ask.rule.algorithm, ask.limit), now)
        return ask._replace(numbers=(*back, 0, 0)) if back[0] else None


class HomeInPython:
    """The functions of an algorithm."""

    def __init__(self, rule: Rule) -> None:
        self.algorithm: Any = rule.algorithm
        self.limit = regional.home_of(cast("Limit", rule.limit))
        self.state: State | None = None

    def run(self, ask: RegionAsk, now: int) -> Granted:
        limit = regional.home_of(ask.limit)
        back, back_end, least, extra = ask.numbers
        if back:
            self.state = self.algorithm.give(self.state, limit, back, back_end, now)
        self.state, granted = lease.take(self.algorithm, self.state, limit, least, extra, now)
        return granted

    def room(self, now: int) -> int:
        """What it could lend."""
        left: int = self.algorithm.hit(self.state, self.limit, 0, now)[1].remaining
        return left


def outliving(client: Client, text: str) -> str:
    """The script without expiries: keys would expire by the clock of Redis."""
    assert SAVE in text
    return client.script_load(text.replace(SAVE, "call('SET', key, pack_integers(unpack(state)))"))


class RegionInRedis:
    """The scripts, at the times of the schedule."""

    def __init__(self, rule: Rule, client: Client) -> None:
        self.rule = rule
        self.client = client
        self.clock = Clock()
        self.script = BatchScript("", self.clock)
        self.leases = RegionScript(self.clock)
        self.sha, self.leases_sha = outliving(client, self.script.text), outliving(client, self.leases.text)

    def run(self, limit: Limit, costs: Sequence[int], now: int) -> Reply:
        self.clock.now = now
        hits = [Hit(self.rule, KEY, cost, tally=Tally(), quota=False) for cost in costs]
        for hit in hits:
            hit.limit = limit
        keys, arguments, runs = self.script.encode(parts_of(hits))
        reply: Any = self.client.evalsha(self.sha, len(keys), *keys, *arguments)
        answer = self.script.decode(reply, runs)
        return [None if hit in answer.waiting else hit.decision for hit in hits], [*answer.asked]

    def deposit(self, ask: RegionAsk, granted: Granted | None, now: int) -> None:
        self.clock.now = now
        keys, arguments = self.leases.deposit(ask, granted)
        self.client.evalsha(self.leases_sha, len(keys), *keys, *arguments)

    def collect(self, ask: RegionAsk, now: int) -> RegionAsk | None:
        self.clock.now = now
        keys, arguments = self.leases.collect(ask)
        return self.leases.collected(ask, self.client.evalsha(self.leases_sha, len(keys), *keys, *arguments))


class HomeInRedis:
    """The script that lends to instances, too."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.clock = Clock()
        self.script = BatchScript("", self.clock)
        self.sha = outliving(client, self.script.text)

    def run(self, ask: RegionAsk, now: int) -> Granted:
        self.clock.now = now
        asks = [at_home(ask)]
        keys, arguments, runs = self.script.encode((), asks)
        reply: Any = self.client.evalsha(self.sha, len(keys), *keys, *arguments)
        (granted,) = self.script.decode(reply, runs, asks).granted
        return granted


class RegionInBoth:
    """Both, which have to agree."""

    def __init__(self, python: RegionInPython, redis: RegionInRedis) -> None:
        self.python = python
        self.redis = redis

    def run(self, limit: Limit, costs: Sequence[int], now: int) -> Reply:
        expected, asked = self.python.run(limit, costs, now)
        decisions, asks = self.redis.run(limit, costs, now)
        assert decisions == expected
        assert [(ask.key, *ask.numbers, ask.now) for ask in asks] == [(KEY, *ask.numbers, ask.now) for ask in asked]
        return decisions, asks

    def deposit(self, ask: RegionAsk, granted: Granted | None, now: int) -> None:
        self.python.deposit(ask, granted, now)
        self.redis.deposit(ask, granted, now)

    def collect(self, ask: RegionAsk, now: int) -> RegionAsk | None:
        expected, found = self.python.collect(ask, now), self.redis.collect(ask, now)
        assert (expected and [*expected.numbers]) == (found and [*found.numbers])
        return found


class HomeInBoth:
    """Both, which have to agree."""

    def __init__(self, python: HomeInPython, redis: HomeInRedis) -> None:
        self.python = python
        self.redis = redis

    def run(self, ask: RegionAsk, now: int) -> Granted:
        expected, granted = self.python.run(ask, now), self.redis.run(ask, now)
        assert granted == expected
        return granted


class Call:
    """To home, on its way there or back."""

    def __init__(self, ask: RegionAsk) -> None:
        self.ask = ask
        self.granted: Granted | None = None


class Process:
    """One of a region."""

    def __init__(self) -> None:
        self.queue: list[int] = []
        """Costs of hits to send."""
        self.waiting: list[int] = []
        """Costs of hits that wait for home."""
        self.calls: list[Call] = []
        self.deposits: list[Call] = []
        """Answers of home on their way into the region's store."""
        self.lent: list[RegionAsk] = []
        """What may be to collect."""


class Region:
    """One region."""

    def __init__(self, store: RegionStore, ahead: int, processes: int) -> None:
        self.store = store
        self.ahead = ahead
        """Of the clock of home, microseconds."""
        self.processes = [Process() for _ in range(processes)]
        self.cut = False
        """No message gets through to home, or from there."""
        self.deposited = self.spent = self.taken = 0
        """Units that came from home, that were allowed, and that were taken out to be given back."""


class Fleet:
    """Regions, home, and what was allowed, by the clock of home."""

    def __init__(
        self,
        rule: Rule,
        open_region: Callable[[int], RegionStore],
        home: HomeStore,
        *,
        regions: int = 3,
        processes: int = 2,
        start: int = 0,
        shift: int = 0,
    ) -> None:
        assert rule.limit is not None
        self.rule = rule
        self.limit = rule.limit
        self.home = home
        self.now = start
        self.regions = [
            Region(open_region(number), (number - 1) * 7 * HOUR + number * shift, processes)
            for number in range(regions)
        ]
        self.allowed: list[Allowed] = []
        self.waited = self.denied = 0
        """Hits."""

    def run(self, region: Region, process: Process) -> None:
        """All that has queued, and is answered at once."""
        costs, process.queue = process.queue, []
        decisions, asks = region.store.run(self.limit_of(process), costs, self.now + region.ahead)
        for cost, decision in zip(costs, decisions, strict=True):
            if decision is None:
                process.waiting.append(cost)
                self.waited += 1
            elif decision.allowed and cost:
                self.allowed.append(Allowed(self.now, cost))
                region.spent += cost
            else:
                self.denied += cost > 0
        for ask in asks:
            region.taken += ask.numbers[0]
            process.calls.append(Call(ask))

    def limit_of(self, process: Process) -> Limit:
        """By which it runs."""
        del process  # all are alike
        return self.limit

    def restart(self, region: Region, number: int) -> None:
        """A process dies, with all that it waits for, and another one takes its place."""
        region.processes[number] = Process()

    def at_home(self, call: Call) -> None:
        """Home does it now."""
        call.granted = self.home.run(call.ask, self.now)

    def answer(self, process: Process, call: Call) -> None:
        """The answer of home arrives at the process."""
        process.calls.remove(call)
        if call.ask.numbers[2]:
            process.deposits.append(call)

    def deposit(self, region: Region, process: Process, call: Call) -> None:
        """The answer arrives in the region's store; what waits is to be sent again."""
        process.deposits.remove(call)
        assert call.granted is not None
        region.store.deposit(call.ask, call.granted, self.now + region.ahead)
        region.deposited += call.granted.units
        process.lent.append(call.ask)
        self.resend(process)

    def resend(self, process: Process) -> None:
        """What waits is to be sent again."""
        process.queue += process.waiting
        process.waiting = []

    def collect(self, region: Region, process: Process, ask: RegionAsk) -> None:
        """What is left of a lease is to be given back."""
        back = region.store.collect(ask, self.now + region.ahead)
        if back is not None:
            region.taken += back.numbers[0]
            process.calls.append(Call(back))

    def round_trip(self, region: Region, process: Process) -> None:
        """All that is on its way arrives, and what waits is sent again."""
        for call in tuple(process.calls):
            if call.granted is None:
                self.at_home(call)
            self.answer(process, call)
        for call in tuple(process.deposits):
            self.deposit(region, process, call)
        if process.queue:
            self.run(region, process)

    def spend(self, region: Region, process: Process) -> None:
        """All that the region can allow by itself."""
        decisions, _ = region.store.run(self.limit_of(process), [0], self.now + region.ahead)
        assert decisions[0] is not None
        if decisions[0].remaining:
            process.queue.append(decisions[0].remaining)
            self.run(region, process)

    def exhaust(self, ask: RegionAsk) -> None:
        """All regions spend what they can, and one more borrows all that home can lend, and spends it."""
        for region in self.regions:
            self.spend(region, region.processes[0])
        most = self.limit.requests
        granted = self.home.run(ask._replace(numbers=(0, 0, most, most)), self.now)
        self.allowed.append(Allowed(self.now, granted.units))


def play(fleet: Fleet, random: Random, events: int) -> None:  # noqa: PLR0912 - a list of what may happen
    """Anything may happen, in any order."""
    limit = fleet.limit
    length = regional.term(fleet.rule.algorithm, limit)
    most = max(1, limit.requests // 20)
    for _ in range(events):
        region = random.choice(fleet.regions)
        number = random.randrange(len(region.processes))
        process = region.processes[number]
        waiting = [call for call in process.calls if call.granted is None]
        done = [call for call in process.calls if call.granted is not None]
        chance = random.random()
        if chance < 0.20:
            process.queue.append(random.choice([1, 1, 2, most // 3 + 1, most, 3 * most, -1, -most]))
            if random.random() < 0.1:
                process.queue += random.choice([[1] * 5, [3 * most] * 9, [0], [limit.requests], [limit.requests * 2]])
        elif chance < 0.34:
            if process.queue:
                fleet.run(region, process)
        elif chance < 0.37:
            fleet.resend(process)
        elif chance < 0.47:
            if not region.cut:
                fleet.round_trip(region, process)
        elif chance < 0.53:
            if waiting and not region.cut:
                fleet.at_home(random.choice(waiting))
        elif chance < 0.57:
            if done and not region.cut:
                fleet.answer(process, random.choice(done))
        elif chance < 0.61:
            if process.deposits:
                fleet.deposit(region, process, random.choice(process.deposits))
        elif chance < 0.69:
            fleet.spend(region, process)
        elif chance < 0.75:
            if process.lent:
                fleet.collect(region, process, random.choice(process.lent[-5:]))
        elif chance < 0.77:
            if process.lent:
                fleet.exhaust(process.lent[-1])
        elif chance < 0.78:
            region.cut = not region.cut
        elif chance < 0.79:
            lost: list[Call] = random.choice([process.calls, process.deposits])
            if lost:
                lost.remove(random.choice(lost))
        elif chance < 0.795:
            fleet.restart(region, number)
        else:
            fleet.now += step(random, fleet.now, length, limit.window, to_window=0.3)
