"""What is hardly meant is warned of; what may be is not."""

import pytest

from ratelimit_service.rules.lint import lint
from ratelimit_service.rules.rule import counter_key
from tests.books import book

LIMIT = "rate_limit: {unit: day, requests_per_unit: 1}"


def warnings(*descriptors: str) -> list[str]:
    """What is said about a domain with these descriptors, the first of which is at 3:4."""
    lines = "\n".join(f"- {{{descriptor}}}" for descriptor in descriptors)
    return [str(warning) for warning in lint(book(f"domain: d\ndescriptors:\n{lines}\n"))]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("value: /a/*", "value: /a/b*", '"k_/a/b*" is never reached: "k_/a/*" at 1.yaml:3:4 fits first'),
        ("value: '*'", "value: '*x*y*'", '"k_*x*y*" is never reached: "k_*" at 1.yaml:3:4 fits first'),
        ("value: a*c", "value: a*b*c", '"k_a*b*c" is never reached: "k_a*c" at 1.yaml:3:4 fits first'),
        ("value: '*'", "", '"k" is never reached: "k_*" at 1.yaml:3:4 fits first'),
    ],
)
def test_what_an_earlier_wildcard_covers_is_never_reached(first: str, second: str, expected: str) -> None:
    found = warnings(f"key: k, {first}, {LIMIT}", f"key: k, {second}{',' if second else ''} {LIMIT}")

    assert found == [f"1.yaml:4:4: warning: {expected}, whatever would fit this [unreached]"]


def test_a_key_alone_is_never_reached_even_when_the_wildcard_comes_later() -> None:
    assert len(warnings(f"key: k, {LIMIT}", f"key: k, value: '*', {LIMIT}")) == 1


@pytest.mark.parametrize(
    "descriptors",
    [
        ["value: /a/b*", "value: /a/*"],
        ["value: a*c", "value: a*"],
        ["value: a*b", "value: b*a"],
        ["value: /a/*", "value: /a/b"],
        ["value: a*", ""],
        ["value: '*'", "value: x"],
        ["value: ab*", "value: a*b"],
    ],
)
def test_what_something_reaches_is_not_warned_of(descriptors: list[str]) -> None:
    assert warnings(*(f"key: k, {one}{',' if one else ''} {LIMIT}" for one in descriptors)) == []


@pytest.mark.parametrize("alone", ["key: k", "key: k, value: a", "key: k, value: a*"])
def test_a_descriptor_that_limits_nothing_and_exempts_from_nothing_is_warned_of(alone: str) -> None:
    (found,) = warnings(alone)

    assert found.endswith("does nothing: it has no rate_limit, no descriptors, and exempts from no limit [no-effect]")


@pytest.mark.parametrize(
    "descriptors",
    [
        ["key: k, value: a", f"key: k, {LIMIT}"],
        ["key: k, value: a", f"key: k, value: '*', {LIMIT}"],
        ["key: k, value: a*", f"key: k, {LIMIT}"],
        ["key: k_l, value: a_b", f"key: k_l, {LIMIT}"],
    ],
)
def test_a_descriptor_that_exempts_is_not_warned_of(descriptors: list[str]) -> None:
    assert warnings(*descriptors) == []


def test_warnings_come_from_every_level() -> None:
    (found,) = warnings("key: k, descriptors: [{key: below}]")

    assert found.startswith('1.yaml:3:27: warning: "below" does nothing')


@pytest.mark.parametrize(("requests", "expected"), [(5000, []), (5001, [
    ("1.yaml:3:12: warning: sliding_log remembers up to 5,001 moments in each counter; sub_windows lets no more "
    "through either, and remembers a few numbers [large-log]"),
])])  # fmt: skip
def test_a_huge_log_is_warned_of(requests: int, expected: list[str]) -> None:
    limit = f"{{unit: day, requests_per_unit: {requests}, algorithm: sliding_log}}"

    assert warnings(f"key: k, rate_limit: {limit}") == expected


def test_a_value_in_another_notation_is_warned_of_at_its_place() -> None:
    (found,) = warnings(f"key: k, value: 10.0.0.0/8, {LIMIT}")

    assert found.startswith('1.yaml:3:19: warning: value "10.0.0.0/8" is compared as text, not as a network')
    assert found.endswith('write value: "10.*" [cidr]')


def test_a_key_that_fits_everything_is_warned_of_at_its_place() -> None:
    (found,) = warnings(f"key: '*', {LIMIT}")

    assert found.startswith('1.yaml:3:9: warning: the * of key "*" fits every entry, whatever its key')
    assert found.endswith('if that is meant, add value: "*" [any-key]')
    assert warnings(f"key: '*', value: '*', {LIMIT}") == []


@pytest.mark.parametrize(
    ("unit", "really", "days"),
    [
        ("month", "a month is 30 days, counted from 1970-01-01, in no calendar", 30),
        ("2 months", "2 months are 60 days, counted from 1970-01-01, in no calendar", 60),
        ("year", "a year is 365 days, counted from 1970-01-01, in no calendar", 365),
        ("week", "a week begins on a Thursday at 00:00 UTC, as 1970-01-01 was one", 7),
        ("week, unit_multiplier: 2", "2 weeks begin on a Thursday at 00:00 UTC, as 1970-01-01 was one", 14),
    ],
)
def test_a_window_that_seems_to_follow_the_calendar_says_what_it_is(unit: str, really: str, days: int) -> None:
    instead = f"if that is meant, write unit: {days} days, which counts the same"

    found = warnings(f"key: k, rate_limit: {{requests_per_unit: 1, unit: {unit}}}")

    assert found == [f"1.yaml:3:53: warning: {really}; {instead} [calendar]"]


@pytest.mark.parametrize(
    "unit",
    ["30 days", "day", "5 minutes", "month, anchor: first_request", "week, algorithm: sliding_window", "365 days"],
)
def test_a_window_that_is_what_it_seems_is_not_warned_of(unit: str) -> None:
    assert warnings(f"key: k, rate_limit: {{requests_per_unit: 1, unit: {unit}}}") == []


@pytest.mark.parametrize("days", [7, 30, 365])
def test_what_silences_the_warning_is_the_same_limit_with_the_same_counters(days: int) -> None:
    unit = {7: "week", 30: "month", 365: "year"}[days]

    written, silenced = (
        book(f"domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: {text}, requests_per_unit: 1}}}}]\n").rules[0]
        for text in (unit, f"{days} days")
    )

    assert written.limit == silenced.limit
    assert counter_key(written, (("k", "v"),)) == counter_key(silenced, (("k", "v"),))


def test_all_windows_of_a_file_that_say_the_same_have_one_warning() -> None:
    month = "rate_limit: {unit: month, requests_per_unit: 1}"

    found = warnings(*(f"key: k{number}, {month}" for number in range(13)), f"key: k, {month.replace('month', 'week')}")

    assert [one.split(":")[1] for one in found] == ["3", "16"]
    assert "(also in lines 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, …) [calendar]" in found[0]
