"""The difference of two books is which requests get another limit, and nothing else."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import ComparisonError, RulesError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.diff import RuleChange, compared, diff, limits_in_words
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.secret import HashValue
from ratelimit_service.rules.sources.yaml_text import YamlText
from tests.books import book

KEYS = st.sampled_from(["a", "b", "c_d"])
VALUES = st.text("xy*", max_size=3)
LIMITS = st.sampled_from([None, 1, 2])


def descriptors(below: st.SearchStrategy[list[dict[str, Any]]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.fixed_dictionaries({"key": KEYS, "value": VALUES, "limit": LIMITS, "descriptors": below})
    return st.lists(one, max_size=4).map(distinct)


def distinct(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({f"{item['key']}_{item['value']}".rstrip("_"): item for item in items}.values())


TREES = descriptors(descriptors(st.just([])))
REQUESTS = st.lists(st.tuples(KEYS, st.text("xyz", max_size=3)), min_size=1, max_size=2).map(tuple)


def made(tree: Sequence[Mapping[str, Any]], path: str = "d.yaml", before: int = 0) -> RuleBook:
    text = json.dumps({"domain": "d", "descriptors": [yaml(item) for item in tree]})
    return parse([YamlText(path, b"\n" * before + text.encode())])


def yaml(item: Mapping[str, Any]) -> dict[str, Any]:
    limit = item["limit"] and {"unit": "day", "requests_per_unit": item["limit"]}
    below = [yaml(child) for child in item["descriptors"]]
    return {"key": item["key"], "value": item["value"], "rate_limit": limit, "descriptors": below}


@given(TREES)
def test_a_book_does_not_differ_from_itself_in_another_place(tree: list[dict[str, Any]]) -> None:
    assert diff(made(tree), made(tree, "moved.yaml", 7)) == []


@given(TREES, TREES)
def test_the_request_of_each_change_gets_these_rules(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    old_book, new_book = made(old), made(new)

    for change in diff(old_book, new_book):
        assert old_book.match("d", change.entries) is change.old
        assert new_book.match("d", change.entries) is change.new
        assert change.differences


@given(TREES, TREES, st.lists(REQUESTS, max_size=30))
def test_every_request_with_another_limit_is_of_a_change(
    old: list[dict[str, Any]], new: list[dict[str, Any]], asked: list[tuple[tuple[str, str], ...]]
) -> None:
    old_book, new_book = made(old), made(new)
    found = {(change.old, change.new) for change in diff(old_book, new_book)}

    for entries in asked:
        rules = old_book.match("d", entries), new_book.match("d", entries)
        if compared("d", (), entries, *rules) is not None:
            assert rules in found


@given(TREES, TREES)
def test_the_other_way_round_it_finds_the_same(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    old_book, new_book = made(old), made(new)

    there = {(change.old, change.new) for change in diff(old_book, new_book)}
    back = {(change.new, change.old) for change in diff(new_book, old_book)}

    assert there == back


def files(*descriptors: str, head: str = "domain: d") -> RuleBook:
    """A domain with these descriptors."""
    return book("\n".join([head, "descriptors:", *(f"- {{{descriptor}}}" for descriptor in descriptors)]) + "\n")


def shown(change: RuleChange) -> str:
    """The change in a line."""
    mark = {"added": "+", "removed": "-", "changed": "~"}[change.kind]
    differences = "; ".join(f"{what} {old} → {new}" for what, old, new in change.differences)
    return f"{mark} {'.'.join(change.names)}: {differences}{f' ({change.counters})' if change.counters else ''}"


ONE = "rate_limit: {unit: day, requests_per_unit: 1}"
TWO = "rate_limit: {unit: day, requests_per_unit: 2}"
HOUR = "rate_limit: {unit: hour, requests_per_unit: 1}"
A1, A2 = f"key: a, {ONE}", f"key: a, {TWO}"
X1, X2 = f"key: a, value: x*, {ONE}", f"key: a, value: x*, {TWO}"
Y2 = f"key: a, value: y*, {TWO}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([A1, f"key: b, {TWO}"], [f"key: b, {TWO}", A1]),
        ([X1, A2], [A2, X1]),
        ([X1, Y2], [Y2, X1]),
        ([f"key: a, value: x, {ONE}", A1], [A1]),
        ([X1, A1], [f"key: a, value: '*', {ONE}"]),
        ([f"key: a, value: '*', {ONE}", f"key: a, value: x*, {TWO}"], [A1]),
        ([f"key: a, {HOUR}"], ["key: a, rate_limit: {unit: 60 minutes, requests_per_unit: 1}"]),
        (["key: a, rate_limit: {unit: hour, requests_per_unit: 1, exceed: 10%}"], [f"key: a, {HOUR}"]),
        (["key: a, rate_limit: {unlimited: true}"], ["key: a, rate_limit: {allow: true}"]),
        (["key: a"], []),
        (["key: a, descriptors: [{key: b}]"], ["key: c"]),
        ([f"key: a, detailed_metric: true, {ONE}"], [f"key: a, value_to_metric: true, {ONE}"]),
    ],
)  # fmt: skip
def test_what_gives_every_request_the_same_limit_is_no_difference(old: list[str], new: list[str]) -> None:
    assert diff(files(*old), files(*new)) == []
    assert diff(files(*new), files(*old)) == []


DAY_1, DAY_2 = "1 request per day", "2 requests per day"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([], [A1], [f"+ a: limit no limit → {DAY_1}"]),
        ([A1], [], [f"- a: limit {DAY_1} → no limit"]),
        ([A1], [A2], [f"~ a: limit {DAY_1} → {DAY_2} (kept)"]),
        ([A1], [f"key: a, {HOUR}"], [f"~ a: limit {DAY_1} → 1 request per hour (afresh)"]),
        ([f"key: a, value: x, {ONE}", A2], [A2], [f"~ a_x: limit {DAY_1} → {DAY_2} (kept)"]),
        ([A2], [X1, A2], [f"~ a_x*: limit {DAY_2} → {DAY_1} (kept)"]),
        ([A1, "key: a, value: x"], [A1], [f"+ a_x: limit no limit → {DAY_1}"]),
        (
            [X1, f"key: a, value: '*y', {TWO}"],
            [f"key: a, value: '*y', {TWO}", X1],
            [f"~ a_x* and a_*y: limit {DAY_1} → {DAY_2} (kept)"],
        ),
        (
            [X1],
            [f"key: a, value: '*y', {TWO}"],
            [
                f"- a_x*: limit {DAY_1} → no limit",
                f"+ a_*y: limit no limit → {DAY_2}",
                f"~ a_x* and a_*y: limit {DAY_1} → {DAY_2} (kept)",
            ],
        ),
        (
            [f"key: p, value: x, descriptors: [{{key: a, {ONE}}}]", f"key: p, descriptors: [{{key: a, {TWO}}}]"],
            [f"key: p, descriptors: [{{key: a, {TWO}}}]"],
            [f"~ p_x.a: limit {DAY_1} → {DAY_2} (kept)"],
        ),
        (
            [f"key: p, {ONE}, descriptors: [{{key: a, {ONE}}}, {{key: b, {TWO}}}]"],
            [],
            [f"- p: limit {DAY_1} → no limit", f"- p.a: limit {DAY_1} → no limit", f"- p.b: limit {DAY_2} → no limit"],
        ),
        (
            [f"key: a, value: x*, share_threshold: true, {ONE}"],
            [X1],
            ["~ a_x*: counter d|a~a_x*|fixed_window/86400000000 → d|a=xother|fixed_window/86400000000 (afresh)"],
        ),
        ([A1], [f"key: a, shadow_mode: true, {ONE}"], ["~ a: shadow_mode false → true (kept)"]),
        ([A1], [f"key: a, quota_mode: true, {ONE}"], ["~ a: quota_mode false → true (kept)"]),
        ([f"key: a, metadata: {{n: 1}}, {ONE}"], [A1], ["~ a: metadata {'n': 1} → none (kept)"]),
        (
            ["key: a, rate_limit: {unit: day, requests_per_unit: 1, name: n}"],
            ["key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: y}, {name: x}]}"],
            ["~ a: name n → none; replaces nothing → x, y (kept)"],
        ),
        (
            [A1],
            ["key: a, rate_limit: {unit: day, requests_per_unit: 1, on_store_failure: open}"],
            [f"~ a: limit {DAY_1} → {DAY_1} (open without Redis) (kept)"],
        ),
        (
            [A1],
            ["key: a, rate_limit: {unit: day, requests_per_unit: 1, algorithm: token_bucket, burst: 3}"],
            [f"~ a: limit {DAY_1} → {DAY_1} (token bucket, burst 3) (afresh)"],
        ),
        (
            [A1],
            [f"key: a, rate_limits: [{ONE[12:]}, {HOUR[12:]}]"],
            [f"~ a: limit {DAY_1} → {DAY_1} and 1 request per hour (afresh)"],
        ),
        (
            [A1],
            [f"key: a, charge: together, {ONE}"],
            [f"~ a: limit {DAY_1} → {DAY_1} (charged together) (kept)"],
        ),
        (
            [f"key: a, rate_limits: [{ONE[12:]}, {HOUR[12:]}]"],
            [f"key: a, charge: each, rate_limits: [{ONE[12:]}, {HOUR[12:]}]"],
            ["~ a: charge together in the list → each (kept)"],
        ),
        ([A1], ["key: a, rate_limit: {deny: true}"], [f"~ a: limit {DAY_1} → always denied"]),
        (["key: a, rate_limit: {unlimited: true}"], [A1], [f"~ a: limit unlimited → {DAY_1}"]),
        (
            [f"key: a, values: [x, y], {ONE}", A2],
            [f"key: a, values: [x], {ONE}", A2],
            [f"~ a_values(x,y): limit {DAY_1} → {DAY_2} (kept)"],
        ),
        (
            [f"key: a, regex: '/v[0-9]+/(users|orders)', {ONE}"],
            [f"key: a, regex: '/v[0-9]+/(users|orders)', {TWO}"],
            [f"~ a_regex(/v[0-9]+/(users|orders)): limit {DAY_1} → {DAY_2} (kept)"],
        ),
        (
            [f"key: a, label: l, regex: '/v[0-9]+/(users|orders)', {ONE}"],
            [f"key: a, label: l, regex: '/v[0-9]+/users', {ONE}"],
            [f"- a_l: limit {DAY_1} → no limit"],
        ),
        (
            [f"key: a, label: l, value: oth*, not: true, {ONE}"],
            [f"key: a, label: l, value: o*, not: true, {ONE}"],
            [f"- a_l: limit {DAY_1} → no limit"],
        ),
        (
            [f"key: a, label: l, values: [x, y, z], {ONE}", A2],
            [f"key: a, label: l, values: [w, x], {ONE}", A2],
            [
                f"~ a_l (2 values): limit {DAY_1} → {DAY_2} (kept)",
                f"~ a_l: limit {DAY_2} → {DAY_1} (kept)",
            ],
        ),
        (
            [f"key: a, label: net, cidr: [10.0.0.0/8], {ONE}", A2],
            [f"key: a, label: net, cidr: [10.0.0.0/9, 10.192.0.0/10], {ONE}", A2],
            [f"~ a_net: limit {DAY_1} → {DAY_2} (afresh)"],
        ),
        (
            [X1, f"key: a, value: xy, priority: 1, {TWO}"],
            [f"key: a, value: x*, priority: 2, {ONE}", f"key: a, value: xy, priority: 1, {TWO}"],
            [f"~ a_xy: limit {DAY_2} → {DAY_1} (kept)"],
        ),
        (
            [X1, f"key: a, value: '*y', {TWO}"],
            [X1, f"key: a, value: '*y', priority: 1, {TWO}"],
            [f"~ a_x* and a_*y: limit {DAY_1} → {DAY_2} (kept)"],
        ),
        (
            [f"key: a, prefix: {{ipv6: 64}}, {ONE}"],
            [f"key: a, prefix: {{ipv6: 48}}, {ONE}"],
            ["~ a: counter d|a~=2001:db8:1:2::/64|fixed_window/{0} → d|a~=2001:db8:1::/48|fixed_window/{0} (afresh)"],
        ),
    ],
)  # fmt: skip
def test_each_request_with_another_limit_is_a_change(old: list[str], new: list[str], expected: list[str]) -> None:
    assert [shown(change) for change in diff(files(*old), files(*new))] == [
        line.replace("{0}", "86400000000") for line in expected
    ]


def test_a_change_has_a_request_that_shows_it() -> None:
    plain = f"key: client_ip, {TWO}"

    [change] = diff(files(f"key: client_ip, value: 10.*, {ONE}", plain), files(plain))

    assert change.entries == (("client_ip", "10.other"),)


def test_a_domain_may_come_or_go() -> None:
    shop, mail = files(A1), files(A1, head="domain: mail")

    changes = diff(shop, mail)

    assert [(change.domain, change.kind) for change in changes] == [("d", "removed"), ("mail", "added")]


def test_an_option_of_the_domain_is_a_change_of_the_domain() -> None:
    plain, together = "key: a, charge: each, " + ONE, "domain: d\ncharge: together"

    [change] = diff(files(plain), files(plain, head=together))

    assert (change.kind, change.names) == ("changed", ())
    assert change.differences == [("charge of limits that come with requests", "each", "together")]


def test_the_time_that_a_denied_caller_is_told_to_wait_is_a_change() -> None:
    deny = "key: a, rate_limit: {{deny: true{0}}}"

    [change] = diff(files(deny.format("")), files(deny.format(", for: 1 hour")))

    assert change.differences == [("limit", "always denied", "always denied, with a retry after 1 h")]


def test_what_responses_have_is_a_change_of_the_domain() -> None:
    plain = "key: a, " + ONE

    [change] = diff(files(plain), files(plain, head="domain: d\nheaders: [ietf]\nretry_after: true"))

    assert change.differences == [("responses", "the decision alone", "headers ietf, Retry-After")]


TIERS = """\
domain: d
lookup: {{from: tiers, key: api_key, as: tier{0}}}
descriptors:
- {{key: tier, value: gold, rate_limit: {{unit: day, requests_per_unit: 2}}}}
- {{key: tier, value: free, rate_limit: {{unit: day, requests_per_unit: 1}}}}
"""


def tiers(keys: str, otherwise: str = "") -> RuleBook:
    """A book whose API keys are looked up in such a file."""
    return book(TIERS.format(otherwise), read_data=lambda _: keys.encode())


def test_values_of_a_lookup_that_get_another_tier_are_a_change() -> None:
    old, new = tiers("k1,gold\nk2,free\nk3,free\nk4,free\n"), tiers("k1,gold\nk2,gold\nk3,gold\nk4,free\n")

    changes = diff(old, new)

    assert [shown(change) for change in changes] == [f"~ api_key (2 values): limit {DAY_1} → {DAY_2} (kept)"]
    assert changes[0].entries == (("api_key", "k2"),)
    assert new.match("d", changes[0].entries) is changes[0].new
    assert diff(old, tiers("k4,free\nk1,gold\nk3,free\nk2,free\n")) == []


def test_what_a_lookup_makes_of_all_other_values_may_change() -> None:
    old, new = tiers("k1,gold\n"), tiers("k1,gold\n", ", else: free")

    assert [shown(change) for change in diff(old, new)] == [f"+ api_key: limit no limit → {DAY_1}"]


def test_digests_and_values_of_secrets_are_compared_as_what_they_stand_for() -> None:
    hash_value = HashValue("key", keep_digests=True)
    text = "domain: d\ndescriptors: [{{key: a, value: {0}, hash_values: true, {1}}}]\n"
    plain, digest, other = (
        book(text.format(value, limit), hash_value=hash_value)
        for value, limit in (("secret", ONE), (hash_value("secret"), ONE), ("secret", TWO))
    )

    assert diff(plain, digest) == []
    [change] = diff(plain, other)
    assert "secret" not in f"{change.entries}{change.names}"


def test_ten_thousand_rules_differ_in_one() -> None:
    many = [f"key: k, value: v{number}/*, {ONE}" for number in range(10_000)]

    changes = diff(files(*many), files(*many[:5000], f"key: k, value: v5000/*, {TWO}", *many[5001:]))

    assert [shown(change) for change in changes] == [f"~ k_v5000/*: limit {DAY_1} → {DAY_2} (kept)"]


def test_wildcards_in_the_opposite_order_have_no_changes_where_none_overlap() -> None:
    many = [f"key: k, value: v{number}/*, {ONE}" for number in range(3000)]

    assert diff(files(*many), files(*reversed(many))) == []


def test_too_many_overlaps_are_an_error_and_no_wait() -> None:
    many = [f"key: k, value: '*{number}', {ONE}" for number in range(320)]

    with pytest.raises(ComparisonError, match="more than 100,000 pairs of wildcards at one level"):
        diff(files(*many), files(*reversed(many)))


VALUE_LISTS = st.lists(st.sampled_from(["x", "y", "10.0.0.1", "10.0.0.2"]), min_size=1, unique=True)
NETWORKS = st.lists(st.sampled_from(["10.0.0.0/8", "10.0.0.0/31", "10.0.0.2/32", "0.0.0.0/0"]), min_size=1, unique=True)


@st.composite
def lists(draw: st.DrawFn) -> list[str]:
    """Descriptors of lists and networks, and one for all other values."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        compared = draw(st.one_of(VALUE_LISTS.map("values: {}".format), NETWORKS.map("cidr: {}".format)))
        requests, priority = draw(st.integers(1, 2)), draw(st.integers(0, 1))
        options = f"label: l{number}, priority: {priority * number}, not: {str(draw(st.booleans())).lower()}"
        found.append(f"key: k, {compared}, {options}, rate_limit: {{unit: day, requests_per_unit: {requests}}}")
    return [*found, "key: k, rate_limit: {unit: day, requests_per_unit: 3}"]


