"""What regions that share a limit promise, whatever happens to processes, messages and links, in Python and in Lua."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import NAMES, open_algorithm
from ratelimit_service.algorithms.kinds import leased as regional
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.region_asks import RegionAsk
from ratelimit_service.system.clock import SECOND
from tests.leases.fleet import excess
from tests.redis import Redis
from tests.regions.fleet import (
    Call,
    Fleet,
    HomeInBoth,
    HomeInPython,
    HomeInRedis,
    Process,
    Region,
    RegionInBoth,
    RegionInPython,
    RegionInRedis,
    play,
)
from tests.sampled import extended, sampled

DIFFERENT = [name for name in NAMES if name not in {"sliding_log", "leaky_bucket"}]
"""The leaky bucket is the token bucket's functions under another name."""

START = 1_790_000_000_000_000
EVENTS = 500


def a_rule(algorithm: Any, random: Random, regions: int, percents: Sequence[int], member: Any) -> Rule:
    limit = Limit(
        random.choice([100, 240, 1000]),
        Unit.SECOND,
        random.choice([SECOND, 7 * SECOND, 60 * SECOND]),
        burst=random.choice([0, 0, 500]) if algorithm.name.endswith("bucket") else 0,
        parts=random.choice([3, 5]),
        count_refused=random.random() < 0.5,
    )
    return Rule("shop", (), member(limit, regions, random.choice(percents)), algorithm)


def opened(rule: Rule, redis: Redis | None, functions: Any = regional) -> tuple[Callable[[int], Any], Any]:
    """How to open the store of a region, and that of home: in Python, and with a Redis in both."""
    if redis is None:
        return lambda _: RegionInPython(rule, functions), HomeInPython(rule)

    def client(database: int) -> Client:
        found = Client(unix_socket_path=str(redis.socket), db=database)
        found.flushdb()
        return found

    return (
        lambda number: RegionInBoth(RegionInPython(rule), RegionInRedis(rule, client(number))),
        HomeInBoth(HomeInPython(rule), HomeInRedis(client(9))),
    )


def played(
    algorithm: Any,
    seed: int,
    *,
    redis: Redis | None = None,
    percents: Sequence[int] = (0, 0, 5, 10, 33),
    member: Any = regional.member,
    functions: Any = regional,
    kind: type[Fleet] = Fleet,
) -> Fleet:
    """A fleet after a schedule."""
    random = Random(seed)  # noqa: S311 - the seed tells the schedule
    regions = random.choice([2, 3])
    rule = a_rule(algorithm, random, regions, percents, member)
    limit = rule.limit
    assert limit is not None
    assert limit.regions is not None
    # The windows of floors are those of the region's clock.
    aligned = limit.regions.floor is not None and algorithm.name in {"fixed_window", "sliding_window"}
    shift = 0 if aligned else random.randrange(limit.window)
    open_region, home = opened(rule, redis, functions)
    fleet = kind(rule, open_region, home, regions=regions, start=START + random.randrange(SECOND), shift=shift)
    play(fleet, random, EVENTS)
    return fleet


def over(fleet: Fleet) -> float:
    """By how many units the limit was passed; 0 or less if it was not."""
    regions = fleet.limit.regions
    assert regions is not None
    estimates = regions.number if regions.floor and fleet.rule.algorithm.name == "sliding_window" else 0
    return excess(fleet.rule, fleet.allowed) - estimates  # each of which is rounded by itself


@pytest.mark.parametrize("name", [*DIFFERENT, extended("leaky_bucket")])
@given(st.integers(0, 2**64))
def test_all_regions_together_never_allow_more_than_the_limit(name: str, seed: int) -> None:
    fleet = played(open_algorithm(name), seed)

    assert over(fleet) <= 0


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_twin_answers_asks_and_lends_as_the_python_does(redis: Redis, name: str) -> None:
    """And what it allows is what the Python allows, so the promises hold for both."""
    for seed in range(8):
        fleet = played(open_algorithm(name), seed, redis=redis)

        assert over(fleet) <= 0


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_schedules_borrow_give_back_wait_and_deny(name: str) -> None:
    fleets = [played(open_algorithm(name), seed) for seed in range(20)]
    regions = [region for fleet in fleets for region in fleet.regions]

    assert sum(region.deposited for region in regions) > 20 * 100
    assert sum(region.taken for region in regions) > 20 * 50
    assert sum(fleet.waited for fleet in fleets) > 20 * 20
    assert sum(fleet.denied for fleet in fleets) > 20 * 2


def lost(region: Region) -> int:
    """Units, as long as there is no floor."""
    store = region.store
    assert isinstance(store, RegionInPython)
    return region.deposited - region.spent - region.taken - store.held


