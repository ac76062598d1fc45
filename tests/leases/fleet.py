"""Instances that lease from one store, told what happens to them: hits, calls that are late or lost, crashes.

No time passes by itself and nothing is sent unless the schedule says so; a store is the Python of the algorithms or a
real Redis. What was allowed is held to the algorithm's own bound, by an oracle that knows nothing of leases.
"""

from collections.abc import Callable, Sequence
from itertools import count
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple, Protocol

from redis import Redis as Client

from ratelimit_service.algorithms import State, lease
from ratelimit_service.algorithms.lease import Granted
from ratelimit_service.model import PLAIN, Decision, Limit, settling
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.leases import Ask, Leases
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.telemetry.tally import Tally
from tests.clocks import Clock
from tests.parts import parts_of

KEY = "shop|user=ada"
TALLY = Tally()

Reply = tuple[list[Decision], list[Granted]]


class Settled(int):
    """A cost that has come about."""


class Store(Protocol):
    """Has one counter."""

    def run(
        self, rule: Rule, costs: Sequence[int], asks: Sequence[Ask], now: int
    ) -> tuple[list[Decision], list[Granted]]:
        """One script call."""


class InPython:
    """The functions of an algorithm."""

    def __init__(self) -> None:
        self.state: State | None = None

    def run(
        self, rule: Rule, costs: Sequence[int], asks: Sequence[Ask], now: int
    ) -> tuple[list[Decision], list[Granted]]:
        algorithm: Any = rule.algorithm
        limit = rule.limit
        assert limit is not None
        decisions = []
        for ask in asks:
            if ask.back:
                self.state = algorithm.give(self.state, limit, ask.back, ask.back_end, now)
        for cost in costs:
            if isinstance(cost, Settled):
                self.state, _, decision = PLAIN.owe(algorithm, self.state, None, limit, cost, now)
            else:
                self.state, decision = algorithm.hit(self.state, limit, cost, now)
            decisions.append(decision)
        grants = []
        for ask in asks:
            self.state, granted = lease.take(algorithm, self.state, limit, ask.least, ask.extra, now, ask.counter.phase)
            grants.append(granted)
        return decisions, grants


SAVE = "call('SET', key, pack_integers(unpack(state)), 'PX', milliseconds(state[1] - now + limit.jitter))"


class InRedis:
    """The script, at the times of the schedule: keys outlive it, or they would expire by the clock of Redis."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.clock = Clock()
        self.script = BatchScript("", self.clock)
        assert SAVE in self.script.text
        self.sha = client.script_load(self.script.text.replace(SAVE, "call('SET', key, pack_integers(unpack(state)))"))
        client.flushdb()

    def run(
        self, rule: Rule, costs: Sequence[int], asks: Sequence[Ask], now: int
    ) -> tuple[list[Decision], list[Granted]]:
        self.clock.now = now
        hits = [Hit(rule, KEY, cost, tally=TALLY, quota=False) for cost in costs]
        for hit in hits:
            if isinstance(hit.cost, Settled):
                hit.limit = settling(hit.limit)
                hit.cost = int(hit.cost)
        keys, arguments, runs = self.script.encode(parts_of(hits), asks)
        reply: Any = self.client.evalsha(self.sha, len(keys), *keys, *arguments)
        answer = self.script.decode(reply, runs, asks)
        return [hit.decision for hit in hits], list(answer.granted)


class Call:
    """A script call on its way."""

    def __init__(self, costs: list[int], asks: list[Ask], sent: int) -> None:
        self.costs = costs
        self.asks = asks
        self.sent = sent
        self.store_now = 0
        self.reply: Reply | None = None


class Instance:
    """One that leases; its clock is ahead of the store's."""

    def __init__(self, leases: Leases, ahead: int) -> None:
        self.leases = leases
        self.ahead = ahead
        self.queue: list[int] = []
        self.calls: list[Call] = []


class Allowed(NamedTuple):
    """When, by the store's clock, and how much."""

    now: int
    cost: int


