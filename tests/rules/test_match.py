"""Entries meet the rule that envoyproxy/ratelimit would give them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.rule import Entries, counter_key, metric_path
from ratelimit_service.rules.sources.yaml_text import YamlText
from tests.books import book

Tree = Sequence[Mapping[str, Any]]

SHOP = """\
domain: shop
descriptors:
  - key: user
    rate_limit: &day {unit: day, requests_per_unit: 1}
  - key: user
    value: root
  - key: user
    value: anna
    rate_limit: *day
    descriptors:
      - key: action
        value: pay
        rate_limit: *day
  - key: path
    value: /api/*
    rate_limit: *day
  - key: path
    value: /api/v1/*
    rate_limit: *day
  - key: path
    value: "*.png"
    rate_limit: *day
  - key: path
    value: /a*b*c
    rate_limit: *day
  - key: empty
    value: "*"
    rate_limit: *day
  - key: x*
    rate_limit: *day
  - key: deep
    descriptors:
      - key: er
        rate_limit: *day
"""


@pytest.mark.parametrize(
    ("entries", "path"),
    [
        # exact, then wildcards in the order of the file, then the key alone
        ([("user", "bob")], ("user",)),
        ([("user", "")], ("user",)),
        ([("user", "anna")], ("user_anna",)),
        ([("path", "/api/v1/x")], ("path_/api/*",)),
        ([("path", "/api/")], ("path_/api/*",)),
        ([("path", "/x.png")], ("path_*.png",)),
        ([("path", "/abc")], ("path_/a*b*c",)),
        ([("path", "/a-b-c")], ("path_/a*b*c",)),
        ([("path", "/acb")], None),
        ([("path", "/other")], None),
        # a descriptor without a limit exempts
        ([("user", "root")], None),
        # no way back: below user_anna there is nothing but pay, and user is not tried again
        ([("user", "anna"), ("action", "pay")], ("user_anna", "action_pay")),
        ([("user", "anna"), ("action", "look")], None),
        ([("user", "bob"), ("action", "pay")], None),
        # the last entry must meet a limit
        ([("deep", "1")], None),
        ([("deep", "1"), ("er", "2")], ("deep", "er")),
        ([("deep", "1"), ("er", "2"), ("est", "3")], None),
        ([], None),
        # the pattern fits key_value as a whole, and nothing fits itself too
        ([("empty", "")], ("empty_*",)),
        ([("xyz", "1")], ("x*",)),
        ([("path", "/api/*")], ("path_/api/*",)),
        ([("path_/api", "x")], None),
        # a key alone is looked up by its text, so it also meets a key and value that make the same text
        ([("user_anna", "x")], ("user_anna",)),
        ([("user", "Anna")], ("user",)),
    ],
)
def test_entries_meet_their_rule(entries: list[tuple[str, str]], path: tuple[str, ...] | None) -> None:
    rule = book(SHOP).match("shop", tuple(entries))

    assert (rule.path if rule else None) == (None if path is None else ("shop", *path))


def test_an_unknown_domain_has_no_rules() -> None:
    assert book(SHOP).match("mail", (("user", "bob"),)) is None


SHARED = """\
domain: d
descriptors:
  - key: file
    value: test1
    rate_limit: &day {unit: day, requests_per_unit: 1}
  - key: file
    value: test*
    share_threshold: true
    rate_limit: *day
  - key: own
    value: o*
    rate_limit: *day
  - key: top
    value: t/*
    share_threshold: true
    value_to_metric: true
    descriptors:
      - key: below
        value: b*
        descriptors:
          - {key: plain, rate_limit: *day}
          - {key: detail, detailed_metric: true, rate_limit: *day}
  - key: named
    value_to_metric: true
    descriptors:
      - {key: leaf, rate_limit: *day}
      - {key: leaf, value: exact, value_to_metric: true, rate_limit: *day}
      - {key: wild, value: w*, value_to_metric: true, rate_limit: *day}
      - {key: detail, detailed_metric: true, rate_limit: *day}
"""


@pytest.mark.parametrize(
    ("entries", "counter", "metric"),
    [
        ([("file", "test1")], "d|file=test1", "d.file_test1"),
        ([("file", "test2")], "d|file~file_test*", "d.file_test*"),
        ([("file", "test3")], "d|file~file_test*", "d.file_test*"),
        ([("own", "o1")], "d|own=o1", "d.own_o*"),
        (
            [("top", "t/1"), ("below", "b1"), ("plain", "x")],
            "d|top~top_t/*|below=b1|plain=x",
            "d.top_t/*.below_b*.plain",
        ),
        (
            [("top", "t/1"), ("below", "b1"), ("detail", "")],
            "d|top~top_t/*|below=b1|detail=",
            "d.top_t/*.below_b1.detail_",
        ),
        ([("named", "n"), ("leaf", "x")], "d|named=n|leaf=x", "d.named_n.leaf"),
        ([("named", ""), ("leaf", "x")], "d|named=|leaf=x", "d.named.leaf"),
        ([("named", "n"), ("leaf", "exact")], "d|named=n|leaf=exact", "d.named_n.leaf_exact"),
        ([("named", "n"), ("wild", "w1")], "d|named=n|wild=w1", "d.named_n.wild_w1"),
        ([("named", "n"), ("detail", "")], "d|named=n|detail=", "d.named_n.detail_"),
    ],
)
def test_values_share_counters_and_show_in_metrics_as_the_rule_says(
    entries: list[tuple[str, str]], counter: str, metric: str
) -> None:
    found = tuple(entries)
    rule = book(SHARED).match("d", found)

    assert rule is not None
    assert counter_key(rule, found) == f"{counter}|fixed_window/86400000000"
    assert ".".join(metric_path(rule, found)) == metric


# A small alphabet, so that keys, values and patterns meet often, and `_` and `*` are where they hurt.
WORDS = st.text(alphabet="ab_*", max_size=4)
KEYS = st.text(alphabet="ab_*", min_size=1, max_size=3)


def _distinct(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({_composite(item): item for item in items}.values())


def _descriptors(below: st.SearchStrategy[list[dict[str, Any]]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.fixed_dictionaries(
        {"key": KEYS, "value": WORDS, "limited": st.booleans(), "share": st.booleans(), "descriptors": below}
    )
    return st.lists(one, max_size=5).map(_distinct)


TREES = _descriptors(_descriptors(_descriptors(st.just([]))))
ENTRIES = st.lists(st.tuples(st.text("ab_*", max_size=3), WORDS), min_size=1, max_size=3).map(tuple)


def _composite(item: Mapping[str, Any]) -> str:
    return f"{item['key']}_{item['value']}" if item["value"] else str(item["key"])


def _book(tree: Tree) -> RuleBook:
    text = json.dumps({"domain": "d", "descriptors": [_yaml(item) for item in tree]})
    return parse([YamlText("d.yaml", text.encode())])


def _yaml(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "key": item["key"],
        "value": item["value"],
        "share_threshold": item["share"] and "*" in _composite(item),
        "rate_limit": {"unit": "day", "requests_per_unit": 1} if item["limited"] else None,
        "descriptors": [_yaml(below) for below in item["descriptors"]],
    }


def _fits(pattern: str, text: str) -> bool:
    """The definition of a wildcard, one character at a time."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(_fits(pattern[1:], text[skipped:]) for skipped in range(len(text) + 1))
    return bool(text) and pattern[0] == text[0] and _fits(pattern[1:], text[1:])


def _naive_match(tree: Tree, entries: Entries) -> tuple[str, ...] | None:
    """Matching, as the study defines it: the names on the way, or None when nothing limits the entries."""
    path: list[str] = []
    limited = False
    for key, value in entries:
        named = {_composite(item): item for item in tree}
        text = f"{key}_{value}"
        fitting = [name for name in named if "*" in name and _fits(name, text)]
        name = next((name for name in [text, *fitting, key] if name in named), None)
        if name is None:
            return None
        path.append(name)
        limited = named[name]["limited"]
        tree = named[name]["descriptors"]
    return tuple(path) if limited else None


@given(TREES, st.lists(ENTRIES, max_size=20))
def test_matching_agrees_with_its_definition(tree: list[dict[str, Any]], asked: list[Entries]) -> None:
    compiled = _book(tree)

    for entries in asked:
        rule = compiled.match("d", entries)
        assert (None if rule is None else rule.path[1:]) == _naive_match(tree, entries)


@given(TREES, st.lists(ENTRIES, max_size=30))
def test_a_counter_belongs_to_one_rule_and_to_values_that_it_does_not_tell_apart(
    tree: list[dict[str, Any]], asked: list[Entries]
) -> None:
    compiled = _book(tree)
    owners: dict[str, object] = {}

    for entries in asked:
        rule = compiled.match("d", entries)
        if rule is not None:
            told_apart = [
                (key, None if level.shared is not None else value)
                for level, (key, value) in zip(rule.levels, entries, strict=True)
            ]
            owner = (rule.path, told_apart)
            assert owners.setdefault(counter_key(rule, entries), owner) == owner


def test_one_pattern_below_two_keys_makes_two_counters() -> None:
    two = book("""\
        domain: d
        descriptors:
          - {key: a, value: x*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
          - {key: a*, value: x*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 2}}
        """)

    keys = set()
    for entries in ((("a", "x1"),), (("a", "b_x1"),)):
        rule = two.match("d", entries)
        assert rule is not None
        keys.add(counter_key(rule, entries))

    assert keys == {"d|a~a_x*|fixed_window/86400000000", "d|a~a*_x*|fixed_window/86400000000"}


@pytest.mark.parametrize(
    ("changed", "goes_on"),
    [
        ("{unit: hour, requests_per_unit: 5}", True),
        ("{unit: hour, requests_per_unit: 10, exceed: 2, count_refused: false, name: other}", True),
        ('{unit: "60 minutes", requests_per_unit: 10}', True),
        ("{unit: day, requests_per_unit: 10}", False),
        ("{unit: hour, requests_per_unit: 10, anchor: first_request}", False),
        ("{unit: hour, requests_per_unit: 10, algorithm: sub_windows}", False),
        ("{unit: hour, requests_per_unit: 10, algorithm: sliding_window}", False),
    ],
)
def test_a_rule_that_is_changed_keeps_its_counters_where_they_mean_the_same(changed: str, goes_on: bool) -> None:
    keys = set()
    for limit in ("{unit: hour, requests_per_unit: 10}", changed):
        rule = book(f"{{domain: shop, descriptors: [{{key: user, rate_limit: {limit}}}]}}").match("shop", USER)
        assert rule is not None
        keys.add(counter_key(rule, USER))

    assert (len(keys) == 1) is goes_on


USER = (("user", "ada"),)
