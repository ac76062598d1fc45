"""Instances that lease, beside one counter that has all hits: the same answers, no more work, no shorter waits."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.model import Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.leases import Ask, LeasedCounter, Leases
from ratelimit_service.system.clock import HOUR, SECOND
from tests.leases.fleet import KEY, Fleet, InPython, InRedis, Instance, Store
from tests.leases.test_fleets import EACH, START, a_rule

MILLISECOND = 1000

dear = settings(max_examples=settings().max_examples // 2)
"""For what plays hundreds of events in each example."""


class Counting(InPython):
    """Counts the script calls."""

    calls = 0

    def run(self, rule: Rule, costs: Sequence[int], asks: Sequence[Ask], now: int) -> Any:
        self.calls += 1
        return super().run(rule, costs, asks, now)


def answer(fleet: Fleet, instance: Instance, cost: int = 1) -> Decision:
    """The answer to a hit; if it is sent, at once."""
    decision = fleet.hit(instance, cost)
    if decision is None:
        call = fleet.send(instance)
        assert call is not None
        fleet.execute(call)
        assert call.reply is not None
        (decision,) = call.reply[0]
        fleet.deliver(instance, call)
    else:
        fleet.call(instance)  # what it asks for in advance
    return decision


@pytest.mark.parametrize("name", EACH)
@dear
@given(st.integers(0, 2**64))
def test_where_nothing_may_be_held_each_answer_is_that_of_one_counter(name: str, seed: int) -> None:
    """L4: denials that are remembered, too."""
    random = Random(seed)  # noqa: S311 - the seed tells the schedule
    rule = Rule("shop", (), a_rule(open_algorithm(name), random).limit, open_algorithm(name))
    fleet = Fleet(rule, InPython(), start=START + random.randrange(SECOND), open_leases=lambda: Leases(deny=0))
    one = InPython()
    for _ in range(400):
        fleet.now += random.choice([0, 0, 100, MILLISECOND, 10 * MILLISECOND, random.randrange(SECOND)])
        for _ in range(random.choice([1, 1, 20])):
            (expected,), _ = one.run(rule, [1], [], fleet.now)
            assert answer(fleet, random.choice(fleet.instances)).allowed == expected.allowed


def some_costs(random: Random, requests: int) -> Iterator[int]:
    """Of one kind above all: ones, some, dear ones, looks, all or more than all; and any now and then."""
    some = requests // 20
    kinds = [[1], [1, 1, 2, some // 2], [1, 2 * some, requests // 3], [0, some], [1, 0, requests, requests + 1, 2**50]]
    kind = random.choice(kinds)
    for _ in range(random.randrange(4, 24)):
        yield random.choice(kind if random.random() < 0.8 else [0, 1, some, some + 1, 10 * some, -1, -some])


def difference(seed: int, name: str, store: Store, leases: type[Leases] = Leases, *, crossing: bool = True) -> Any:
    """Where one instance that leases does not answer a sequence of costs as a counter without leases does.

    Of a fixed window every field is compared; of others what is left changes by itself while units are held.
    """
    random = Random(seed)  # noqa: S311 - the seed tells the sequence
    requests = random.choice([100, 240, 1000, 10**6, 2**50])
    fixed = name == "fixed_window"
    plain = Limit(requests, Unit.SECOND, SECOND, count_refused=fixed)
    limit = replace(plain, crossing_only=fixed and crossing)
    rule = Rule("shop", (), limit, open_algorithm(name), lease=requests // 20)
    counters = [(InPython(), replace(rule, limit=each)) for each in (replace(plain, crossing_only=fixed), plain)]
    # No moment is less than 5 ms from the end of a term or a window, over which a denial is remembered.
    start = START + 5000 + random.randrange(100) * 10_000
    fleet = Fleet(rule, store, instances=1, start=start, open_leases=lambda: leases(deny=5000))
    (instance,) = fleet.instances
    window, denied = 0, False
    for step, cost in enumerate(some_costs(random, requests)):
        fleet.now += random.choice([0, 0, 0, 10_000, 10_000, random.randrange(100) * 10_000])
        instance.leases.sweep(fleet.now + instance.ahead)
        fleet.call(instance)
        if fleet.now // SECOND > window:
            window, denied = fleet.now // SECOND, False
        if cost < 0 and denied:
            del counters[1:]  # it has counted all that was denied, so the refund makes less room there
        found = answer(fleet, instance, cost)
        for counter, of in counters:
            (expected,), _ = counter.run(of, [cost], [], fleet.now)
            if found != expected if fixed else found.allowed != expected.allowed:
                return step, cost, found, expected
        denied = denied or (cost > 0 and not found.allowed)
    return None


TIMES: Final = 25 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 1
"""So many more sequences of costs: 10,000 of fixed windows."""


@pytest.mark.parametrize(("name", "sequences"), [("fixed_window", 400), ("sliding_window", 100), ("sub_windows", 100)])
def test_any_costs_are_answered_as_without_leases(name: str, sequences: int) -> None:
    """Looks, dear hits, refunds, and what crosses the limit; a fixed window by the same numbers, too."""
    assert [found for seed in range(TIMES * sequences) if (found := difference(seed, name, InPython()))] == []


def test_any_costs_are_answered_by_the_script_as_without_leases(client: Client) -> None:
    store = InRedis(client)
    for seed in range(TIMES * 60):
        client.delete(f"rl2|{KEY}")
        name = ("fixed_window", "fixed_window", "sliding_window", "sub_windows")[seed % 4]

        assert difference(seed, name, store) is None, seed


class Keeping(Leases):
    """Keeps what it holds when a hit is sent that needs it."""

    def _give_before_hit(self, leased: LeasedCounter) -> None:
        pass


@pytest.mark.parametrize(("leases", "crossing"), [(Keeping, True), (Leases, False)])
def test_a_broken_rule_is_found(leases: type[Leases], crossing: bool) -> None:
    found = (difference(seed, "fixed_window", InPython(), leases, crossing=crossing) for seed in range(1000))

    assert any(found)


class Callers:
    """So many at once, each of which looks, and if that is allowed charges what it has used, at any instance."""

    def __init__(self, fleet: Fleet, random: Random, costs: tuple[int, int], number: int = 8) -> None:
        self.used = 0
        self.refused = 0
        """Looks, since the last that was allowed."""
        self._fleet = fleet
        self._random = random
        self._costs = costs
        self._idle = [0] * number
        """What each charges next; 0: it looks."""

    def act(self) -> None:
        """Each that waits for nothing sends its next hit; a call takes longer than it is until the next one is sent."""
        fleet = self._fleet
        for instance in fleet.instances:
            for call in [call for call in instance.calls if call.store_now <= fleet.now - 3 * MILLISECOND]:
                fleet.deliver(instance, call)
                assert call.reply is not None
                for cost, decision in zip(call.costs, call.reply[0], strict=True):
                    self._answered(cost, allowed=decision.allowed)
            instance.leases.sweep(fleet.now + instance.ahead)
        idle, self._idle = self._idle, []
        for cost in idle:
            local = fleet.hit(self._random.choice(fleet.instances), cost)
            if local is not None:
                self._answered(cost, allowed=local.allowed)
        for instance in fleet.instances:
            sent = fleet.send(instance)
            if sent is not None:
                fleet.execute(sent)
        fleet.now += MILLISECOND

    def _answered(self, cost: int, *, allowed: bool) -> None:
        if cost:
            self.used += cost
            self._idle.append(0)
        else:
            self.refused = 0 if allowed else self.refused + 1
            self._idle.append(self._random.randint(*self._costs) if allowed else 0)


class Remembering(Leases):
    """A look ends no denial."""

    def hit(self, rule: Rule, limit: Limit, key: str, cost: int, now: int) -> Decision | None:
        leased = self.by_key.get(key)
        until = 0 if leased is None else leased.lease.deny_until
        decision = super().hit(rule, limit, key, cost, now)
        if leased is not None and not cost:
            leased.lease.deny_until = until
        return decision


def used_above(costs: tuple[int, int], instances: int, seed: int, leases: type[Leases] = Leases) -> int:
    """What callers that look first and charge when they know use above a limit of 100,000; none is allowed above it."""
    limit = Limit(100_000, Unit.HOUR, HOUR, crossing_only=True)
    rule = Rule("shop", (), limit, open_algorithm("fixed_window"), lease=5000)
    fleet = Fleet(rule, InPython(), instances=instances, start=START, open_leases=lambda: leases(deny=5000))
    callers = Callers(fleet, Random(seed), costs)  # noqa: S311 - the seed tells the calls
    while callers.refused < 25_000:  # in longer than a term, by whose end others have given back
        callers.act()
    assert sum(cost for _, cost in fleet.allowed) <= 100_000
    return callers.used - 100_000


@pytest.mark.parametrize("costs", [(1, 40), (50, 150), (3000, 9000)])
@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize("seed", [2, 3])
def test_callers_that_look_first_and_charge_when_they_know_are_limited(
    costs: tuple[int, int], instances: int, seed: int
) -> None:
    """As without leases, but for what is under way when the limit is reached, and for what one of several denies."""
    assert 0 < used_above(costs, instances, seed) <= 8 * instances * costs[1]


def test_that_a_look_ends_no_denial_is_found() -> None:
    assert used_above((50, 150), 3, 4, Remembering) > 10_000


@pytest.mark.parametrize("name", EACH)
@dear
@given(st.integers(0, 2**64))
def test_a_hit_takes_one_call_at_most_beside_what_gives_back(name: str, seed: int) -> None:
    """L8: of each instance one call in each term, and one for what it held before the first."""
    random = Random(seed)  # noqa: S311 - the seed tells the schedule
    rule, store = a_rule(open_algorithm(name), random), Counting()
    fleet = Fleet(rule, store, start=START)
    algorithm: Any = rule.algorithm
    term, hits = algorithm.term(rule.limit), 0
    pace = term // random.choice([3, 30, 300])
    while fleet.now < START + 20 * term:
        fleet.now += random.randint(0, 2 * pace)
        answer(fleet, random.choice(fleet.instances))
        hits += 1
        for instance in fleet.instances:
            instance.leases.sweep(fleet.now + instance.ahead)
            fleet.call(instance)

    assert store.calls <= hits + len(fleet.instances) * ((fleet.now - START) // term + 2)


def waits(fleet: Fleet | None, rule: Rule, arrivals: Sequence[int], random: Random) -> list[int]:
    """How long each hit waits until it is allowed: all that wait try again each millisecond, in order of arrival.

    By a fleet, or without one by a single counter.
    """
    one = InPython()
    waiting: list[tuple[int, int]] = []
    found, now, left = [], START, list(arrivals)
    while left or waiting:
        now += MILLISECOND
        while left and left[0] <= now:
            waiting.append((left.pop(0), random.randrange(3)))
        for arrived, number in tuple(waiting):
            if fleet is None:
                (decision,), _ = one.run(rule, [1], [], now)
            else:
                fleet.now = now
                decision = answer(fleet, fleet.instances[number])
            if decision.allowed:
                waiting.remove((arrived, number))
                found.append(now - arrived)
            elif fleet is None:
                break
    return found


@pytest.mark.parametrize("seed", range(6))
def test_hits_on_a_bucket_wait_in_all_no_shorter_than_for_one_counter(seed: int) -> None:
    """L10: what is held by several is never used earlier than by one."""
    random = Random(seed)  # noqa: S311 - the seed tells the arrivals
    limit = Limit(200, Unit.SECOND, SECOND, burst=100, count_refused=False)
    rule = Rule("shop", (), limit, open_algorithm("token_bucket"), lease=20)
    arrivals = sorted(START + random.randrange(SECOND) for _ in range(random.choice([250, 320, 400])))
    fleet = Fleet(rule, InPython(), start=START)

    split, together = (sum(waits(each, rule, arrivals, Random(seed))) for each in (fleet, None))  # noqa: S311 - as above

    assert sum(instance.leases.spent for instance in fleet.instances) > 20, "it leases"
    assert split >= together > 0
