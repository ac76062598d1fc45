"""Plain scalars mean what Go's yaml.v2 takes them for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.rules.document import Value, printed, resolve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("Null", None), ("nUll", "nUll"),
        ("yes", True), ("Y", True), ("on", True), ("TRUE", True), ("tRue", "tRue"), ("n", False), ("Off", False),
        ("0", 0), ("00", 0), ("12", 12), ("-12", -12), ("+12", 12), ("1_000", 1000), ("_1", "_1"),
        ("0x1F", 31), ("0Xff", 255), ("-0x10", -16), ("0o17", 15), ("017", 15), ("0b101", 5),
        ("0x", "0x"), ("0b2", "0b2"), (".", "."), ("-", "-"),
        ("08", 8.0), ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("-1.5e-3", -0.0015),
        (".inf", math.inf), ("-.INF", -math.inf), ("1e999", "1e999"), ("1.2.3", "1.2.3"), ("10.0.0.1", "10.0.0.1"),
        ("9223372036854775807", 2**63 - 1), ("18446744073709551615", 2**64 - 1), ("18446744073709551616", 2.0**64),
        ("-9223372036854775808", -(2**63)), ("-9223372036854775809", -(2.0**63)),
        ("0xFFFFFFFFFFFFFFFFF", "0xFFFFFFFFFFFFFFFFF"),
        ("2024-01-31", "2024-01-31"), ("12:30:45", "12:30:45"), ("<<", "<<"), ("1 000", "1 000"), ("٣", "٣"),
    ],
)  # fmt: skip
def test_a_plain_scalar_has_the_value_that_yaml_v2_gives_it(text: str, value: Value) -> None:
    found = resolve(text)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "in_go"),
    [
        ("~", "<nil>"), ("yes", "true"), ("off", "false"), ("0x1F", "31"), ("-017", "-15"), ("text", "text"),
        ("18446744073709551615", "18446744073709551615"), ("18446744073709551616", "1.8446744073709552e+19"),
        ("1.50", "1.5"), ("5.", "5"), ("1e3", "1000"), ("123456.7", "123456.7"), ("100000.0", "100000"),
        ("1000000.0", "1e+06"), ("1234567.5", "1.2345675e+06"), ("1e22", "1e+22"), ("1e100", "1e+100"),
        ("0.0001", "0.0001"), ("0.00012", "0.00012"), ("0.000099", "9.9e-05"), ("5e-324", "5e-324"),
        ("0.0", "0"), ("-0.0", "-0"), ("-2.5", "-2.5"), (".inf", "+Inf"), ("-.inf", "-Inf"), (".nan", "NaN"),
    ],
)  # fmt: skip
def test_a_value_is_printed_as_go_prints_it(text: str, in_go: str) -> None:
    assert printed(resolve(text)) == in_go


def test_nan_is_a_float() -> None:
    found = resolve(".nan")

    assert isinstance(found, float)
    assert math.isnan(found)


@given(st.text(alphabet="0123456789_xob.eE+-naif", max_size=5000))
def test_any_text_has_a_value(text: str) -> None:
    resolve(text)


def test_very_many_digits_are_no_integer_and_no_error() -> None:
    assert resolve("9" * 10_000) == "9" * 10_000
