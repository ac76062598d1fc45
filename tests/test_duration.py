"""Lengths of time: all that Go reads, words, and both after one another."""

from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.model import Unit
from ratelimit_service.system.clock import DAY, HOUR, MINUTE, SECOND
from ratelimit_service.system.duration import WORDS, read_duration


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("10s", 10_000_000),
        ("1h30m", 5_400_000_000),
        ("150us", 150),
        ("1.5s", 1_500_000),
        (".5s", 500_000),
        ("5.s", 5_000_000),
        ("+5s", 5_000_000),
        ("-1.5h", -5_400_000_000),
        ("1h15m30.918273645s", 4_530_918_274),
        ("12µs", 12),
        ("12μs", 12),
        ("1ns", 1),
        ("1001ns", 2),
        ("0.1s", 100_000),
        ("0.3333333333333333333h", 1_200_000_000),
        ("9223372036854775807ns", 9_223_372_036_854_776),
    ],
)
def test_durations_in_go(text: str, microseconds: int) -> None:
    """time.ParseDuration; below a nanosecond is cut, and a begun microsecond counts."""
    assert read_duration(text) == microseconds


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("minute", MINUTE),
        ("Week", 7 * DAY),
        ("15 minutes", 15 * MINUTE),
        ("1 minutes", MINUTE),
        ("2Days", 2 * DAY),
        ("1 month", 30 * DAY),
        ("1.5 hours", 90 * MINUTE),
        ("1 s", SECOND),
        ("1d", DAY),
        ("1w2d", 9 * DAY),
        ("1h 30m", 90 * MINUTE),
        ("1 hour 30 minutes", 90 * MINUTE),
        ("1 hour 30m", 90 * MINUTE),
        ("-2 days", -2 * DAY),
        ("1h30 seconds", HOUR + 30 * SECOND),
    ],
)
def test_words_and_days_and_spaces_are_read_too(text: str, microseconds: int) -> None:
    assert read_duration(text) == microseconds


def test_a_word_is_as_long_as_the_unit_of_that_name() -> None:
    assert {unit.name.lower(): unit.window for unit in Unit} == WORDS


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "3",
            "-",
            "s",
            ".",
            ".s",
            "-.",
            "+.s",
            "+-5s",
            "--1s",
            " 1s",
            "1s ",
            "1S",
            "1s\n",
            "1e3s",
            "1 sec",
            "5 fortnights",
        ),
        *("minutes", "1 minute or so", "5", "1h30", "a minute", "1M", "1,5 hours", "1  ", "1y"),
        *("\u0661s", "9223372036854775808ns", "3000000h", "9" * 5000 + "s", "1s" + "x" * 5000),
    ],
)
def test_what_is_no_duration(text: str) -> None:
    """As in Go, one letter is not read in another case, and durations end after 292 years."""
    with pytest.raises(ValueError, match="is not a duration"):
        read_duration(text)


UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
PARTS = st.tuples(
    st.integers(0, 10_000), st.none() | st.text("0123456789", max_size=12), st.sampled_from(sorted(UNITS))
)


@given(st.lists(PARTS, min_size=1, max_size=6), st.sampled_from(["", "+", "-"]))
def test_durations_agree_with_rational_numbers(parts: list[tuple[int, str | None, str]], sign: str) -> None:
    """An independent model: each part cut to nanoseconds, the sum rounded up to microseconds."""
    text = sign + "".join(f"{whole}{'' if part is None else '.' + part}{unit}" for whole, part, unit in parts)
    nanoseconds = sum(floor(Fraction(f"{whole}.{part or '0'}") * UNITS[unit]) for whole, part, unit in parts)
    model = ceil(Fraction(nanoseconds, 1000))

    assert read_duration(text) == (-model if sign == "-" else model)


@given(st.integers(0, 2**62 // 1000))
def test_a_duration_comes_back(microseconds: int) -> None:
    """Hours, minutes and seconds written out, as Go prints them, are the same duration."""
    hours, rest = divmod(microseconds, 3_600_000_000)
    minutes, rest = divmod(rest, 60_000_000)

    assert read_duration(f"{hours}h{minutes}m{rest // 1_000_000}.{rest % 1_000_000:06}s") == microseconds


@given(st.text(max_size=20) | st.text("0123456789.smhnuµ+-", max_size=12))
def test_any_text_is_a_duration_or_one_documented_error(text: str) -> None:
    """Never another exception, and never a float."""
    microseconds, wrong = 0, ""
    try:
        microseconds = read_duration(text)
    except ValueError as error:
        wrong = str(error)

    assert type(microseconds) is int
    assert wrong in {"", "is not a duration such as 10s, 1h30m, 15 minutes or 200ms"}
