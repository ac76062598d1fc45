"""Examples of a regular expression match it, and any expression has some or none, in a moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.rules.checks.regex_examples import examples
from ratelimit_service.rules.pattern_work import unbounded
from ratelimit_service.rules.regex import MISSING, compiled


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", [""]),
        ("abc", ["abc"]),
        ("^/v[0-9]+/users$", ["/v0/users"]),
        ("/api/(v1|v2)/[^/]+(/orders)?", ["/api/v1/a/orders", "/api/v2/a/orders", "/api/v1/a"]),
        ("(?i)admin.*", ["admina", "admin"]),
        (r"\d{3}-\d{2,4}", ["000-00"]),
        (r"[a-z_][\w-]*@[\w.]+\.(com|org)", ["aa@a.com", "a@a.com", "aa@a.org"]),
        ("(?:GET|POST)", ["GET", "POST"]),
        ("[^a-z]+", ["0"]),
        (r"[\]\-x]+", ["]"]),
        ("[]a]+", ["]"]),
        (r"[[:alpha:]]+\x41\x{42}", ["aAB"]),
        ("(((a)+)+)", ["a"]),
        (r"(?P<n>x)\.y", ["x.y"]),
        (r"[^\d.a]", ["A"]),
        ("x{2}?y*?", ["xxy", "xx"]),
        (r"\pL+\s", ["a "]),
        ("a{2,b", ["a{2,b"]),
    ],
)
def test_examples_match(pattern: str, expected: list[str]) -> None:
    assert examples(pattern) == expected
    try:
        regex = compiled(pattern)
    except ValueError as error:
        if str(error) != MISSING:
            raise
        pytest.skip(MISSING)
    assert [text for text in expected if not regex.matches(text, unbounded())] == []


@given(st.text(alphabet="ab01()[]{}|*+?.^$\\-:<>P,xdwsp", max_size=30))
def test_any_text_has_few_and_short_examples(pattern: str) -> None:
    found = examples(pattern)

    assert len(found) <= 16
    assert all(len(text) <= 4096 for text in found)


@pytest.mark.parametrize("pattern", ["(" * 1000, "[" * 1000, "((a|b)*(c|d)+){9}" * 58, "a{1000}" * 140, "(a|b)" * 200])
def test_a_long_expression_takes_no_time(pattern: str) -> None:
    found = examples(pattern)

    assert len(found) <= 16
