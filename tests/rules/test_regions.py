"""How regions share a limit: what each gets, what cannot be shared, and what `check` and `explain` say of it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms.kinds.reserved import Reserved
from ratelimit_service.errors import RulesError
from ratelimit_service.model import Limit, RegionMode, Regions, Unit
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.checks.region_notes import region_notes, without_effect
from ratelimit_service.rules.leasing import LeaseOptions
from ratelimit_service.rules.regions import ONE_REGION, RegionOptions, region_options, regions_of, worst_case
from ratelimit_service.rules.rule import Rule, rule_in_full
from ratelimit_service.settings import load_settings
from ratelimit_service.system.clock import MINUTE
from tests.books import book, whole

THREE = RegionOptions(3)
MINUTELY = "unit: minute, requests_per_unit"


def a_book(limit: str, regions: RegionOptions = THREE, top: str = "", **options: object) -> RuleBook:
    return book(f"{top}{whole(f'rate_limit: {{{limit}}}')}", regions=regions, **options)


def a_rule(limit: str, regions: RegionOptions = THREE) -> Rule:
    return a_book(limit, regions).rules[0]


def a_limit(limit: str, regions: RegionOptions = THREE) -> Limit:
    found = a_rule(limit, regions).limit
    assert found is not None
    return found


def problems(limit: str, regions: RegionOptions = THREE, descriptor: str = "") -> list[tuple[str, str]]:
    """Each as the word that stands at its place, and its message."""
    text = f"domain: shop\ndescriptors:\n- key: user\n  {descriptor or f'rate_limit: {{{limit}}}'}\n"
    with pytest.raises(RulesError) as error:
        book(text, regions=regions)
    lines = text.splitlines()
    words = (re.split("[,}: ]", lines[each.line - 1][each.column - 1 :])[0] for each in error.value.problems)
    return list(zip(words, (each.message for each in error.value.problems), strict=True))


def test_the_first_regions_get_what_is_left_of_a_split() -> None:
    parts = [a_limit(f"{MINUTELY}: 100, regions: split", RegionOptions(3, place)) for place in range(3)]

    assert [limit.requests for limit in parts] == [34, 33, 33]
    assert parts[0].regions == Regions(RegionMode.SPLIT, 3, 100)


@given(data=st.data(), number=st.integers(2, 100))
def test_all_parts_of_a_split_sum_to_the_whole(data: st.DataObject, number: int) -> None:
    requests = data.draw(st.integers(number, 2**31))
    burst = data.draw(st.integers(number, min(2**31, requests * 2**20)))
    most = min(2**30, requests * 2**20)  # a bucket that takes a century to fill is an error
    exceed = data.draw(st.one_of(st.integers(0, most), st.integers(0, 40).map(lambda percent: f"{percent}%")))
    limit = f"{MINUTELY}: {requests}, algorithm: token_bucket, burst: {burst}, exceed: {exceed}, regions: split"
    parts = [a_limit(limit, RegionOptions(number, place)) for place in range(number)]
    one = a_limit(limit, ONE_REGION)

    assert sum(part.requests for part in parts) == one.requests == requests
    assert sum(part.burst for part in parts) == one.burst == burst
    assert sum(part.exceed for part in parts) == one.exceed
    for each in zip(*((part.requests, part.burst, part.exceed) for part in parts), strict=True):
        assert max(each) - min(each) <= 1


def test_a_queue_is_split_by_its_rate_and_places_by_their_number() -> None:
    queue = a_limit(
        "algorithm: leaky_bucket, unit: second, requests_per_unit: 50, queue: {max_delay: 1s}, regions: split"
    )
    (holders,) = book(
        whole("- {key: id, rate_limit: {concurrency: 50, hold: 60s, place: id, regions: split}}"), regions=THREE
    ).rules

    assert (queue.requests, queue.burst) == (17, 18)
    assert holders.limit is not None
    assert holders.limit.requests == 17


@pytest.mark.parametrize(("estimate", "reserves"), [(10, (10, 167)), (200, (200, 200)), (400, (334, 334))])
def test_of_a_split_a_request_reserves_no_more_than_a_region_has_room_for(estimate: int, reserves: object) -> None:
    reserve = f"reserve: {{id: id, hold: 1m, estimate: {estimate}}}"
    rules = f"settle: done\n{whole(f'- {{key: id, rate_limit: {{{MINUTELY}: 1000, regions: split, {reserve}}}}}')}"
    limit = book(rules, regions=THREE).rules[0].limit

    assert limit is not None
    assert isinstance(limit.kind, Reserved)
    assert (limit.kind.estimate, limit.kind.at_most) == reserves


@pytest.mark.parametrize("mode", ["leased", "synced"])
def test_what_regions_lend_or_sync_cannot_be_reserved(mode: str) -> None:
    limit = f"{MINUTELY}: 1000, regions: {mode}, reserve: {{id: id, hold: 1m}}"

    message = f"regions: {mode} is impossible: reserve: any process may settle what another one has reserved"
    with pytest.raises(RulesError, match=f"{message}; write regions: central or regions: split"):
        book(f"settle: done\n{whole(f'- {{key: id, rate_limit: {{{limit}}}}}')}", regions=THREE)


def test_limits_of_a_list_that_are_charged_together_are_split() -> None:
    limits = "rate_limits: [{unit: second, requests_per_unit: 9, regions: split}, {unit: day, requests_per_unit: 90}]"
    first = book(whole(f"- {{key: user, {limits}}}"), regions=THREE).rules[0]

    assert [each.limit and each.limit.requests for each in (first, *first.beside)] == [3, 90]


def test_what_denies_everything_does_so_in_every_region() -> None:
    found = a_book(f"{MINUTELY}: 0, regions: split")

    assert found.rules[0].limit == Limit(0, Unit.MINUTE, MINUTE)
    assert without_effect(found) is None


@pytest.mark.parametrize("mode", ["central", "synced"])
def test_the_whole_limit_is_counted_by_central_and_synced(mode: str) -> None:
    limit = a_limit(f"{MINUTELY}: 1000, regions: {mode}")

    assert limit.requests == 1000
    assert limit.regions == Regions(RegionMode(mode), 3, 1000)


TOO_FEW = "is less than 1 for each of the 3 regions: write 3 or more"
NO_FLOOR = "floor has no meaning without regions: leased"
A_SHARE = "floor must be a share from 1% to 49%, such as 10%, not"


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        (f"{MINUTELY}: 2, regions: split", ("2", f"requests_per_unit {TOO_FEW}")),
        (f"{MINUTELY}: 9, algorithm: token_bucket, burst: 2, regions: split", ("2", f"burst {TOO_FEW}")),
        (f"{MINUTELY}: 9, floor: 10%", ("floor", NO_FLOOR)),
        (f"{MINUTELY}: 9, regions: split, floor: 10%", ("floor", NO_FLOOR)),
        (f"{MINUTELY}: 9, floor: 50%", ("50%", f'{A_SHARE} "50%"')),
        (f"{MINUTELY}: 9, floor: 10", ("10", f'{A_SHARE} "10"')),
        (f"{MINUTELY}: 9, regions: {{}}", ("{", "regions must be text, not a map")),
        ("deny: true, regions: split", ("regions", "regions contradicts deny: remove one of them")),
    ],
)
def test_what_is_wrong_is_told_where_it_stands(limit: str, problem: tuple[str, str]) -> None:
    assert problem in problems(limit)


def test_an_unknown_mode_is_told_with_the_known_ones() -> None:
    known = "leased, central, split, synced"

    assert problems(f"{MINUTELY}: 9, regions: shared") == [("shared", f'regions "shared" is not one of {known}')]


def test_an_elastic_limit_has_a_pool_in_each_region() -> None:
    limit = "unit: second, requests_per_unit: 10, elastic: {pool: p, ceiling: 200%}, regions: split"
    contradiction = "regions contradicts elastic, whose pool each region has for itself: remove one of them"

    assert ("split", contradiction) in problems(limit)


@pytest.mark.parametrize(
    "mode",
    [
        "leased",
        "central",
        "synced",
    ],
)
def test_what_is_charged_together_is_in_one_redis(mode: str) -> None:
    limits = f"rate_limits: [{{{MINUTELY}: 90, regions: {mode}}}, {{unit: day, requests_per_unit: 900}}]"

    ((_, problem),) = problems("", descriptor=limits)

    assert f"regions: {mode} is impossible: limits that are charged together are decided in one step of" in problem
    assert problem.endswith("; write charge: each in the descriptor or regions: split")
    assert book(f"domain: shop\ndescriptors:\n- key: user\n  charge: each\n  {limits}\n", regions=THREE).rules


@pytest.mark.parametrize(
    "limit",
    [
        "algorithm: sliding_log",
        "algorithm: token_bucket, burst: 7",
        "anchor: first_request, exceed: 10%",
        "block_for: 1 hour",
        "algorithm: sub_windows, count_refused: true",
    ],
)
def test_every_way_of_counting_may_be_central(limit: str) -> None:
    regions = a_limit(f"{MINUTELY}: 90, {limit}, regions: central").regions

    assert regions is not None


def test_what_needs_the_home_redis_needs_its_setting() -> None:
    told = {"REGION": "eu", "REGIONS": "eu,us", "REDIS_URL": "redis:6379"}
    limit = f"{MINUTELY}: 90, regions: central"

    assert problems(limit, region_options(load_settings(told)[0])) == [
        ("central", "regions: central needs the Redis that all regions share: set HOME_REDIS_URL")
    ]
    assert a_limit(limit, region_options(load_settings({**told, "HOME_REDIS_URL": "home:6379"})[0])).regions is not None


def test_in_memory_only_split_has_an_effect() -> None:
    in_memory = region_options(load_settings({"REGION": "us", "REGIONS": "eu,us"})[0])

    assert in_memory.place == 1
    assert a_limit(f"{MINUTELY}: 91, regions: split", in_memory).requests == 45
    for mode in set(RegionMode) - {RegionMode.SPLIT}:
        alone = a_book(f"{MINUTELY}: 90, regions: {mode}", in_memory)
        assert alone.rules[0].limit == Limit(90, Unit.MINUTE, MINUTE)
        assert without_effect(alone) is not None


@pytest.mark.parametrize("told", [{}, {"REGION": "eu", "REGIONS": "eu"}])
def test_one_region_has_the_whole_limit_and_is_told_so(told: dict[str, str]) -> None:
    found = a_book(f"{MINUTELY}: 91, regions: split", regions_of(load_settings(told)[0]))

    (rule,) = found.rules
    assert rule.limit == Limit(91, Unit.MINUTE, MINUTE)
    assert lint(found) == []
    (note,) = region_notes(found)
    assert note.message.startswith("regions has no effect on this limit: it needs REGIONS with several names, and")
    assert worst_case(rule) == ("It has no effect here: each region counts by itself, as if there were no others.",)


def test_a_part_may_be_leased_by_processes() -> None:
    found = a_book(f"{MINUTELY}: 3000, lease: auto, regions: split", leases=LeaseOptions(auto=True))

    assert found.rules[0].lease == 50
    assert lint(found) == []


def test_home_lends_what_the_floors_leave() -> None:
    limit = a_limit(f"{MINUTELY}: 1000, algorithm: token_bucket, burst: 105, regions: leased, floor: 10%")

    assert (limit.requests, limit.burst) == (1000, 105)
    assert limit.regions is not None
    assert (limit.regions.mode, limit.regions.number, limit.regions.whole) == (RegionMode.LEASED, 3, 1000)
    home, floor = limit.regions.home, limit.regions.floor
    assert home is not None
    assert (home.requests, home.burst) == (700, 75)
    assert floor == Limit(100, Unit.MINUTE, MINUTE, burst=10, count_refused=False)


def test_home_lends_all_of_a_limit_without_floors() -> None:
    regions = a_limit(f"{MINUTELY}: 1000, regions: leased").regions

    assert regions is not None
    assert regions.home is not None
    assert (regions.home.requests, regions.floor) == (1000, None)


@given(requests=st.integers(100, 2**31), burst=st.integers(100, 2**31), percent=st.integers(1, 33))
def test_floors_and_what_home_lends_sum_to_the_limit(requests: int, burst: int, percent: int) -> None:
    burst = max(burst, requests)
    bucket = f"unit: second, requests_per_unit: {requests}, algorithm: token_bucket, burst: {burst}"
    regions = a_limit(f"{bucket}, regions: leased, floor: {percent}%").regions

    assert regions is not None
    assert regions.home is not None
    assert regions.floor is not None
    assert regions.home.requests + 3 * regions.floor.requests == requests
    assert regions.home.burst + 3 * regions.floor.burst == burst
    assert min(regions.home.requests, regions.home.burst, regions.floor.requests, regions.floor.burst) > 0


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("algorithm: sliding_log", "sliding_log keeps the moment of each request"),
        ("anchor: first_request", "its windows begin with a request"),
        ("exceed: 1", "exceed: which requests are above the limit is known to Redis alone"),
        ("block_for: 1 hour", "block_for: each refused request has to reach Redis"),
        ("algorithm: sub_windows, count_refused: true", "count_refused: each refused request has to reach Redis"),
        (
            "algorithm: sub_windows, parts: 1000",
            "it would be leased for 60 ms at a time, which is too short to ask another region",
        ),
        (
            "algorithm: token_bucket, burst: 6",
            "it would be leased for 15 ms at a time, which is too short to ask another region",
        ),
    ],
)
def test_what_cannot_be_leased_is_told_with_the_fix(limit: str, why: str) -> None:
    assert problems(f"{MINUTELY}: 6000, {limit}, regions: leased") == [
        ("leased", f"regions: leased is impossible: {why}; write regions: central or regions: split")
    ]


def test_a_queue_can_only_be_split() -> None:
    queue = "algorithm: leaky_bucket, unit: minute, requests_per_unit: 90, queue: {max_delay: 1s}"

    assert problems(f"{queue}, regions: leased") == [
        (
            "leased",
            "regions: leased is impossible: queue: each request gets its turn from Redis; write regions: split",
        )
    ]


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        (
            "90, regions: leased, floor: 34%",
            ("34%", "floor: 3 regions keep 102% of the limit, and nothing is left to lease; write 33% or less"),
        ),
        (
            "9, regions: leased, floor: 10%",
            ("10%", "floor: 10% of 9 is less than 1; write 12% or more, or remove it"),
        ),
        ("2, regions: leased", ("2", f"requests_per_unit {TOO_FEW}")),
    ],
)
def test_floors_leave_something_to_lend(limit: str, problem: tuple[str, str]) -> None:
    assert problems(f"{MINUTELY}: {limit}") == [problem]


@pytest.mark.parametrize("limit", ["algorithm: token_bucket", "algorithm: sub_windows", "anchor: first_request"])
def test_only_windows_that_all_regions_begin_together_are_synced(limit: str) -> None:
    ((_, problem),) = problems(f"{MINUTELY}: 90, {limit}, regions: synced")

    assert "regions: synced is impossible: " in problem
    assert problem.endswith("; write regions: central or regions: split")


def test_processes_do_not_lease_what_regions_lease() -> None:
    found = a_book(f"{MINUTELY}: 3000, lease: auto, regions: leased", leases=LeaseOptions(auto=True))

    assert found.rules[0].lease == 0
    assert [(warning.kind, warning.message) for warning in lint(found)] == [
        ("lease", "this limit does not lease: regions: leased: processes do not lease from what regions share")
    ]


def test_what_is_near_a_limit_that_home_lends_is_not_known_in_a_region() -> None:
    assert a_rule(f"{MINUTELY}: 100, regions: leased").near == 100
    assert a_rule(f"{MINUTELY}: 100, regions: split").near == 27


def test_a_small_limit_is_better_central() -> None:
    assert [(warning.kind, warning.message) for warning in lint(a_book(f"{MINUTELY}: 49, regions: leased"))] == [
        ("regions", "a limit below 50 has too little to lease: write regions: central")
    ]
    assert lint(a_book(f"{MINUTELY}: 50, regions: leased")) == []


def test_short_windows_are_better_leased() -> None:
    (warning,) = lint(a_book("unit: 5 seconds, requests_per_unit: 100, regions: synced"))

    assert warning.kind == "regions"
    assert warning.message.startswith("in windows of 5 s regions learn of each other too late")


def test_the_first_limit_of_a_domain_that_waits_for_home_tells_envoys_timeout() -> None:
    limits = f"[{{{MINUTELY}: 90, regions: central}}, {{unit: day, requests_per_unit: 900, regions: leased}}]"
    found = book(f"domain: shop\ncharge: each\ndescriptors: [{{key: user, rate_limits: {limits}}}]\n", regions=THREE)

    (note,) = region_notes(found)

    assert (note.line, note.column) == (3, 41)
    assert "Envoy's filter needs a timeout longer than the way there and back, such as timeout: 0.5s" in note.message


WAITS = "A hit waits for the home Redis, the way there and back, when nothing is left of this region's lease"
CUT_OFF = "When this region is cut off from home,"
EXCESS = "of a steady excess, what comes in twice REGION_SYNC_SECONDS and the ways to home"


@pytest.mark.parametrize(
    ("limit", "words", "worst"),
    [
        (
            f"{MINUTELY}: 100, regions: split",
            "34 requests per minute (split, of 100 for 3 regions)",
            [
                "All 3 regions together never allow more than one limit of 100 does.",
                "No hit waits for another region.",
                "What one region leaves idle is not used by the others. When it is cut off, nothing changes.",
            ],
        ),
        (
            f"{MINUTELY}: 100, regions: central, on_store_failure: open",
            "100 requests per minute (open without Redis, central, for 3 regions)",
            [
                "All 3 regions together never allow more than one limit of 100 does.",
                "Every hit waits for the home Redis: the way there and back.",
                f"{CUT_OFF} on_store_failure answers: open.",
            ],
        ),
        (
            f"{MINUTELY}: 100, regions: leased",
            "100 requests per minute (leased, for 3 regions)",
            [
                "All 3 regions together never allow more than one limit of 100 does.",
                f"{WAITS}.",
                f"{CUT_OFF} it spends its lease, then on_store_failure answers.",
            ],
        ),
        (
            f"{MINUTELY}: 100, regions: leased, floor: 10%",
            "100 requests per minute (leased, for 3 regions, with a floor of 10 each)",
            [
                "All 3 regions together never allow more than one limit of 100 does.",
                f"{WAITS} and of its floor.",
                f"{CUT_OFF} it spends its lease, then its floor, 10 per minute, and denies the rest.",
            ],
        ),
        (
            f"{MINUTELY}: 100, regions: synced",
            "100 requests per minute (synced, for 3 regions)",
            [
                f"All 3 regions together may allow 200 above 100 if flooded at once; {EXCESS}.",
                "No hit waits for another region.",
                f"{CUT_OFF} it goes on with what it knows of the others.",
            ],
        ),
    ],
)
def test_the_worst_case_is_told_in_words(limit: str, words: str, worst: list[str]) -> None:
    rule = a_rule(limit)

    assert rule_in_full(rule) == words
    assert list(worst_case(rule)) == worst
