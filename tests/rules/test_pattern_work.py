"""What patterns cost, counted as bytes times patterns, and what becomes of a value that is too long for them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import TooLongError
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.rules.bans import Bans, find_ban, make_ban
from ratelimit_service.rules.matching import Wildcards
from ratelimit_service.rules.pattern_work import PatternBounds, PatternWork
from ratelimit_service.rules.reasons import explain
from ratelimit_service.system.clock import HOUR
from tests.books import book
from tests.clocks import Clock
from tests.shop import Shop, counted, summary

LARGE = "(?i).*(select|insert|update|delete|union).{0,400}(from|into|where).*"
RULES = f"""
    domain: shop
    descriptors:
      - key: path
        value: /{"x" * 9000}
        rate_limit: {{unit: day, requests_per_unit: 9}}
      - key: path
        regex: /free/.*
        rate_limit: {{allow: true}}
      - key: path
        regex: '.*evil.*'
        rate_limit: {{deny: true}}
      - key: path
        rate_limit: {{unit: day, requests_per_unit: 5}}
      - key: query
        regex: '{LARGE}'
        rate_limit: {{deny: true}}
      - key: watched
        regex: '.*evil.*'
        shadow_mode: true
        rate_limit: {{deny: true}}
      - key: agent
        rate_limit: {{unit: day, requests_per_unit: 5}}
"""
LONGEST = "/" + "x" * 8191


def bots(number: int) -> str:
    each = "".join(f"  - {{key: agent, value: '*bot{n:04}x*', rate_limit: {{deny: true}}}}\n" for n in range(number))
    return f"domain: shop\ndescriptors:\n  - {{key: agent}}\n{each}"


@pytest.mark.parametrize(
    ("descriptor", "answer"),
    [
        (f"path={LONGEST}", (False, 4)),
        (f"path={LONGEST}evil", (True, 0)),  # the first that has no match for it, and may refuse
        (f"path={LONGEST}x", (True, 0)),
        (f"path=/free/{LONGEST}", (True, 0)),  # what refuses nothing does not match it
        (f"path=/{'x' * 9000}", (False, 8)),  # compared by a look-up, before any pattern
        (f"query={'x' * 2048}", None),
        (f"query={'x' * 2049}", (True, 0)),
        (f"query={'é' * 1025}", (True, 0)),
        (f"watched={LONGEST}x", None),  # a rule in shadow mode refuses nothing
        (f"agent={LONGEST}x", (False, 4)),
        (f"other={LONGEST}x", None),
    ],
)
def test_a_value_too_long_for_a_regex_that_may_refuse_it_is_refused(
    descriptor: str, answer: tuple[bool, int] | None
) -> None:
    assert summary(Shop(RULES).ask(descriptor)) == [answer]


def test_what_is_too_long_is_counted_and_logged_once_with_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    tested = Shop(RULES)

    tested.ask(f"path={LONGEST}x", f"path={LONGEST}xx", "path=/")

    assert counted(tested.limiter.domains.of("shop")) == {"refused": 1, "too_long": 2}
    (line,) = caplog.messages
    assert line == (
        'a descriptor of domain "shop" is refused: a value of 8,193 bytes is compared with a regex, for which 8,192 '
        "are the maximum (REGEX_MAX_VALUE_LENGTH); logged at most once a minute"
    )


def test_a_refund_with_a_value_that_is_too_long_is_allowed_and_gives_nothing_back() -> None:
    verdict = Shop(RULES).ask(f"path={LONGEST}x", cost=-1)

    assert (verdict.allowed, summary(verdict)) == (True, [(False, 0)])


def test_the_setting_bounds_the_length() -> None:
    tested = Shop(RULES, pattern_bounds=PatternBounds(100))

    assert summary(tested.ask(f"path=/{'x' * 99}")) == [(False, 4)]
    assert summary(tested.ask(f"path=/{'x' * 100}")) == [(True, 0)]
    assert summary(tested.ask(f"query={'x' * 26}")) == [(True, 0)]


def test_an_explanation_says_that_a_value_is_too_long() -> None:
    asked = Request("shop", [Descriptor((("path", f"{LONGEST}x"),))])

    (found,) = explain(book(RULES), asked).descriptors

    assert found.outcome == (
        "Refused, whatever its rule is: a value of 8,193 bytes is compared with a regex, for which 8,192 are the "
        "maximum (REGEX_MAX_VALUE_LENGTH)."
    )
    assert found.matched == ()


def test_a_request_costs_no_more_than_its_bound_whatever_it_says() -> None:
    level = "".join(f"  - {{key: a, regex: '.*evil{n}[0-9]+x.*', rate_limit: {{deny: true}}}}\n" for n in range(100))
    tested = Shop(f"domain: shop\ndescriptors:\n{level}")

    whole = tested.ask(*(f"a={'evil1' * 500}{n}" for n in range(4)))  # 100 patterns on 2,501 bytes, four times
    more = tested.ask(*(f"a={'evil1' * 500}{n}" for n in range(5)))

    assert whole.allowed
    assert summary(more) == [None, None, None, None, (True, 0)]


def test_what_was_tried_for_a_request_is_not_tried_again() -> None:
    rules = book(RULES)
    work = PatternWork(PatternBounds())

    for _ in range(100):
        rules.match("shop", (("path", "/" + "x" * 99),), work)

    assert 2**20 - work.left == 2 * 100


def test_a_ban_of_the_domain_makes_a_request_cost_no_more() -> None:
    rules, bans, work = book(RULES), Bans(Clock(0)), PatternWork(PatternBounds(100))
    short, long = (("path", "/" + "x" * 99),), (("path", "/" + "x" * 100),)
    bans.put(make_ban("shop", long, length=HOUR, why="spam", who="ada", now=0))

    assert find_ban(bans, rules, "shop", short, work) is None
    assert rules.match("shop", short, work) is not None
    assert 2**20 - work.left == 2 * 100
    assert find_ban(bans, rules, "shop", long, work) is not None  # it is too long for the regexes


def test_many_texts_between_two_stars_cost_no_more_than_some() -> None:
    hostile = "bot1" * 2000
    spent = []
    for number in (65, 2000):
        work = PatternWork(PatternBounds())
        assert book(bots(number)).match("shop", (("agent", f"{hostile} bot0032x {hostile}"),), work) is not None
        spent.append(2**20 - work.left)

    assert spent == [64 * 16_010 + 16_016, 64 * 16_010 + 16_016]


def test_a_text_with_a_piece_of_each_pattern_is_bounded() -> None:
    rules = book(bots(2000))
    hostile = "".join(f"{n:04}" for n in range(2000))

    with pytest.raises(TooLongError, match="REQUEST_MAX_PATTERN_WORK"):
        rules.match("shop", (("agent", hostile),), PatternWork(PatternBounds()))


@st.composite
def pattern(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.text("ab", max_size=5), min_size=2, max_size=4))
    return "*".join(parts)


@given(st.lists(pattern(), max_size=80), st.lists(st.text("ab", max_size=30), min_size=1, max_size=5))
def test_wildcards_find_the_first_pattern_that_matches(patterns: list[str], texts: list[str]) -> None:
    wildcards = Wildcards((one, index) for index, one in enumerate(patterns))

    for text in texts:
        expected = next(
            (index for index, one in enumerate(patterns) if re.fullmatch(one.replace("*", ".*"), text)), None
        )
        assert wildcards.find(text) == expected
        assert wildcards.find(text, PatternWork(PatternBounds())) == expected
