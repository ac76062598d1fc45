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
    assert found.limit == "1 request per day"
    assert found.counter == "shop|path=/x.png|fixed_window/86400000000"
    assert found.metric == ("shop", "path_*.png")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("{unlimited: true}", "unlimited"),
        ("{unit: day, requests_per_unit: 0}", "no requests at all (0 per day)"),
        ("{unit: second, requests_per_unit: 1}", "1 request per second"),
        ("{unit: year, requests_per_unit: 1_000_000}", "1,000,000 requests per year"),
    ],
)
def test_a_limit_is_said_in_words(limit: str, words: str) -> None:
    rules = book(f"domain: d\ndescriptors:\n- key: a\n  rate_limit: {limit}\n")

    assert explain(rules, "d", (("a", "1"),)).limit == words


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
    assert found.rule is None


PARTS = st.sampled_from(
    ["user", "anna", "root", "action", "pay", "path", "/api/x", "/abc", "x.png", "deep", "er", "x", ""]
)


@given(st.lists(st.tuples(PARTS, PARTS), max_size=3).map(tuple))
def test_explain_ends_where_match_ends(entries: tuple[tuple[str, str], ...]) -> None:
    rules = book(SHOP)

    assert explain(rules, "shop", entries).rule is rules.match("shop", entries)
