"""`default`: the limit of a domain for what no descriptor fits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import RulesError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.reasons import explain, explanation_as_json, why_unlimited
from ratelimit_service.rules.secret import HashValue
from ratelimit_service.stores.memory import MemoryStore
from tests.books import book, matched
from tests.clocks import Clock
from tests.shop import entries_of

RULES = """\
    domain: shop
    otherwise:
      OPTIONS
      rate_limit: {unit: day, requests_per_unit: 5}
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 10}}
      - {key: user, value: root}
      - key: plan
        value: free
        descriptors:
          - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
          - {key: user, value: root}
    """


def rules(options: str = "", **more: Any) -> RuleBook:
    return book(RULES.replace("OPTIONS", options), **more)


def found(book: RuleBook, text: str) -> tuple[str, str] | None:
    return matched(book, "shop", entries_of(text))


CASES = [
    ("user=ada", ("shop.user", "shop|user=ada")),
    ("user=root", None),
    ("plan=free user=ada", ("shop.plan_free.user", "shop|plan=free|user=ada")),
    ("plan=free user=root", None),
    ("plan=free", ("shop.default", "shop|plan=free")),
    ("plan=free path=/", ("shop.default", "shop|plan=free|path=/")),
    ("plan=paid", ("shop.default", "shop|plan=paid")),
    ("path=x", ("shop.default", "shop|path=x")),
    ("user=ada path=x", ("shop.default", "shop|user=ada|path=x")),
    ("user=root path=x", ("shop.default", "shop|user=root|path=x")),
    ("", ("shop.default", "shop")),
]


@pytest.mark.parametrize(("entries", "expected"), CASES)
def test_it_applies_to_what_no_descriptor_fits_and_to_no_exemption(
    entries: str, expected: tuple[str, str] | None
) -> None:
    assert found(rules(), entries) == expected


@pytest.mark.parametrize(("entries", "expected"), CASES)
def test_it_applies_in_domains_with_secret_values_too(entries: str, expected: tuple[str, str] | None) -> None:
    secret = "descriptors:\n      - {key: token, hash_values: true, rate_limit: {unit: day, requests_per_unit: 1}}"
    text = RULES.replace("OPTIONS", "").replace("descriptors:", secret, 1)
    hashed = book(text, hash_value=HashValue("a key"))

    assert found(hashed, entries) == expected


def test_all_share_one_counter_with_share_threshold() -> None:
    shared = rules("share_threshold: true")

    assert found(shared, "path=x") == ("shop.default", "shop|~default")
    assert found(shared, "plan=free path=x") == ("shop.default", "shop|~default")
    assert found(shared, "") == ("shop.default", "shop|~default")
    assert found(shared, "user=ada") == ("shop.user", "shop|user=ada")


def test_a_domain_may_have_nothing_but_a_default() -> None:
    alone = book("domain: shop\notherwise: {rate_limit: {unit: day, requests_per_unit: 5}}")

    assert found(alone, "user=ada") == ("shop.default", "shop|user=ada")


def test_other_domains_have_none() -> None:
    assert rules().match("api", entries_of("path=x")) is None


def answers(book: RuleBook, *requests: str) -> list[bool]:
    limiter = Limiter(MemoryStore(1000, Clock()))
    limiter.book = book
    decided = []
    for text in requests:
        plan = limiter.plan(Request("shop", (Descriptor(entries_of(text)),)))
        verdict = limiter.decide_now(plan, lambda verdict, _: verdict, b"")
        assert isinstance(verdict, Verdict)
        decided.append(verdict.allowed)
    assert limiter.domains.of("shop").unmatched == 0
    return decided


def test_each_list_of_entries_has_its_own_counter_or_all_have_one() -> None:
    asked = ["path=x"] * 6 + ["path=y"]

    assert answers(rules(), *asked) == [True] * 5 + [False, True]
    assert answers(rules("share_threshold: true"), *asked) == [True] * 5 + [False, False]


@pytest.mark.parametrize(
    ("limit", "allowed"),
    [("{deny: true}", False), ("{allow: true}", True), ("{unlimited: true}", True)],
)
def test_what_no_descriptor_fits_may_be_denied_or_allowed(limit: str, allowed: bool) -> None:
    text = RULES.replace("OPTIONS", "").replace("{unit: day, requests_per_unit: 5}", limit)

    assert answers(book(text), "path=x", "user=ada", "user=root") == [allowed, True, True]


def test_it_has_the_options_of_a_descriptor_and_the_defaults_of_the_file() -> None:
    text = RULES.replace("domain: shop", "domain: shop\n    charge: together\n    defaults: {exceed: 2}").replace(
        "OPTIONS", "shadow_mode: true\n      quota_mode: true\n      metadata: {a: 1}"
    )
    default = book(text).domains["shop"].default

    assert default is not None
    assert (default.shadow, default.quota, default.metadata, default.together) == (True, True, {"a": 1}, 2)
    assert default.limit is not None
    assert default.limit.exceed == 2


def test_it_may_have_several_limits() -> None:
    several = "rate_limits: [{unit: second, requests_per_unit: 1}, {unit: day, requests_per_unit: 5}]"
    text = RULES.replace("OPTIONS\n      rate_limit: {unit: day, requests_per_unit: 5}", several)

    assert [".".join(rule.path) for rule in book(text).rules if rule.default] == [
        "shop.default.per_second",
        "shop.default.per_day",
    ]
    assert answers(book(text), "path=x", "path=x") == [True, False]


def test_its_metrics_have_values_only_on_demand() -> None:
    paths = []
    for options in ("", "detailed_metric: true", "detailed_metric: true\n      share_threshold: true"):
        limiter = Limiter(MemoryStore(1000, Clock()))
        limiter.book = rules(options)
        limiter.plan(Request("shop", (Descriptor(entries_of("plan=free path=x")),)))
        default = limiter.book.rules[-1]
        paths.append([path for path, _ in default.tallies.items()] if default.tallies is not None else [default.path])

    assert paths == [[("shop", "default")], [("shop", "default", "plan_free", "path_x")], [("shop", "default")]]


def test_its_tally_outlives_a_reload() -> None:
    old = rules()
    new = rules("shadow_mode: true", previous=old)

    assert new.rules[-1].default
    assert new.rules[-1].tally is old.rules[-1].tally


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("otherwise: {}", "1.yaml:2:1: otherwise has no rate_limit; write one, or remove otherwise"),
        ("otherwise: 5", "1.yaml:2:12: otherwise must be a map, not the number 5"),
        (
            "otherwise: {unit: day}",
            "1.yaml:2:13: unit does not belong in otherwise, but in rate_limit or in calendar or in pools",
        ),
        (
            "otherwise: {key: a, rate_limit: {deny: true}}",
            "1.yaml:2:13: key does not belong in otherwise, but in a descriptor or in lookup",
        ),
        (
            "otherwise: {rate_limit: {deny: true}}\ndescriptors: [{key: default}]",
            '1.yaml:3:16: descriptor "default" has the name of the domain\'s default, at 1.yaml:2:13',
        ),
    ],
)
def test_a_wrong_default_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(RulesError) as refused:
        book(f"domain: shop\n{text}\n")

    assert problem in list(map(str, refused.value.problems))


def test_a_domain_of_several_files_has_one_default() -> None:
    more = "domain: shop\notherwise: {rate_limit: {deny: true}}\n"
    plain = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n"

    with pytest.raises(RulesError) as refused:
        book(more, more, merge_domains=True)
    joined = book(plain, more, merge_domains=True)

    assert list(map(str, refused.value.problems)) == ['2.yaml:2:1: domain "shop" has a default already, at 1.yaml:2:13']
    assert [rule.path for rule in joined.rules] == [("shop", "user"), ("shop", "default")]


def explained(book: RuleBook, text: str) -> dict[str, Any]:
    (descriptor,) = explanation_as_json(explain(book, Request("shop", (Descriptor(entries_of(text)),))), 0)[
        "descriptors"
    ]
    return dict(descriptor)


@pytest.mark.parametrize(
    ("entries", "outcome"),
    [
        ("path=x", "No descriptor fits entry 1 of 1: the default at 1.yaml:4:3 applies: 5 requests per day."),
        (
            "plan=free",
            "The descriptor that the last entry matched has no rate_limit: the default at 1.yaml:4:3 applies",
        ),
        ("user=root", "No limit: the descriptor that the last entry matched has no rate_limit."),
        ("user=ada", "The rule at 1.yaml:6:17 applies: 10 requests per day."),
    ],
)
def test_an_explanation_says_why_it_applies(entries: str, outcome: str) -> None:
    assert explained(rules(), entries)["outcome"].startswith(outcome)


def test_an_explanation_has_its_counter_and_its_name_and_what_was_meant() -> None:
    found = explained(rules("detailed_metric: true"), "user=ada plan=free")
    (rule,) = found["rules"]

    assert rule["counter"] == "shop|user=ada|plan=free|fixed_window/86400000000"
    assert rule["metric"] == "shop.default.user_ada.plan_free"
    assert found["hints"][0].startswith("In the order plan=free user=ada the rule at 1.yaml:11:21 applies")


def test_a_replaced_default_is_named_as_the_reason() -> None:
    assert why_unlimited(rules(), "shop", entries_of("path=x")) == (
        "another limit of the request replaces the rule at 1.yaml:4:3"
    )


def test_an_exemption_from_the_default_is_no_warning() -> None:
    plain = "domain: shop\ndescriptors: [{key: path}]\n"

    assert [warning.kind for warning in lint(book(plain))] == ["no-effect"]
    assert lint(book(plain + "otherwise: {rate_limit: {deny: true}}")) == []


KEYS = st.sampled_from(["user", "plan", "path"])
VALUES = st.sampled_from(["ada", "root", "free", ""])


@given(st.lists(st.tuples(KEYS, VALUES), max_size=3))
def test_it_applies_where_a_book_without_it_counts_an_unmatched_descriptor(entries: list[tuple[str, str]]) -> None:
    asked = tuple(entries)
    plain = book("\n".join(line for number, line in enumerate(RULES.splitlines()) if number not in {1, 2, 3}))
    ours, theirs = rules().match("shop", asked), plain.match("shop", asked)

    if theirs is not None:
        assert ours is not None
        assert ours.path == theirs.path
    elif plain.exempts("shop", asked):
        assert ours is None
    else:
        assert ours is not None
        assert ours.default