class Conserving(Fleet):
    """Nothing that happens in a region makes units: what it has lost stays lost."""

    def run(self, region: Region, process: Process) -> None:
        before = lost(region)
        super().run(region, process)
        assert lost(region) >= before

    def deposit(self, region: Region, process: Process, call: Call) -> None:
        before = lost(region)
        super().deposit(region, process, call)
        assert lost(region) >= before

    def collect(self, region: Region, process: Process, ask: RegionAsk) -> None:
        before = lost(region)
        super().collect(region, process, ask)
        assert lost(region) >= before


@pytest.mark.parametrize("name", DIFFERENT)
@given(st.integers(0, 2**64))
def test_units_are_conserved(name: str, seed: int) -> None:
    """Without floors: what was deposited is spent, taken out to be given back, held or lost."""
    fleet = played(open_algorithm(name), seed, percents=(0,), kind=Conserving)

    assert all(lost(region) >= 0 for region in fleet.regions)


class FromDeposit(Fleet):
    """Counts the time of a lease from when it arrives in the region."""

    def deposit(self, region: Region, process: Process, call: Call) -> None:
        call.ask = call.ask._replace(now=self.now + region.ahead)
        super().deposit(region, process, call)


class Twice(Fleet):
    """Brings what home has lent twice, since no reply came."""

    def deposit(self, region: Region, process: Process, call: Call) -> None:
        super().deposit(region, process, call)
        process.deposits.append(call)
        super().deposit(region, process, call)


class IntoALaterTerm(Fleet):
    """Gives back into another term than the one in which it was lent."""

    def at_home(self, call: Call) -> None:
        back, back_end, least, extra = call.ask.numbers
        given_back = call.ask._replace(numbers=(back, back_end + self.limit.window // 2, least, extra))
        call.granted = self.home.run(given_back, self.now)


def collected_and_kept(state: Any, length: int, now: int) -> Any:
    return (state, *regional.collect(state, length, now)[1:])


def collected_at_once(state: Any, length: int, now: int) -> Any:
    """What is left of a lease that goes on, and stays there."""
    _, units, term_end = regional.collect(state, length, now)
    return (state, units, term_end) if units or not state else (state, state.lease.left, state.lease.term_end)


def with_lease(state: Any, **fields: int) -> Any:
    return state._replace(lease=replace(state.lease, **fields))


def asked_and_kept(*arguments: Any) -> Any:
    """Asks home to take back what it keeps."""
    state, wanted = regional.ask(*arguments)
    return (with_lease(state, back=wanted.back) if state and wanted else state), wanted


def spent_after_its_end(algorithm: Any, state: Any, limit: Limit, cost: int, now: int) -> Any:
    length = regional.term(algorithm, limit)
    if state is not None and state.lease.left:
        state = with_lease(state, end=max(state.lease.end, now + 1))._replace(expiry=max(state.expiry, now + length))
    return regional.hit(algorithm, state, limit, cost, now)


def overdrawn(algorithm: Any, state: Any, limit: Limit, cost: int, now: int) -> Any:
    if state is not None and 0 < state.lease.left < cost:
        state = with_lease(state, left=cost)
    return regional.hit(algorithm, state, limit, cost, now)


def with_whole_home(limit: Limit, number: int, percent: int) -> Limit:
    """Home lends the floors too."""
    limit = regional.member(limit, number, percent)
    assert limit.regions is not None
    assert limit.regions.home is not None
    home = replace(limit.regions.home, requests=limit.requests, burst=limit.burst)
    return replace(limit, regions=replace(limit.regions, home=home))


def changed(**functions: Any) -> Any:
    return SimpleNamespace(**{**vars(regional), **functions})


MUTANTS: dict[str, dict[str, Any]] = {
    "a lease is counted from its deposit": {"kind": FromDeposit},
    "a lease is deposited twice": {"kind": Twice},
    "a rest is given back into a later term": {"kind": IntoALaterTerm},
    "what is collected is kept": {"functions": changed(collect=collected_and_kept)},
    "what is left of a live lease is given back and kept": {"functions": changed(collect=collected_at_once)},
    "what is given back with an ask is kept": {"functions": changed(ask=asked_and_kept)},
    "a lease is spent after its end": {"functions": changed(hit=spent_after_its_end)},
    "a hit takes more than is left": {"functions": changed(hit=overdrawn)},
    "home lends the floors": {"member": with_whole_home, "percents": (10, 33)},
}


@pytest.mark.parametrize(("mutant", "name"), sampled(product(MUTANTS, DIFFERENT), 3))
def test_a_broken_rule_is_found(mutant: str, name: str) -> None:
    found = (over(fleet) for seed in range(1000) for fleet in [played(open_algorithm(name), seed, **MUTANTS[mutant])])

    assert any(units > 0 for units in found)
