"""Which limits lease, and how much of each a process may hold."""

import pytest

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.leasing import NO_LEASES, LeaseOptions, lease_options
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.settings import load_settings

AUTO = LeaseOptions(auto=True)


def book(limit: str, leases: LeaseOptions = NO_LEASES, top: str = "") -> RuleBook:
    """One descriptor with this limit."""
    text = f"domain: shop\n{top}descriptors:\n  - key: user\n    {limit}\n"
    return parse([YamlText("shop.yaml", text.encode())], leases=leases)


def held(limit: str, leases: LeaseOptions = NO_LEASES, top: str = "") -> int:
    """The most units that a process may hold of a counter of this limit."""
    return book(f"rate_limit: {{unit: minute, {limit}}}", leases, top).rules[0].lease


@pytest.mark.parametrize(
    ("limit", "units"),
    [
        ("requests_per_unit: 1000", 50),
        ("requests_per_unit: 80", 4),
        ("requests_per_unit: 79", 0),
        ("requests_per_unit: 1000, lease: off", 0),
        ("requests_per_unit: 1000, algorithm: token_bucket", 50),
        ("requests_per_unit: 1000, algorithm: token_bucket, burst: 100", 5),
        ("requests_per_unit: 1000, algorithm: leaky_bucket", 50),
        ("requests_per_unit: 1000, algorithm: sliding_window", 50),
        ("requests_per_unit: 1000, algorithm: sub_windows", 50),
        ("requests_per_unit: 1000, algorithm: sub_windows, count_refused: true", 0),
        ("requests_per_unit: 1000, algorithm: sliding_log", 0),
        ("requests_per_unit: 1000, anchor: first_request", 0),
        ("requests_per_unit: 1000, exceed: 1", 0),
        ("requests_per_unit: 1000, block_for: 1 hour", 0),
        ("requests_per_unit: 0", 0),
    ],
)
def test_a_process_may_hold_a_share_of_what_leases(limit: str, units: int) -> None:
    assert held(limit, AUTO) == units
    assert held(limit) == 0


def test_a_rule_says_for_itself_and_its_file_for_all() -> None:
    assert held("requests_per_unit: 1000, lease: auto") == 50
    assert held("requests_per_unit: 1000", top="defaults: {lease: auto}\n") == 50
    assert held("requests_per_unit: 1000, lease: off", top="defaults: {lease: auto}\n") == 0
    assert held("requests_per_unit: 1000", AUTO, top="defaults: {lease: off}\n") == 0


def test_a_fixed_window_that_leases_counts_all_denied_hits_only_if_its_rule_or_its_file_says_so() -> None:
    """Else the one that crosses the limit."""

    def counts(limit: str, leases: LeaseOptions = AUTO, top: str = "") -> bool:
        rule = book(f"rate_limit: {{unit: minute, requests_per_unit: {limit}}}", leases, top).rules[0]
        assert rule.limit is not None
        return rule.limit.count_refused and not rule.limit.crossing_only

    assert not counts("1000")
    assert not counts("1000, lease: auto", NO_LEASES)
    assert counts("1000, count_refused: true")
    assert counts("1000", top="defaults: {count_refused: true}\n")
    assert counts("1000", NO_LEASES)
    assert counts("1000, lease: off")
    assert counts("79")
    assert counts("1000, anchor: first_request")


def test_a_calendar_quota_leases() -> None:
    (rule,) = book("rate_limit: {calendar: {unit: day}, requests_per_unit: 1000}", AUTO).rules

    assert rule.lease == 50


def test_limits_of_a_list_lease_if_each_is_charged_alone() -> None:
    limits = "rate_limits: [{unit: second, requests_per_unit: 100}, {unit: day, requests_per_unit: 1000}]"
    together = book(limits, AUTO).rules[0]
    alone = book(f"charge: each\n    {limits}", AUTO).rules[0]

    assert [rule.lease for rule in (together, *together.beside)] == [0, 0]
    assert [rule.lease for rule in (alone, *alone.beside)] == [5, 50]


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("requests_per_unit: 79", "5 % of it, which a process may hold, is less than 4"),
        ("requests_per_unit: 1000, algorithm: sliding_log", "sliding_log keeps the moment of each request"),
        ("requests_per_unit: 1000, anchor: first_request", "its windows begin with a request"),
        ("requests_per_unit: 1000, exceed: 5", "exceed: which requests are above the limit is known to Redis alone"),
        ("requests_per_unit: 1000, block_for: 1 hour", "block_for: each refused request has to reach Redis"),
        (
            "requests_per_unit: 1000, algorithm: token_bucket, count_refused: true",
            "count_refused: each refused request has to reach Redis",
        ),
    ],
)
def test_a_lease_that_there_never_is_has_a_warning(limit: str, why: str) -> None:
    found = lint(book(f"rate_limit: {{unit: minute, {limit}, lease: auto}}"))

    assert [(warning.kind, warning.line, warning.message) for warning in found] == [
        ("lease", 4, f"this limit does not lease: {why}")
    ]
    assert lint(book(f"rate_limit: {{unit: minute, {limit}}}", AUTO)) == []


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("elastic: {pool: all, ceiling: 2000}", "elastic: what is allowed is charged to its pool too"),
        ("algorithm: leaky_bucket, queue: {max_delay: 1s}", "queue: each request gets its turn from Redis"),
    ],
)
def test_what_is_decided_with_more_than_its_counter_does_not_lease(limit: str, why: str) -> None:
    top = "pools: [{name: all, unit: minute, requests_per_unit: 3000}]\n" if "pool" in limit else ""
    found = lint(book(f"rate_limit: {{unit: minute, requests_per_unit: 1000, {limit}, lease: auto}}", top=top))

    assert f"this limit does not lease: {why}" in [warning.message for warning in found]
    assert held(f"requests_per_unit: 1000, {limit}", AUTO, top) == 0


def test_places_do_not_lease() -> None:
    limit = "rate_limit: {concurrency: 1000, hold: 60s, place: user}"

    assert [rule.lease for rule in book(limit, AUTO).rules] == [0]


def test_the_settings_say_how_much_and_for_whom() -> None:
    def options(**settings: str) -> LeaseOptions:
        return lease_options(load_settings({"REDIS_URL": "127.0.0.1:1", **settings})[0])

    assert options() == LeaseOptions(auto=False, share=0.05)
    assert options(LEASES="auto", LEASE_MAX_SHARE="2.5%") == LeaseOptions(auto=True, share=0.025)
    assert options(KEY_FORMAT="envoyproxy").share == 0
    assert options(BACKEND_TYPE="memory").share == 0


def test_counters_in_memory_have_no_leases_and_no_warnings_of_them() -> None:
    nothing = LeaseOptions(auto=True, share=0.0)

    assert held("requests_per_unit: 1000, lease: auto", nothing) == 0
    assert lint(book("rate_limit: {unit: minute, requests_per_unit: 1000, lease: auto}", nothing)) == []


@pytest.mark.parametrize("share", ["5", "0", "0%", "101%", "-1%", "x%", ""])
def test_a_share_is_more_than_nothing_and_no_more_than_all(share: str) -> None:
    with pytest.raises(Exception, match="LEASE_MAX_SHARE"):
        load_settings({"LEASE_MAX_SHARE": share})
