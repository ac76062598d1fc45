"""Descriptors that nothing reaches, or that do nothing, are warned of; others are not."""

import pytest

from ratelimit_service.rules.advice import advise
from tests.books import book

LIMIT = "rate_limit: {unit: day, requests_per_unit: 1}"


def warnings(*descriptors: str) -> list[str]:
    """What is said about a domain with these descriptors, the first of which is at 3:4."""
    lines = "\n".join(f"- {{{descriptor}}}" for descriptor in descriptors)
    return [str(warning) for warning in advise(book(f"domain: d\ndescriptors:\n{lines}\n"))]


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

    assert found == [f"1.yaml:4:4: {expected}, whatever would fit this"]


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

    assert found.endswith("does nothing: it has no rate_limit, no descriptors, and exempts from no limit")


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

    assert found.startswith('1.yaml:3:27: "below" does nothing')


@pytest.mark.parametrize(("requests", "expected"), [(5000, []), (5001, [
    ("1.yaml:3:12: sliding_log remembers up to 5,001 moments in each counter; sub_windows lets no more through either, "
    "and remembers a few numbers"),
])])  # fmt: skip
def test_a_huge_log_is_warned_of(requests: int, expected: list[str]) -> None:
    limit = f"{{unit: day, requests_per_unit: {requests}, algorithm: sliding_log}}"

    assert warnings(f"key: k, rate_limit: {limit}") == expected
