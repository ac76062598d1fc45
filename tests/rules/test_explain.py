"""`explain` retells the walk that `match` takes, with reasons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.rules.explain import explain
from tests.books import book
from tests.rules.test_match import SHOP


def test_each_candidate_has_its_reason_in_the_order_of_trying() -> None:
    found = explain(book(SHOP), "shop", (("path", "/x.png"),))

    assert [(one.kind, one.name, one.chosen, one.reason) for one in found.steps[0].candidates] == [
        ("exact", "path_/x.png", False, "there is none"),
        ("wildcard", "path_/api/*", False, "does not fit"),
        ("wildcard", "path_/api/v1/*", False, "does not fit"),
        ("wildcard", "path_*.png", True, "fits"),
        ("wildcard", "path_/a*b*c", False, "not tried: an earlier one fits"),
        ("wildcard", "empty_*", False, "not tried: an earlier one fits"),
        ("wildcard", "x*", False, "not tried: an earlier one fits"),
        ("key", "path", False, "there is none"),
    ]


def test_the_rule_comes_with_its_place_limit_counter_and_metric() -> None:
    found = explain(book(SHOP), "shop", (("path", "/x.png"),))

    assert found.outcome == "The rule at 1.yaml:22:5 applies: 1 request per day."
    (met,) = found.met
    assert met.limit == "1 request per day"
    assert met.counter == "shop|path=/x.png|fixed_window/86400000000"
    assert met.metric == ("shop", "path_*.png")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("{unlimited: true}", "unlimited"),
        ("{unit: day, requests_per_unit: 0}", "no requests at all (0 per day)"),
        ("{unit: second, requests_per_unit: 1}", "1 request per second"),
        ("{unit: year, requests_per_unit: 1_000_000}", "1,000,000 requests per year"),
        ("{unit: 5 minutes, requests_per_unit: 3}", "3 requests per 5 minutes"),
        ("{unit: second, requests_per_unit: 3, exceed: 50%}", "3 requests per second (may exceed by 1)"),
        (
            "{unit: second, requests_per_unit: 3, anchor: first_request, count_refused: false}",
            "3 requests per second (from the first request, refused do not count)",
        ),
        ("{unit: day, requests_per_unit: 3, algorithm: sliding_window}", "3 requests per day (sliding window)"),
        (
            "{unit: day, requests_per_unit: 3, algorithm: sub_windows, count_refused: true}",
            "3 requests per day (sub windows, 10 parts, refused count too)",
        ),
        (
            "{unit: day, requests_per_unit: 3, algorithm: token_bucket, burst: 2000}",
            "3 requests per day (token bucket, burst 2,000)",
        ),
    ],
)
def test_a_limit_is_said_in_words(limit: str, words: str) -> None:
    rules = book(f"domain: d\ndescriptors:\n- key: a\n  rate_limit: {limit}\n")

    assert [met.limit for met in explain(rules, "d", (("a", "1"),)).met] == [words]


def test_of_several_limits_each_has_its_counter_and_metric() -> None:
    rules = book("""\
        domain: d
        charge: together
        descriptors:
          - key: a
            rate_limits:
              - {unit: second, requests_per_unit: 10}
              - {unit: day, requests_per_unit: 1000}
        """)

    found = explain(rules, "d", (("a", "1"),))

    assert found.outcome == (
        "The 2 limits at 1.yaml:6:9 apply: "
        "10 requests per second (charged together); 1,000 requests per day (charged together)."
    )
    assert [(met.counter, met.metric) for met in found.met] == [
        ("d|a=1|fixed_window/1000000", ("d", "a", "per_second")),
        ("d|a=1|fixed_window/86400000000", ("d", "a", "per_day")),
    ]


@pytest.mark.parametrize(
    ("domain", "entries", "outcome"),
    [
        ("mail", [("user", "x")], 'No limit: there is no such domain. There are: "shop".'),
        ("shop", [("other", "x")], "No limit: no descriptor fits entry 1 of 1."),
        ("shop", [("user", "anna"), ("a", "b")], "No limit: no descriptor fits entry 2 of 2."),
        ("shop", [("user", "root")], "No limit: the descriptor that the last entry met has no rate_limit."),
    ],
)
def test_what_is_not_limited_says_why(domain: str, entries: list[tuple[str, str]], outcome: str) -> None:
    found = explain(book(SHOP), domain, tuple(entries))

    assert found.outcome == outcome
    assert found.met == ()


PARTS = st.sampled_from(
    ["user", "anna", "root", "action", "pay", "path", "/api/x", "/abc", "x.png", "deep", "er", "x", ""]
)


@given(st.lists(st.tuples(PARTS, PARTS), max_size=3).map(tuple))
def test_explain_ends_where_match_ends(entries: tuple[tuple[str, str], ...]) -> None:
    rules = book(SHOP)

    rule = rules.match("shop", entries)
    assert [met.rule for met in explain(rules, "shop", entries).met] == ([] if rule is None else [rule])