class Fleet:
    """Instances, a store, and what was allowed."""

    def __init__(
        self,
        rule: Rule,
        store: Store,
        *,
        instances: int = 3,
        start: int = 0,
        round_trip: int = 100,
        open_leases: Callable[[], Leases] = lambda: Leases(deny=5000),
    ) -> None:
        assert rule.limit is not None
        self.rule = rule
        self.limit: Limit = rule.limit
        self.store = store
        self.now = start
        self.allowed: list[Allowed] = []
        self.settled: list[Allowed] = []
        self.last_calls: list[Call] = []
        """Of instances that have stopped."""
        self._open_leases = open_leases
        self._seeds = count()
        self._round_trip = round_trip
        self.instances = [Instance(self._open(), 7_000_000 * number - 5_000_000) for number in range(instances)]
        for instance in self.instances:
            self._warm(instance)

    def _open(self) -> Leases:
        leases = self._open_leases()
        leases.round_trip = self._round_trip
        leases._seed = next(self._seeds)
        return leases

    def hit(self, instance: Instance, cost: int) -> Decision | None:
        """One comes in; what is not decided here is sent with the next call."""
        decision = instance.leases.hit(self.rule, self.limit, KEY, cost, self.now + instance.ahead)
        if decision is None:
            instance.queue.append(cost)
        elif decision.allowed:
            self.allowed.append(Allowed(self.now, cost))
        return decision

    def settle(self, instance: Instance, cost: int) -> None:
        """A cost has come about, which is charged in full."""
        limit = settling(self.limit)
        assert instance.leases.hit(self.rule, limit, KEY, cost, self.now + instance.ahead) is None
        instance.queue.append(Settled(cost))

    def left(self, instance: Instance) -> int:
        """What it could still allow by itself."""
        leased = instance.leases.by_key.get(KEY)
        return leased.lease.left if leased is not None else 0

    def send(self, instance: Instance) -> Call | None:
        """What has queued leaves in one call."""
        local = self.now + instance.ahead
        asks = instance.leases.asks(local)
        if not instance.queue and not asks:
            return None
        call = Call(instance.queue, asks, local)
        instance.queue = []
        instance.calls.append(call)
        return call

    def execute(self, call: Call) -> None:
        """The store does it now."""
        call.store_now = self.now
        call.reply = self.store.run(self.rule, call.costs, call.asks, self.now)
        for cost, decision in zip(call.costs, call.reply[0], strict=True):
            if isinstance(cost, Settled):
                self.settled.append(Allowed(self.now, cost))
            elif decision.allowed and cost:
                self.allowed.append(Allowed(self.now, cost))

    def deliver(self, instance: Instance, call: Call) -> None:
        """The reply arrives."""
        instance.calls.remove(call)
        assert call.reply is not None
        decisions, grants = call.reply
        for ask, granted in zip(call.asks, grants, strict=True):
            instance.leases.answered(ask, granted, self.counted_from(instance, call))
        for cost, decision in zip(call.costs, decisions, strict=True):
            if not decision.allowed:
                instance.leases.denied_by_store(KEY, cost, decision, call.store_now, call.sent)

    def counted_from(self, instance: Instance, call: Call) -> int:
        """The moment, by its own clock, from which an instance counts how long the lease lasts."""
        return call.sent

    def lose(self, instance: Instance, call: Call) -> None:
        """No reply will come, whether the store has done it or not."""
        instance.calls.remove(call)
        for ask in call.asks:
            instance.leases.failed(ask)

    def call(self, instance: Instance) -> None:
        """All at once."""
        call = self.send(instance)
        if call is not None:
            self.execute(call)
            self.deliver(instance, call)

    def crash(self, number: int) -> None:
        """It is replaced by a new one; what it had sent may still be done."""
        self.instances[number] = Instance(self._open(), self.instances[number].ahead)
        self._warm(self.instances[number])

    def drain(self, number: int) -> None:
        """It gives back all that it holds, and is replaced; the store may do that later than the new one begins."""
        instance = self.instances[number]
        instance.leases.give_all()
        call = self.send(instance)
        self.instances[number] = Instance(self._open(), instance.ahead)
        self._warm(self.instances[number])
        if call is not None:
            self.last_calls.append(call)

    def exhaust(self, instance: Instance) -> None:
        """All that is left in the store, in one hit."""
        (look,), _ = self.store.run(self.rule, [0], [], self.now)
        if look.remaining > 0:
            call = Call([look.remaining], [], self.now + instance.ahead)
            instance.calls.append(call)
            self.execute(call)
            self.deliver(instance, call)

    def _warm(self, instance: Instance) -> None:
        for _ in range(5):
            instance.leases.hit(self.rule, self.limit, KEY, 0, self.now + instance.ahead)


