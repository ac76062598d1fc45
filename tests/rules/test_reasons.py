"""`explain` retells the walk that `match` takes, with reasons."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.reasons import DescriptorExplanation, RequestExplanation, charged_rules, explain
from ratelimit_service.rules.rule import Entries
from ratelimit_service.stores.memory import MemoryStore
from tests.books import book
from tests.clocks import Clock
from tests.rules.test_match import SHOP
from tests.stores.test_same_answers import a_book, a_file, a_request


def explained(
    rules: RuleBook, *descriptors: Entries, domain: str = "shop", override: Limit | None = None
) -> RequestExplanation:
    """Of a request with these descriptors."""
    return explain(rules, Request(domain, [Descriptor(entries, override=override) for entries in descriptors]))


def of_one(
    rules: RuleBook, entries: Entries, domain: str = "shop", override: Limit | None = None
) -> DescriptorExplanation:
    """Of a request with one descriptor."""
    (found,) = explained(rules, entries, domain=domain, override=override).descriptors
    return found


def test_each_candidate_has_its_reason_in_the_order_of_trying() -> None:
    found = of_one(book(SHOP), (("path", "/x.png"),))

    assert [(one.kind, one.name, one.chosen, one.reason) for one in found.steps[0].candidates] == [
        ("exact", "path_/x.png", False, "there is none"),
        ("wildcard", "path_/api/*", False, "does not fit"),
        ("wildcard", "path_/api/v1/*", False, "does not fit"),
        ("wildcard", "path_*.png", True, "fits"),
        ("wildcard", "path_/a*b*c", False, "not tried: an earlier one fits"),
        ("key", "path", False, "there is none"),
    ]


def test_a_key_with_a_star_is_tried_as_the_wildcard_that_it_is() -> None:
    daily = "rate_limit: {unit: day, requests_per_unit: 1}"
    rules = book(f"domain: shop\ndescriptors: [{{key: 'k*', {daily}}}, {{key: 'k*', value: '*x', {daily}}}]\n")

    found = of_one(rules, (("k*", "x"),))

    assert [(one.kind, one.name, one.chosen, one.reason) for one in found.steps[0].candidates] == [
        ("exact", "k*_x", False, "there is none"),
        ("wildcard", "k*", True, "fits"),
        ("wildcard", "k*_*x", False, "not tried: an earlier one fits"),
    ]


def test_the_rule_comes_with_its_place_limit_counter_and_metric() -> None:
    found = of_one(book(SHOP), (("path", "/x.png"),))

    assert found.outcome == "The rule at 1.yaml:22:5 applies: 1 request per day."
    (matched,) = found.matched
    assert matched.limit == "1 request per day"
    assert matched.counter == "shop|path=/x.png|fixed_window/86400000000"
    assert matched.metric == ("shop", "path_*.png")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("{unlimited: true}", "unlimited"),
        ("{allow: true}", "unlimited"),
        ("{deny: true}", "always denied"),
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
            "{unit: minute, requests_per_unit: 3, block_for: 15 minutes}",
            "3 requests per minute (a denial blocks for 15 min)",
        ),
        (
            "{unit: minute, requests_per_unit: 3, block_for: 15 minutes, block_up_to: day}",
            "3 requests per minute (a denial blocks for 15 min, doubling up to 1 d)",
        ),
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

    assert [matched.limit for matched in of_one(rules, (("a", "1"),), "d").matched] == [words]


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

    found = of_one(rules, (("a", "1"),), "d")

    assert found.outcome == (
        "The 2 limits at 1.yaml:6:9 apply: "
        "10 requests per second (charged together); 1,000 requests per day (charged together)."
    )
    assert [(matched.counter, matched.metric) for matched in found.matched] == [
        ("d|a=1|fixed_window/1000000", ("d", "a", "per_second")),
        ("d|a=1|fixed_window/86400000000", ("d", "a", "per_day")),
    ]


@pytest.mark.parametrize(
    ("entries", "outcome"),
    [
        ([("other", "x")], "No limit: no descriptor fits entry 1 of 1."),
        ([("user", "anna"), ("a", "b")], "No limit: no descriptor fits entry 2 of 2."),
        ([("user", "root")], "No limit: the descriptor that the last entry matched has no rate_limit."),
    ],
)
def test_what_is_not_limited_says_why(entries: list[tuple[str, str]], outcome: str) -> None:
    found = of_one(book(SHOP), tuple(entries))

    assert found.outcome == outcome
    assert found.matched == ()


@pytest.mark.parametrize(
    ("domain", "problem"),
    [
        ("mail", 'No limit: there is no domain "mail"; there are: "shop".'),
        ("shopp", 'No limit: there is no domain "shopp"; did you mean shop?'),
    ],
)
def test_a_domain_that_there_is_not_is_told_with_those_that_there_are(domain: str, problem: str) -> None:
    found = explained(book(SHOP), (("user", "x"),), domain=domain)

    assert (found.problem, found.descriptors) == (problem, ())


PLANS = """
    domain: shop
    descriptors:
      - key: plan
        value: free
        descriptors:
          - key: user
            rate_limit: {unit: day, requests_per_unit: 10, name: base}
            descriptors:
              - key: path
                descriptors:
                  - {key: method, value: GET, rate_limit: {unit: day, requests_per_unit: 9}}
      - {key: login, rate_limit: {unit: minute, requests_per_unit: 5}}
      - {key: vip, rate_limit: {unit: minute, requests_per_unit: 50, replaces: [{name: base}]}}
      - {key: free, rate_limit: {unlimited: true, replaces: [{name: base}]}}
    """


@pytest.mark.parametrize(
    ("entries", "hint"),
    [
        (
            [("user", "ada"), ("plan", "free")],
            (
                "In the order plan=free user=ada the rule at 1.yaml:8:9 applies: "
                "entries are matched in the order of the file."
            ),
        ),
        (
            [("login", "ada"), ("path", "/x")],
            "The rule at 1.yaml:13:18 ends with entry 1: it applies to login=ada alone, in a descriptor of its own.",
        ),
        (
            [("plan", "free")],
            "There are rules with more entries: after plan=free come user (1.yaml:8:9).",
        ),
        (
            [("plan", "free"), ("user", "ada"), ("path", "/x")],
            "There are rules with more entries: after plan=free user=ada path=/x come method_GET (1.yaml:12:43).",
        ),
        ([("logn", "ada")], 'Did you mean "login" (1.yaml:13:6)?'),
        ([("plan", "fre")], 'Did you mean "plan_free" (1.yaml:4:5)?'),
        ([("zzz", "1")], 'At this level there are "plan_free", "login", "vip", "free".'),
    ],
)
def test_the_classical_mistakes_have_their_hints(entries: list[tuple[str, str]], hint: str) -> None:
    assert of_one(book(PLANS), tuple(entries)).hints == (hint,)


def test_what_is_limited_or_exempt_has_no_hint() -> None:
    assert of_one(book(PLANS), (("login", "ada"),)).hints == ()
    assert of_one(book(SHOP), (("user", "root"),)).hints == ()


def test_a_rule_that_another_one_of_the_request_replaces_says_so() -> None:
    rules = book(PLANS)
    base, vip = (("plan", "free"), ("user", "ada")), (("vip", "ada"),)

    found = explained(rules, base, vip)

    replaced = "and is replaced by the one at 1.yaml:14:16, which the request matches too."
    assert [explanation.outcome for explanation in found.descriptors] == [
        f"No limit: the rule at 1.yaml:8:9 fits, {replaced}",
        "The rule at 1.yaml:14:16 applies: 50 requests per minute.",
    ]
    assert [(index, matched.rule.replaces) for index, _, matched in charged_rules(found)] == [(1, frozenset({"base"}))]
    assert of_one(rules, base).outcome == "The rule at 1.yaml:8:9 applies: 10 requests per day."
    assert "which the request matches too" in explained(rules, base, (("free", "x"),)).descriptors[0].outcome


def test_of_a_list_only_the_replaced_limit_does_not_apply() -> None:
    rules = book("""
        domain: shop
        descriptors:
          - key: a
            rate_limits: [{unit: day, requests_per_unit: 1, name: daily}, {unit: hour, requests_per_unit: 1}]
          - {key: b, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: daily}]}}
        """)

    found = explained(rules, (("a", "x"),), (("b", "x"),))

    assert found.descriptors[0].outcome.endswith(
        'But "daily" is replaced by the one at 1.yaml:6:14, which the request matches too.'
    )
    assert [matched.counter for _, _, matched in charged_rules(found)] == [
        "shop|a=x|fixed_window/3600000000",
        "shop|b=x|fixed_window/86400000000",
    ]


def test_a_limit_that_came_with_the_request_stands_in_for_the_rule() -> None:
    ten = Limit(10, Unit.MINUTE, Unit.MINUTE.window)
    fifty = Limit(50, Unit.DAY, Unit.DAY.window)

    alike, other, alone = (
        of_one(book(PLANS), ((key, "ada"),), override=limit)
        for key, limit in (("login", ten), ("login", fifty), ("nobody", ten))
    )

    assert alike.outcome == (
        "The limit that came with the request applies in place of the rule at 1.yaml:13:18: 10 requests per minute."
    )
    assert alike.matched[0].counter == "shop|login=ada|fixed_window/60000000"
    assert alike.matched[0].metric == ("shop", "login_ada")
    assert "they share the counter" in alike.hints[0]
    assert other.hints == ()
    assert alone.outcome == "The limit that came with the request applies: 10 requests per minute."


def test_of_many_wildcards_ten_are_told_and_the_one_that_fits() -> None:
    many = "\n".join(f"- {{key: k, value: {number}x*}}" for number in range(1000))
    rules = book(f"domain: d\ndescriptors:\n{many}\n- {{key: other, value: '*'}}\n")

    (step,) = of_one(rules, (("k", "900x"),), "d").steps

    assert [candidate.name for candidate in step.candidates] == [
        *("k_900x", "k_0x*", "k_1x*", "k_2x*", "k_3x*", "k_4x*", "k_5x*", "k_6x*", "k_7x*", "k_8x*", "k_9x*"),
        *("k_900x*", "k"),
    ]
    assert step.hidden == 989


PARTS = st.sampled_from(
    ["user", "anna", "root", "action", "pay", "path", "/api/x", "/abc", "x.png", "deep", "er", "x", ""]
)


@given(st.lists(st.tuples(PARTS, PARTS), max_size=3).map(tuple))
def test_explain_ends_where_match_ends(entries: tuple[tuple[str, str], ...]) -> None:
    rules = book(SHOP)

    rule = rules.match("shop", entries)
    assert [matched.rule for matched in of_one(rules, entries).matched] == ([] if rule is None else [rule])


@given(st.integers(0, 2**32))
def test_the_counters_of_an_explanation_are_those_that_the_request_charges(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - the seed tells the rules and the requests
    limiter = Limiter(MemoryStore(10, Clock()))
    limiter.book = rules = a_book(a_file(random))
    request = a_request(random, next(iter(rules.domains)))

    counters = sorted(matched.counter for _, _, matched in charged_rules(explain(rules, request)))

    assert counters == sorted(hit.key for hit in limiter.plan(request).charged)
