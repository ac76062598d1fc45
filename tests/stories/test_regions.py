"""Regions that share limits, far from each other: what each allows, what waits, and what a cut costs."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.processes import eventually
from tests.redis import start_redis
from tests.stories.regions import HOME_PORT, Region, from_elsewhere, open_regions, results

LIMIT = 600
FLOOR = 60
"""Of each region, where there is one."""
KINDS = ("fixed", "parts", "bucket")
SHARED = f"""
domain: shop
descriptors:
  - {{key: fixed, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, regions: leased}}}}
  - {{key: parts, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, algorithm: sub_windows, regions: leased}}}}
  - {{key: bucket, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, algorithm: token_bucket, regions: leased}}}}
  - {{key: floor, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, regions: leased, floor: 10%}}}}
  - {{key: closed, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, regions: leased, on_store_failure: closed}}}}
  - {{key: open, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, regions: leased, on_store_failure: open}}}}
  - {{key: central, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, regions: central}}}}
  - {{key: healed, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, regions: leased, floor: 10%}}}}
  - {{key: synced, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, regions: synced}}}}
  - {{key: emptied, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, regions: leased, floor: 10%}}}}
  - {{key: login, rate_limit: {{unit: year, requests_per_unit: 10, regions: central}}}}
  - {{key: elsewhere, rate_limit: {{unit: year, requests_per_unit: 10, regions: central, on_store_failure: open}}}}
  - {{key: lossy, rate_limit: {{unit: year, requests_per_unit: {LIMIT}, regions: leased, floor: 10%}}}}
