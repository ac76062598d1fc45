"""Instances that lease, beside one counter that has all hits: the same answers, no more work, no shorter waits."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.model import Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.leases import Ask, Leases
from ratelimit_service.system.clock import SECOND
from tests.leases.fleet import Fleet, InPython, Instance
from tests.leases.test_fleets import LEASING, START, a_rule

MILLISECOND = 1000


class Counting(InPython):
    """Counts the script calls."""

    calls = 0

    def run(self, rule: Rule, costs: Sequence[int], asks: Sequence[Ask], now: int) -> Any:
        self.calls += 1
        return super().run(rule, costs, asks, now)


def answer(fleet: Fleet, instance: Instance) -> Decision:
    """The answer to a hit that costs 1; if it is sent, at once."""
    decision = fleet.hit(instance, 1)
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


@pytest.mark.parametrize("name", LEASING)
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


@pytest.mark.parametrize("name", LEASING)
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
