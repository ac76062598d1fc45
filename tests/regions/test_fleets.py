"""What regions that share a limit promise, whatever happens to processes, messages and links, in Python and in Lua."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from ratelimit_service.algorithms import NAMES, open_algorithm, regional
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.system.clock import SECOND
from tests.leases.fleet import excess
from tests.redis import Redis
from tests.regions.fleet import (
    Fleet,
    HomeInBoth,
    HomeInPython,
    HomeInRedis,
    RegionInBoth,
    RegionInPython,
    RegionInRedis,
    play,
)

LEASING = [name for name in NAMES if name != "sliding_log"]
DIFFERENT = [name for name in LEASING if name != "leaky_bucket"]

START = 1_790_000_000_000_000
EVENTS = 500


def a_rule(algorithm: Any, random: Random, regions: int) -> Rule:
    limit = Limit(
        random.choice([100, 240, 1000]),
        Unit.SECOND,
        random.choice([SECOND, 7 * SECOND, 60 * SECOND]),
        burst=random.choice([0, 0, 500]) if algorithm.name.endswith("bucket") else 0,
        parts=random.choice([3, 5]),
        count_refused=random.random() < 0.5,
    )
    return Rule("shop", (), regional.member(limit, regions, random.choice([0, 0, 5, 10, 33])), algorithm)


def opened(kind: str, rule: Rule, redis: Redis | None, functions: Any = regional) -> tuple[Callable[[int], Any], Any]:
    """How to open the store of a region, and that of home."""
    if kind == "python":
        return lambda _: RegionInPython(rule, functions), HomeInPython(rule)
    assert redis is not None

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
    faults: bool = True,
    functions: Any = regional,
    kind: type[Fleet] = Fleet,
) -> Fleet:
    """A fleet after a schedule."""
    random = Random(seed)  # noqa: S311 - the seed tells the schedule
    regions = random.choice([2, 3])
    rule = a_rule(algorithm, random, regions)
    limit = rule.limit
    assert limit is not None
    assert limit.regions is not None
    # The windows of floors are those of the region's clock.
    aligned = limit.regions.floor is not None and algorithm.name in {"fixed_window", "sliding_window"}
    shift = 0 if aligned else random.randrange(limit.window)
    shift += -7 * 3600 * SECOND % limit.window if aligned else 0
    open_region, home = opened("python" if redis is None else "both", rule, redis, functions)
    fleet = kind(rule, open_region, home, regions=regions, start=START + random.randrange(SECOND), shift=shift)
    play(fleet, random, EVENTS, faults=faults)
    return fleet


@pytest.mark.parametrize("name", LEASING)
@given(st.integers(0, 2**64))
def test_all_regions_together_never_allow_more_than_the_limit(name: str, seed: int) -> None:
    fleet = played(open_algorithm(name), seed)

    assert excess(fleet.rule, fleet.allowed) <= 0


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_twin_answers_asks_and_lends_as_the_python_does(redis: Redis, name: str) -> None:
    """And what it allows is what the Python allows, so the promises hold for both."""
    for seed in range(12):
        fleet = played(open_algorithm(name), seed, redis=redis)

        assert excess(fleet.rule, fleet.allowed) <= 0