def play(  # noqa: PLR0912 - a list of what may happen
    fleet: Fleet, random: Random, events: int, *, faults: bool = True, settles: bool = False
) -> None:
    """Anything may happen, in any order."""
    algorithm: Any = fleet.rule.algorithm
    limit = fleet.limit
    cap = max(1, limit.requests // 20)
    term = algorithm.term(limit)
    window = limit.window
    for _ in range(events):
        number = random.randrange(len(fleet.instances))
        instance = fleet.instances[number]
        chance = random.random()
        if settles and chance < 0.04:
            fleet.settle(instance, random.choice([1, cap, limit.requests // 3, 2 * limit.requests]))
        elif chance < 0.25:
            fleet.hit(instance, random.choice([1, 1, 2, cap // 3 + 1, cap]))
        elif chance < 0.37:
            if left := fleet.left(instance):
                fleet.hit(instance, random.choice([left, left, left // 2 + 1]))
        elif chance < 0.52:
            fleet.call(instance)
        elif chance < 0.62:
            fleet.send(instance)
        elif chance < 0.71:
            waiting = [call for call in instance.calls if call.reply is None]
            if waiting:
                fleet.execute(random.choice(waiting))
        elif chance < 0.79:
            done = [call for call in instance.calls if call.reply is not None]
            if done:
                fleet.deliver(instance, random.choice(done))
        elif chance < 0.82:
            instance.leases.sweep(fleet.now + instance.ahead)
        elif chance < 0.828:
            fleet.exhaust(instance)
        elif chance < 0.831:
            fleet.drain(number)
        elif chance < 0.834 and fleet.last_calls:
            fleet.execute(fleet.last_calls.pop())
        elif chance < 0.842 and faults:
            if instance.calls and random.random() < 0.7:
                fleet.lose(instance, random.choice(instance.calls))
            else:
                fleet.crash(number)
        else:
            fleet.now += step(random, fleet.now, term, window, to_window=0.4)


def step(random: Random, now: int, term: int, window: int, *, to_window: float) -> int:
    """A little; or to the last moment of a term, or by that chance of a window; or just behind."""
    match random.randrange(8):
        case 0 | 1 | 2:
            return random.randint(0, term // 8)
        case 3 | 4:
            return term - 1 - now % term
        case 5:
            return random.choice([1, 2, term // 2, term])
        case 6:
            return window - 1 - now % window if random.random() < to_window else term // 3
        case _:
            return random.choice([0, 1, term - now % term])


def excess(rule: Rule, allowed: Sequence[Allowed]) -> float:
    """By how many units the algorithm's own bound was passed, at most; 0 or less if it was not."""
    limit = rule.limit
    assert limit is not None
    window, most = limit.window, limit.requests
    events = sorted(allowed, key=attrgetter("now"))
    worst = 0.0
    match rule.algorithm.name:
        case "fixed_window" | "sliding_window":
            counts: dict[int, int] = {}
            for now, cost in events:
                index, into = divmod(now, window)
                counts[index] = counts.get(index, 0) + cost
                before = counts.get(index - 1, 0) * (window - into) // window
                used = counts[index] + (before if rule.algorithm.name == "sliding_window" else 0)
                worst = max(worst, used - most)
        case "sub_windows":
            first = total = 0
            for now, cost in events:
                total += cost
                while events[first].now <= now - window:
                    total -= events[first].cost
                    first += 1
                worst = max(worst, total - most)
        case _:
            level, last = 0, 0  # in units times the window
            for now, cost in events:
                level = max(0, level - (now - last) * most) + cost * window
                last = now
                worst = max(worst, level / window - (limit.burst or most))
    return worst