ADDRESSES = [
    "x",
    "y",
    "z",
    "10.0.0.0",
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "10.9.9.9",
    "9.9.9.9",
    "11.0.0.0",
    "::1",
    "::",
]


@given(lists(), lists())
def test_every_value_that_leaves_or_enters_a_list_or_a_network_is_of_a_change(old: list[str], new: list[str]) -> None:
    try:
        old_book, new_book = files(*old), files(*new)
    except RulesError:
        return
    found = {(change.old, change.new) for change in diff(old_book, new_book)}

    for value in ADDRESSES:
        entries = (("k", value),)
        rules = old_book.match("d", entries), new_book.match("d", entries)
        if compared("d", (), entries, *rules) is not None:
            assert rules in found


DEFAULT_5 = "domain: d\notherwise: {rate_limit: {unit: day, requests_per_unit: 5}}\n"
TREE = """\
descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}, {key: b}, {key: c, descriptors: [{key: a}]}]
"""


def changed(old: str, new: str) -> list[tuple[str, tuple[str, ...], str, str]]:
    """Of each change its domain, its names, and the limits."""
    return [
        (change.domain, tuple(change.names), limits_in_words(change.old), limits_in_words(change.new))
        for change in diff(book(old), book(new))
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (f"domain: d\n{TREE}", f"{DEFAULT_5}{TREE}", [("d", ("default",), "no limit", "5 requests per day")]),
        (
            f"{DEFAULT_5}{TREE}",
            f"{DEFAULT_5}{TREE}".replace("5", "6"),
            [("d", ("default",), "5 requests per day", "6 requests per day")],
        ),
        (
            f"{DEFAULT_5}{TREE}",
            f"{DEFAULT_5}{TREE}".replace("{key: b}, ", ""),
            [("d", ("b",), "no limit", "5 requests per day")],
        ),
        (
            f"{DEFAULT_5}{TREE}",
            f"{DEFAULT_5}{TREE}".replace("key: a, rate", "key: e, rate"),
            [
                ("d", ("a",), "1 request per day", "5 requests per day"),
                ("d", ("e",), "5 requests per day", "1 request per day"),
            ],
        ),
        (
            f"{DEFAULT_5}{TREE}",
            f"{DEFAULT_5}{TREE}".replace("{key: c,", "{key: f,"),
            [
                ("d", ("c", "a"), "no limit", "5 requests per day"),
                ("d", ("f", "a"), "5 requests per day", "no limit"),
            ],
        ),
    ],
)
def test_what_no_descriptor_fits_is_compared_by_the_default(
    old: str, new: str, expected: list[tuple[str, tuple[str, ...], str, str]]
) -> None:
    assert changed(old, new) == expected


def test_a_domain_that_gets_a_file_had_the_rules_of_any_domain() -> None:
    any_domain = 'domain: "*"\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}, {key: b}]\n'
    own = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: LIMIT}}]\n"

    [change] = diff(book(any_domain), book(any_domain, own.replace("LIMIT", "7")))

    assert (change.domain, tuple(change.names), change.counters) == ("d", ("a",), "kept")
    assert [limits_in_words(rule) for rule in (change.old, change.new)] == ["1 request per day", "7 requests per day"]
    assert diff(book(any_domain), book(any_domain, own.replace("LIMIT", "1"))) == []