"""
SETTINGS = {
    "REDIS_URL": "{own}",
    "HOME_REDIS_URL": "{home}",
    "REGIONS": "eu,us,ap",
    "REGION": "{region}",
    "REGION_SYNC_SECONDS": "0.2",
    "STORE_DEADLINE": "3s",
}


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Region]]:
    """Home in eu; each test has counters of its own."""
    with open_regions(tmp_path_factory.mktemp("regions"), SHARED, SETTINGS) as regions:
        yield regions


def ask_all(regions: Sequence[Region], kinds: Sequence[str], calls: int) -> dict[str, Counter[str]]:
    """So many calls of each kind in each region, all at once, and what came of them all together."""
    started = {kind: [region.start(kind, calls) for region in regions] for kind in kinds}
    return {kind: sum((results(calls) for calls in of_kind), Counter()) for kind, of_kind in started.items()}


def test_a_central_limit_asks_home_once_a_call_and_again_after_a_cut(regions: Mapping[str, Region]) -> None:
    eu, us, far = regions.values()
    home = far.home
    assert [region.ask("login")["OK"] for region in (eu, us, far)] == [
        1,
        1,
        1,
    ]  # all are connected, home has the script
    calls, begun = home.script_calls(), time.monotonic()
    assert far.ask("login") == {"OK": 1}
    assert time.monotonic() - begun > 0.14
    assert home.script_calls() - calls - 1 in range(4)  # each service tells it its floors besides
    assert us.ask("login", 20) == {"OK": 6, "OVER_LIMIT": 14}

    assert us.ask("elsewhere", 10) == {"OK": 10}
    far.place.cut()
    try:
        assert far.ask("elsewhere") == {"OK": 1}
    finally:
        far.place.heal()
    eventually(lambda: far.ask("elsewhere") == {"OVER_LIMIT": 1}, "what the others counted is known again")


def test_three_regions_far_apart_allow_exactly_the_limit_wherever_the_demand_is(regions: Mapping[str, Region]) -> None:
    eu, us, ap = regions.values()
    kinds = (*KINDS, "central")
    allowed: Counter[str] = Counter()
    for where in ([us], [eu, us, ap], [ap], [eu, us, ap], [eu, ap]):
        for kind, counted in ask_all(where, kinds, 80).items():
            allowed[kind] += counted["OK"]
            assert set(counted) <= {"OK", "OVER_LIMIT"}
    assert max(allowed.values()) <= LIMIT

    def is_used_up() -> bool:
        """Of a bucket the last units are not lent."""
        for kind, counted in ask_all([eu, us, ap], kinds, 20).items():
            allowed[kind] += counted["OK"]
        return all(allowed[kind] >= LIMIT for kind in kinds if kind != "bucket")

    eventually(is_used_up, "all of each limit is used")
    assert LIMIT / 2 < allowed.pop("bucket") <= LIMIT
    assert set(allowed.values()) == {LIMIT}


def test_a_region_that_is_cut_off_keeps_its_floor_and_borrows_again_when_it_is_not(
    regions: Mapping[str, Region],
) -> None:
    eu, us, ap = regions.values()
    eventually(lambda: "ratelimit_region_settings_agree{" in ap.metrics(), "its floors are granted")
    ap.place.cut()
    try:
        assert ap.ask("floor", 100) == {"OK": FLOOR, "OVER_LIMIT": 100 - FLOOR}
        assert ap.ask("closed", 10) == {"OVER_LIMIT": 10}
        assert ap.ask("open", 10) == {"OK": 10}
        allowed = Counter(ap=FLOOR)

        def is_used_up() -> bool:
            for region in (eu, us, ap):
                allowed[region.place.name] += region.ask("floor", 100)["OK"]
            return allowed.total() >= LIMIT

        eventually(is_used_up, "the other regions use all the rest")
        assert allowed.total() == LIMIT
        assert allowed["ap"] == FLOOR
    finally:
        ap.place.heal()

    lent = 0

    def is_lent() -> bool:
        nonlocal lent
        lent += ap.ask("healed", 100)["OK"]
        return lent > FLOOR

    eventually(is_lent, "it has more than its floor")
    assert "ratelimit_region_home_healthy 1" in ap.metrics()


def test_a_way_that_loses_packets_makes_no_region_allow_more(regions: Mapping[str, Region]) -> None:
    eu, us, ap = regions.values()
    us.place.lose(0.05)
    try:
        allowed = sum(ask_all([eu, us, ap], ["lossy"], 100)["lossy"]["OK"] for _ in range(3))
    finally:
        us.place.heal()
    allowed += sum(ask_all([eu, us, ap], ["lossy"], 100)["lossy"]["OK"] for _ in range(3))
    assert 0 < allowed <= LIMIT


def test_regions_that_sync_allow_what_is_left_by_the_others_and_go_on_by_themselves(
    regions: Mapping[str, Region],
) -> None:
    eu, us, ap = regions.values()
    assert eu.ask("synced", 300) == {"OK": 300}
    assert us.ask("synced", 200) == {"OK": 200}

    def remaining(region: Region) -> int:
        answer = region.start("synced", 1)[0].result()
        return int(answer.statuses[0].limit_remaining)

    eventually(lambda: remaining(ap) < LIMIT - 500, "the far region knows what the others have counted")
    ap.place.cut()
    try:
        left = remaining(ap)
        assert ap.ask("synced", LIMIT) == {"OK": left, "OVER_LIMIT": LIMIT - left}
    finally:
        ap.place.heal()
    eventually(lambda: us.ask("synced") == eu.ask("synced") == {"OVER_LIMIT": 1}, "the others know of that")


def test_a_home_that_is_killed_and_begins_empty_lends_again(regions: Mapping[str, Region], tmp_path: Path) -> None:
    """The last test: home is another one then."""
    eu, us, _ = regions.values()
    assert us.ask("emptied", 30) == {"OK": 30}
    us.home.kill()
    eventually(lambda: us.ask("emptied", 100)["OVER_LIMIT"] == 100, "its loan and its floor are used up")

    with eu.place.inside(), start_redis(tmp_path, *from_elsewhere(eu.place), port=HOME_PORT):
        eventually(lambda: us.ask("emptied")["OK"] == 1, "it has a loan again")
