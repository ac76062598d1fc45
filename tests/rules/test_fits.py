"""Descriptors that compare values with more than one text: lists, networks; and priorities among them."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import RulesError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.rules.address import from_operator
from ratelimit_service.rules.book import RuleBook, free_books
from ratelimit_service.rules.checks.diff import diff
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.reading.fits import MAX_ALL_VALUES, MAX_LIST_BYTES
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.reasons import explain
from ratelimit_service.rules.rule import Rule, counted_entries, counter_key, metric_path
from ratelimit_service.rules.secret import NO_SECRETS, HashValue
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.rules.syntax.values import MAX_VALUES
from ratelimit_service.stores.memory import MemoryStore
from tests.books import book
from tests.clocks import Clock
from tests.verdicts import check

LIMIT = "rate_limit: {unit: day, requests_per_unit: 1}"


def level(*descriptors: str) -> str:
    """A file with these descriptors, the first of which is at 3:4; each has a limit."""
    return "domain: d\ndescriptors:\n" + "".join(f"- {{{descriptor}, {LIMIT}}}\n" for descriptor in descriptors)


def matched(rules: RuleBook, key: str, value: str) -> str | None:
    """The name of the level that an entry matches."""
    rule = rules.match("d", ((key, value),))
    return None if rule is None else rule.levels[0].name


def problems(*descriptors: str) -> list[str]:
    with pytest.raises(RulesError) as caught:
        book(level(*descriptors))
    return [str(problem) for problem in caught.value.problems]


def warnings(*descriptors: str) -> list[str]:
    return [str(warning) for warning in lint(book(level(*descriptors)))]


METHODS = book(level(
    "key: m, values: [GET, HEAD, '1', yes]",
    "key: m, value: P*",
    "key: m, values: [PUT, POST], label: writes",
    "key: m, value: PUT",
    "key: m",
    "key: n, values: [GET]",
))  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("m", "GET", "m_values(GET,HEAD,1,yes)"),
        ("m", "1", "m_values(GET,HEAD,1,yes)"),
        ("m", "yes", "m_values(GET,HEAD,1,yes)"),
        ("m", "PUT", "m_PUT"),  # the exact value first
        ("m", "POST", "m_P*"),  # then in the order of the file
        ("m", "get", "m"),
        ("m", "", "m"),
        ("n", "GET", "n_values(GET)"),
        ("n", "HEAD", None),
        ("m_values(GET,HEAD,1,yes)", "x", None),  # the name of a list is not a key
        ("m", "values(GET,HEAD,1,yes)", "m"),  # and not compared with values
        ("m", "writes", "m"),
    ],
)
def test_a_list_matches_each_of_its_values(key: str, value: str, name: str | None) -> None:
    assert matched(METHODS, key, value) == name


NETWORKS = book(level(
    "key: ip, cidr: [10.0.0.0/8, 2001:db8::/32], label: inner",
    "key: ip, cidr: 10.1.0.0/16",
    "key: ip, cidr: 10.1.2.3",
    "key: ip, value: 10.1.2.4",
    "key: ip, values: [10.1.2.5, '::FFFF:10.1.2.6', x]",
    "key: ip, cidr: ['::/0', 0.0.0.0/0], label: world",
    "key: ip",
))  # fmt: skip


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("10.2.3.4", "ip_inner"),
        ("10.1.3.4", "ip_cidr(10.1.0.0/16)"),  # the longest prefix, not the first
        ("10.1.2.3", "ip_cidr(10.1.2.3/32)"),
        ("::ffff:10.1.2.3", "ip_cidr(10.1.2.3/32)"),
        ("10.1.2.4", "ip_10.1.2.4"),
        ("10.1.2.5", "ip_cidr(10.1.0.0/16)"),  # in the file before the list, which has it too
        ("9.255.255.255", "ip_world"),
        ("11.0.0.0", "ip_world"),
        ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "ip_inner"),
        ("2001:DB8::%eth0", "ip_inner"),
        ("2001:db9::", "ip_world"),
        ("x", "ip_values(10.1.2.5,::FFFF:10.1.2.6,x)"),
        ("unknown", "ip"),
        ("10.1.2.0/24", "ip"),  # a network is not an address
    ],
)
def test_a_network_matches_its_addresses(value: str, name: str) -> None:
    assert matched(NETWORKS, "ip", value) == name


def test_one_value_may_stand_where_a_list_does() -> None:
    rules = book(level("key: m, values: GET", "key: ip, cidr: 10.0.0.0/8"))

    assert [matched(rules, "m", "GET"), matched(rules, "m", "PUT")] == ["m_values(GET)", None]
    assert matched(rules, "ip", "10.1.2.3") == "ip_cidr(10.0.0.0/8)"


@pytest.mark.parametrize(
    ("descriptors", "name"),
    [
        (["cidr: 10.0.0.0/8", "value: 10.1.*"], "ip_cidr(10.0.0.0/8)"),
        (["cidr: 10.0.0.0/8", "value: 10.1.*", "cidr: 10.1.2.0/24"], "ip_cidr(10.1.2.0/24)"),
        (["value: 10.1.*", "cidr: 10.0.0.0/8", "cidr: 10.1.2.0/24"], "ip_10.1.*"),
        (["cidr: 11.0.0.0/8", "values: 10.1.2.3", "cidr: 10.1.2.0/24"], "ip_cidr(10.1.2.0/24)"),
        (["not: true, cidr: 11.0.0.0/8", "value: 10.1.*", "cidr: 10.1.2.0/24"], "ip_not_cidr(11.0.0.0/8)"),
        (["cidr: 10.0.0.0/8, priority: -1", "value: 10.1.*", "cidr: 10.1.2.0/24"], "ip_10.1.*"),
    ],
)
def test_networks_stand_where_the_first_of_them_stands(descriptors: list[str], name: str) -> None:
    rules = book(level(*(f"key: ip, {each}" for each in descriptors)))

    assert matched(rules, "ip", "10.1.2.3") == name
    assert [one[1] for one in why(rules, "ip", "10.1.2.3") if one[2]] == [name]


def test_a_network_that_stands_with_one_before_a_wildcard_is_reached() -> None:
    networks = ["key: ip, cidr: 10.0.0.0/8", "key: ip, cidr: 10.1.2.0/24"]

    assert warnings(networks[0], "key: ip, value: '*'", networks[1]) == []
    assert "never reached" in str(warnings("key: ip, value: '*'", *networks))


@pytest.mark.parametrize("value", ["2001:db8::1", "2001:DB8:0::1", "2001:0db8::1%eth0"])
def test_an_address_in_a_list_matches_however_it_is_written(value: str) -> None:
    rules = book(level("key: ip, values: ['2001:DB8::0:1', 10.0.0.1]"))
    rule = rules.match("d", (("ip", value),))

    assert rule is not None
    assert counted_entries(rule, (("ip", value),)) == (("ip", "2001:db8::1"),)


NEGATED = book(level(
    "key: a, not: true, value: ada",
    "key: b, not: true, value: a*",
    "key: c, not: true, values: [x, 10.0.0.1]",
    "key: d, not: true, cidr: [10.0.0.0/8, '::/0']",
    "key: d, cidr: 10.1.0.0/16",
    "key: d, not: true, cidr: 10.1.0.0/16, label: far, priority: -1",
    "key: e, not: true, cidr: 0.0.0.0/0",
    "key: f, not: false, values: [x]",
))  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("a", "ada", None),
        ("a", "", "a_not_value(ada)"),
        ("a", "adam", "a_not_value(ada)"),
        ("b", "adam", None),
        ("b", "a", None),
        ("b", "", "b_not_value(a*)"),
        ("c", "x", None),
        ("c", "::ffff:10.0.0.1", None),
        ("c", "10.0.0.2", "c_not_values(x,10.0.0.1)"),
        ("d", "10.1.2.3", "d_cidr(10.1.0.0/16)"),
        ("d", "10.2.2.3", "d_far"),
        ("d", "11.2.2.3", "d_not_cidr(10.0.0.0/8,::/0)"),
        ("d", "::1", "d_far"),
        ("d", "unknown", "d_not_cidr(10.0.0.0/8,::/0)"),  # what is not an address is in no network
        ("e", "1.2.3.4", None),
        ("e", "::1", "e_not_cidr(0.0.0.0/0)"),
        ("f", "x", "f_values(x)"),
        ("f", "y", None),
    ],
)
def test_not_matches_all_other_values(key: str, value: str, name: str | None) -> None:
    assert matched(NEGATED, key, value) == name


@pytest.mark.parametrize("written", ["ada", "2001:DB8::1", "10.0.0.1", "10.*", "*"])
@pytest.mark.parametrize("secret", [False, True])
def test_not_with_a_value_is_the_opposite_of_the_value(written: str, secret: bool) -> None:
    also = f"value: '{written}', hash_values: {json.dumps(secret)}"
    both = [book(level(f"key: ip, {each}{also}"), hash_value=HashValue("key")) for each in ("", "not: true, ")]

    for value in ("ada", "2001:DB8::1", "2001:db8::1", "10.0.0.1", "::ffff:10.0.0.1", "", "*"):
        assert [rules.match("d", (("ip", value),)) is None for rules in both].count(True) == 1


@pytest.mark.parametrize(
    ("key", "value", "reasons"),
    [
        ("a", "x", ['fits: does not match "ada"']),
        ("a", "ada", ['does not fit: matches "ada"']),
        ("b", "x", ['fits: does not match "a*"']),
        ("b", "ada", ['does not fit: matches "a*"']),
        ("c", "x", ["does not fit: is one of 2 values"]),
        ("e", "x", ["fits: is in none of 1 network"]),
        ("e", "10.1.1.1", ["does not fit: 0.0.0.0/0 contains it"]),
    ],
)
def test_what_is_inverted_has_its_reason(key: str, value: str, reasons: list[str]) -> None:
    assert [reason for kind, _, _, reason in why(NEGATED, key, value) if kind == "not"] == reasons


def test_the_descriptors_that_are_tried_in_turn_have_a_bound() -> None:
    some = [f"key: k, not: true, value: v{number}" for number in range(100)]

    book(level(*some, "key: l, not: true, value: x"))
    assert problems(*some, "key: k, not: true, value: x", "key: k, not: true, value: y") == [
        "1.yaml:103:4: this level has more than 100 descriptors of this key with not or regex"
    ]


EXPRESSIONS = book(level(
    "key: p, regex: '/v[0-9]+/.*'",
    "key: p, regex: '.*[.]png', share_threshold: true, label: picture",
    "key: p, value: /v1/*",
    "key: p, not: true, regex: '/.*', priority: -1",
    "key: q, regex: 'a.c|x'",
    "key: q, regex: '(?i)straße|\\p{Greek}+'",
))  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("p", "/v12/x", "p_regex(/v[0-9]+/.*)"),
        ("p", "/v1/x.png", "p_regex(/v[0-9]+/.*)"),  # in the order of the file
        ("p", "/x.png", "p_picture"),
        ("p", "/x.png?", None),
        ("p", "x/v1/", "p_not_regex(/.*)"),
        ("p", "", "p_not_regex(/.*)"),
        ("q", "abc", "q_regex(a.c|x)"),
        ("q", "abcd", None),  # all of the value, for both alternatives
        ("q", "yx", None),
        ("q", "a\nc", None),
        ("q", "STRASSE", None),
        ("q", "STRAßE", "q_regex((?i)straße|\\p{Greek}+)"),
        ("q", "αβγ", "q_regex((?i)straße|\\p{Greek}+)"),
        ("q", "\ud800", None),
    ],
)
def test_a_regex_matches_whole_values(key: str, value: str, name: str | None) -> None:
    assert matched(EXPRESSIONS, key, value) == name


def test_a_regex_has_its_reason() -> None:
    assert [reason for kind, _, _, reason in why(EXPRESSIONS, "p", "x") if kind in ("regex", "not")] == [
        'does not fit: does not match "/v[0-9]+/.*"',
        'does not fit: does not match ".*[.]png"',
        'fits: does not match "/.*" (priority -1)',
    ]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a*)*b", "(x+x+)+y", "a*a*a*a*a*a*a*b", "(.*)(.*)(.*)(.*)c"])
def test_a_pattern_that_takes_others_for_ever_is_matched_by_a_long_value(pattern: str) -> None:
    rules = book(level(f"key: k, regex: '{pattern}'"))

    # The square of this length is more than a minute: this does not return if a match takes it.
    assert matched(rules, "k", "a" * 2_000_000 + "!") is None


def test_what_has_no_regex_does_not_load_re2() -> None:
    program = "import sys; from tests.books import book; book({!r}); print('re2' in sys.modules)"
    loaded = [
        subprocess.run([sys.executable, "-c", program.format(text)], capture_output=True, text=True, check=True).stdout
        for text in (level("key: k, values: [x]"), level("key: k, regex: x"))
    ]

    assert loaded == ["False\n", "True\n"]


def test_without_re2_a_regex_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['re2'] = None; from tests.books import book; from ratelimit_service.errors import *\n"
        f"try: book({level('key: k, regex: x')!r})\nexcept RulesError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    what = "needs the package google-re2; install ratelimit-service[regex], or write value with a *"
    assert done.stdout == f'1.yaml:3:19: regex "x": {what}\n'


PRIORITIES = book(level(
    "key: ip",
    "key: ip, value: 10.0.0.1",
    "key: ip, value: 10.0.0.2, priority: 1",
    "key: ip, value: 10.0.*, priority: 1",
    "key: ip, values: [10.0.0.3, 11.0.0.1], priority: 2",
    "key: ip, cidr: 10.0.0.0/30, priority: 3",
    "key: ip, cidr: 10.0.0.0/31, priority: 2",
    "key: low, priority: 5",
    "key: low, value: x",
    "key: ip, cidr: 12.0.0.0/8, priority: -1",
))  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("ip", "10.0.0.1", "ip_cidr(10.0.0.0/30)"),  # the highest priority, before exact values and longer prefixes
        ("ip", "10.0.0.4", "ip_10.0.*"),
        ("ip", "11.0.0.1", "ip_values(10.0.0.3,11.0.0.1)"),
        ("ip", "12.0.0.1", "ip"),
        ("low", "x", "low"),
    ],
)
def test_the_highest_priority_wins(key: str, value: str, name: str) -> None:
    assert matched(PRIORITIES, key, value) == name


def test_each_value_of_a_list_has_its_own_counter_unless_they_share_one() -> None:
    for share, keys in (("false", {"d|m=GET", "d|m=PUT"}), ("true", {"d|m~m_writes"})):
        rules = book(level(f"key: m, values: [GET, PUT], label: writes, share_threshold: {share}"))
        found = set()
        for value in ("GET", "PUT"):
            rule = rules.match("d", (("m", value),))
            assert rule is not None
            found.add(counter_key(rule, (("m", value),)).rpartition("|")[0])

        assert found == keys


def counted_by(value: str, *descriptors: str) -> str:
    """The key of the counter of an entry at a level with these descriptors."""
    rules = book(level(*descriptors), read_data=lambda _: b"10.1.1.1\nx\n")
    rule = rules.match("d", (("ip", value),))
    assert rule is not None
    return counter_key(rule, counted_entries(rule, (("ip", value),)))


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        ("10.1.1.1", "cidr: 10.0.0.0/8", "cidr: [10.0.0.0/8, 192.168.0.0/16]"),
        ("10.1.1.1", "cidr: 10.0.0.0/8", "cidr: 10.0.0.0/8, label: office"),
        ("10.1.1.1", "cidr: 10.0.0.0/8", "values: [10.1.1.1]"),
        ("10.1.1.1", "values: [10.1.1.1]", "values: ['::ffff:10.1.1.1', x]"),
        ("10.1.1.1", "values: [x, 10.1.1.1]", "values_from: list.txt"),
        ("10.1.1.1", "values_from: list.txt", "values_from: lists/blocked.txt"),
        ("10.1.1.1", "not: true, cidr: 10.2.0.0/16", "not: true, cidr: [10.2.0.0/16, 10.3.0.0/16]"),
        ("10.1.1.1", "not: true, values: [x]", "not: true, values: [x, 10.2.2.2]"),
        ("10.1.1.1", "prefix: {ipv4: 24}, cidr: 10.0.0.0/8", "prefix: {ipv4: 24}, cidr: [10.0.0.0/8, '::1']"),
        ("10.1.1.1", "prefix: {ipv4: 24}, values: 10.1.1.1", "prefix: {ipv4: 24}, values_from: list.txt"),
        ("x", "value: x", "values: [x, y]"),
        ("x", "values: [x, y]", "values: [x, y, 10.0.0.1]"),
        ("x", "values: [x, y]", "values_from: list.txt"),
        ("x", "not: true, values: [y]", "not: true, values: [y, 10.0.0.1]"),
        ("x", "prefix: {ipv4: 24}", "prefix: {ipv4: 16}"),
    ],
)
def test_a_counter_knows_nothing_of_the_list_that_its_value_is_in(value: str, old: str, new: str) -> None:
    before, after = f"key: ip, {old}", f"key: ip, {new}"
    files = [book(level(text), read_data=lambda _: b"10.1.1.1\nx\n") for text in (before, after)]

    assert counted_by(value, before) == counted_by(value, after)
    assert "afresh" not in {change.counters for change in diff(*files) if change.entries == (("ip", value),)}


def test_one_more_network_in_a_list_keeps_what_its_addresses_have_used_and_their_blocks() -> None:
    limiter = Limiter(MemoryStore(1000, Clock()))
    limit = "rate_limit: {unit: day, requests_per_unit: 3, block_for: 2 days}"
    asked = Request("d", [Descriptor((("ip", "10.1.1.1"),))])
    allowed = []
    for networks in ("10.0.0.0/8", "10.0.0.0/8, 192.168.0.0/16", "10.0.0.0/8, 172.16.0.0/12"):
        limiter.book = book(f"domain: d\ndescriptors: [{{key: ip, cidr: [{networks}], {limit}}}]")
        allowed += [check(limiter, asked).allowed for _ in range(2)]

    assert allowed == [True, True, True, False, False, False]


def test_a_network_that_an_operator_names_is_the_counter_of_its_addresses() -> None:
    rules = book(level("key: ip, cidr: 10.0.0.0/8, prefix: {ipv4: 24}", "key: ip, prefix: {ipv6: 64}", "key: net"))

    for key, sent, shown in (("ip", "10.1.2.3", "10.1.2.0/24"), ("ip", "2001:db8::1", "2001:db8::/64")):
        keys = set()
        for entries in (((key, sent),), from_operator(((key, shown),))):
            rule = rules.match("d", entries)
            assert rule is not None
            keys.add(counter_key(rule, counted_entries(rule, entries)))
        assert len(keys) == 1
    [(_, text)] = from_operator((("net", "10.0.0.0/8"),))
    assert rules.match("d", (("net", text),)) is not None


def test_descriptors_that_may_count_one_prefix_are_told_apart_by_their_order() -> None:
    halves = [f"key: ip, cidr: {network}, prefix: {{ipv4: 24}}" for network in ("10.1.1.0/25", "10.1.1.128/25")]
    rest = ("key: ip, value: 10.*, prefix: {ipv4: 24}", "key: ip, prefix: {ipv4: 24}")

    keys = [counted_by(value, *halves, *rest) for value in ("10.1.1.1", "10.1.1.200", "::ffff:10.1.2.3", "10.1.2.3")]
    assert [key.removesuffix("|fixed_window/86400000000") for key in keys] == [
        "d|ip~1=10.1.1.0/24",
        "d|ip~2=10.1.1.0/24",
        "d|ip~=10.1.2.0/24",
        "d|ip~ip_10.*=10.1.2.0/24",
    ]


def from_file(text: bytes, *descriptors: str, **options: Any) -> RuleBook:
    """The rules of these descriptors, in a folder that has the data file `list.txt`."""
    files = {"list.txt": text}
    return book(level(*descriptors), read_data=files.__getitem__, **options)


LISTED = b'# ours\nGET\n10.0.0.1, office\n"a,b"\n2001:DB8::1\n'


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("GET", "k_values_from(list.txt)"),
        ("::ffff:10.0.0.1", "k_values_from(list.txt)"),
        ("2001:db8:0::1", "k_values_from(list.txt)"),
        ("a,b", "k_values_from(list.txt)"),
        ("office", "k_not_values_from(list.txt)"),
        ("# ours", "k_not_values_from(list.txt)"),
    ],
)
def test_a_list_may_stand_in_a_data_file(value: str, name: str) -> None:
    rules = from_file(LISTED, "key: k, values_from: list.txt", "key: k, not: true, values_from: list.txt")

    assert matched(rules, "k", value) == name


def test_a_list_in_a_file_has_its_reason() -> None:
    rules = from_file(LISTED, "key: k, values_from: list.txt")

    assert why(rules, "k", "GET")[1] == (
        "list", "k_values_from(list.txt)", True, 'fits: is one of 4 values of "list.txt"',
    )  # fmt: skip


def test_a_list_that_changes_keeps_the_tally_of_its_rule() -> None:
    before = from_file(b"a\n", "key: k, values_from: list.txt, share_threshold: true")
    after = from_file(b"b\n", "key: k, values_from: list.txt, share_threshold: true", previous=before)

    assert (matched(before, "k", "b"), matched(after, "k", "b")) == (None, "k_values_from(list.txt)")
    assert before.rules[0].tally is after.rules[0].tally
    assert counter_key(before.rules[0], (("k", "a"),)) == counter_key(after.rules[0], (("k", "b"),))


def test_an_empty_list_in_a_file_matches_nothing() -> None:
    rules = from_file(b"# none yet\n", "key: k, values_from: list.txt", "key: k, not: true, values_from: list.txt")

    assert matched(rules, "k", "x") == "k_not_values_from(list.txt)"


def test_secret_values_of_a_file_are_digests_and_in_no_message() -> None:
    hash_value = HashValue("k")
    text = f"s3cret\n{hash_value('other')}\n".encode()

    rules = from_file(text, "key: k, hash_values: true, values_from: list.txt", hash_value=hash_value)
    with pytest.raises(RulesError) as caught:
        from_file(b"x\n  s3c*ret\n", "key: k, values_from: list.txt")

    assert [matched(rules, "k", value) is not None for value in ("s3cret", "other", "x", hash_value("other"))] == [
        True,
        True,
        False,
        False,
    ]
    assert [str(problem) for problem in caught.value.problems] == [
        "list.txt:2:3: a value with a *: the values of a list are compared as they are, with no *"
    ]
    with pytest.raises(RulesError, match=r'1\.yaml:4:25: the values of "k" are secret in this domain'):
        from_file(text, "key: k, hash_values: true", "key: k, values_from: list.txt", hash_value=hash_value)


def test_a_file_that_is_not_there_is_an_error_at_its_name() -> None:
    with pytest.raises(RulesError, match=r"1\.yaml:3:25: values_from .* cannot be read: no such file"):
        book(level("key: k, values_from: /nowhere/list.txt"))


def test_all_lists_together_have_a_bound() -> None:
    text = "".join(f"{number}\n" for number in range(MAX_ALL_VALUES // 20 + 1)).encode()

    with pytest.raises(RulesError) as caught:
        from_file(text, *(f"key: k{number}, values_from: list.txt" for number in range(10, 30)))

    assert str(caught.value) == "1.yaml:22:27: all lists together have more than 2,000,000 values"


def test_secret_addresses_of_a_list_match_however_they_are_written_and_have_one_counter() -> None:
    digest = HashValue("key")("2001:db8::1")
    keys = set()
    for listed in ("2001:DB8::1", digest):
        rules = book(level(f"key: ip, values: ['{listed}'], hash_values: true"), hash_value=HashValue("key"))
        for value in ("2001:db8::1", "2001:DB8:0::1"):
            rule = rules.match("d", (("ip", value),))
            assert rule is not None
            keys.add(counter_key(rule, counted_entries(rule, (("ip", value),))))

    assert keys == {f"d|ip~={digest}|fixed_window/86400000000"}


def test_a_list_has_one_name_in_metrics_and_its_values_by_option() -> None:
    for option, path in (("", ("d", "m_values(GET,PUT)")), ("value_to_metric: true, ", ("d", "m_PUT"))):
        rule = book(level(f"key: m, {option}values: [GET, PUT]")).match("d", (("m", "PUT"),))
        assert rule is not None
        assert metric_path(rule, (("m", "PUT"),)) == path


def test_the_name_of_a_long_list_is_short_and_its_own() -> None:
    lists = [", ".join(f"value-{number}" for number in range(100 + more)) for more in (0, 1)]

    first, second = (book(level(f"key: k, values: [{some}]")).rules[0].levels[0].name for some in lists)

    assert first.startswith("k_values(value-0,value-1,value-2,value-3,value-4,…")
    assert len(first) < 80
    assert first != second


def test_a_list_of_secret_values_has_digests_of_them() -> None:
    hash_value = HashValue("0123456789abcdef0123456789abcdef")
    digest = hash_value("s3cret")
    for values in ("[s3cret, other]", f"[{digest}, other]"):
        rules = book(
            level(f"key: k, hash_values: true, values: {values}", "key: k, hash_values: true, value: '*'"),
            hash_value=hash_value,
        )

        name = matched(rules, "k", "s3cret")
        assert name is not None
        assert name.startswith(f"k_values({digest},")
        assert [(kind, chosen) for kind, _, chosen, _ in why(rules, "k", "s3cret")] == [
            ("exact", False),
            ("list", True),
            ("wildcard", False),
            ("key", False),
        ]
        assert "s3cret" not in repr(why(rules, "k", "s3cret"))
        assert matched(rules, "k", digest) == "k_*"
        assert "s3cret" not in repr(rules.rules)


def test_values_of_a_list_are_refused_where_they_are_secret_elsewhere() -> None:
    with pytest.raises(RulesError) as caught:
        book(level("key: k, hash_values: true", "key: k, values: [a]"), hash_value=HashValue("k"))

    assert [str(problem) for problem in caught.value.problems] == [
        '1.yaml:4:20: the values of "k" are secret in this domain; write hash_values: true here too'
    ]


GROUPED = """\
domain: d
descriptors:
- {key: ip, cidr: "2001:db8:0:0:8000::/65", prefix: {ipv6: 64}, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: ip, prefix: {ipv4: 24, ipv6: 64}, rate_limit: {unit: day, requests_per_unit: 3}}
"""


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("10.1.2.3", "d|ip~=10.1.2.0/24"),
        ("::ffff:10.1.2.99", "d|ip~=10.1.2.0/24"),
        ("2001:DB8::1", "d|ip~=2001:db8::/64"),
        # The same network by another rule: another counter.
        ("2001:db8:0:0:8000::1", "d|ip~1=2001:db8::/64"),
        ("unknown", "d|ip=unknown"),
        # Whoever can send any text must not use up what a network has.
        ("2001:db8::/64", "d|ip=2001:db8::/64"),
    ],
)
def test_addresses_are_counted_by_their_prefix_and_texts_as_they_are(value: str, key: str) -> None:
    rule = book(GROUPED).match("d", (("ip", value),))

    assert rule is not None
    counted = counted_entries(rule, (("ip", value),))
    assert counter_key(rule, counted) == f"{key}|fixed_window/86400000000"


def test_values_that_are_no_addresses_are_counted_where_addresses_are_meant() -> None:
    limiter = Limiter(MemoryStore(1000, Clock()))
    limiter.book = book(
        level("key: ip, cidr: 10.0.0.0/8", "key: ip", "key: user"), level("key: ip").replace("domain: d", "domain: e")
    )

    for key, value in (("ip", "10.0.0.1"), ("ip", "unknown"), ("ip", ""), ("user", "ada")):
        for _ in range(2):
            check(limiter, Request("d", [Descriptor(((key, value),)), Descriptor((("user", "x"), (key, value)))]))
    check(limiter, Request("e", [Descriptor((("ip", "unknown"),))]))

    assert limiter.domains.of("d").no_address == 2 * 2 * 2
    assert limiter.domains.of("e").no_address == 0


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [
        (["key: k, values: {x: 1}"], ["1.yaml:3:20: values must be a list, not a map"]),
        (["key: k, values: []"], [
            "1.yaml:3:20: values is an empty list, which fits nothing; remove it, or write what fits",
        ]),
        (["key: k, values: [1.5]"], [
            "1.yaml:3:21: each of values must be text, and 1.5 is a number; write it in quotes",
        ]),
        (["key: k, values: [~]"], ["1.yaml:3:21: each of values must be text, not null; write it in quotes"]),
        (["key: k, values: [a, [b]]"], ["1.yaml:3:24: each of values must be text, not a list"]),
        (["key: k, values: [a*]"], [
            ('1.yaml:3:21: "a*": the values of a list are compared as they are, with no *; '
            "write it as the value of a descriptor"),
        ]),
        (["key: k, value: a, values: [b]"], [
            "1.yaml:3:22: values contradicts value: a descriptor has one of value, values, values_from, cidr and regex",
        ]),
        (["key: k, cidr: 10.0.0.0/8, values: [b]"], [
            "1.yaml:3:30: values contradicts cidr: a descriptor has one of value, values, values_from, cidr and regex",
        ]),
        (["key: k*, values: [b]"], ["1.yaml:3:9: a key with a * in it cannot have values, which is for one key"]),
        (["key: k, label: x"], ["1.yaml:3:12: label has no meaning without values, values_from, cidr, regex or not"]),
        (["key: k, value: x, label: x"], [
            "1.yaml:3:22: label has no meaning without values, values_from, cidr, regex or not",
        ]),
        (["key: k, cidr: 10.0.0.0/33"], [
            '1.yaml:3:18: "10.0.0.0/33" is not a network, such as 10.0.0.0/8 or 2001:db8::/32',
        ]),
        (["key: k, cidr: [10.0.0.0/8, x]"], ['1.yaml:3:31: "x" is not a network, such as 10.0.0.0/8 or 2001:db8::/32']),
        (["key: k, cidr: {}"], ["1.yaml:3:18: cidr must be a list, not a map"]),
        (["key: k, cidr: [10.0.0.0/8, '::ffff:10.1.0.0/104']"], [
            "1.yaml:3:31: network 10.0.0.0/8 is given twice at this level, first at 1.yaml:3:19; remove one of them",
        ]),
        (["key: k, cidr: 10.0.0.0/8, label: a", "key: k, cidr: [11.0.0.0/8, 10.0.0.0/8]"], [
            "1.yaml:4:31: network 10.0.0.0/8 is given twice at this level, first at 1.yaml:3:18; remove one of them",
        ]),
        (["key: k, values: [a]", "key: k, values: [a]"], [
            '1.yaml:4:4: descriptor "k_values(a)" is given twice at this level, first at 1.yaml:3:4; join them',
        ]),
        (["key: k, values: [a], label: one", "key: k, values: [a], label: two, priority: 1"], [
            "1.yaml:4:4: this descriptor matches what the one at 1.yaml:3:4 does; join them",
        ]),
        (["key: k, values: [a], label: x", "key: k, values: [b], label: x"], [
            '1.yaml:4:4: descriptor "k_x" is given twice at this level, first at 1.yaml:3:4; join them',
        ]),
        (["key: k, values: [a], label: x", "key: k, value: x"], [
            '1.yaml:4:4: descriptor "k_x" is given twice at this level, first at 1.yaml:3:4; join them',
        ]),
        (["key: k, not: true"], [
            "1.yaml:3:12: not has nothing to invert; write value, values, values_from, cidr or regex beside it",
        ]),
        (["key: k, not: true, value: ''"], [
            "1.yaml:3:12: not has nothing to invert; write value, values, values_from, cidr or regex beside it",
        ]),
        (["key: k*, not: true, value: x"], [
            "1.yaml:3:9: a key with a * in it cannot have value, which is for one key",
        ]),
        (["key: k, not: true, value: x", "key: k, not: true, value: x"], [
            '1.yaml:4:4: descriptor "k_not_value(x)" is given twice at this level, first at 1.yaml:3:4; join them',
        ]),
        (["key: k, not: true, cidr: ['::1', '::1/128']"], [
            "1.yaml:3:37: network ::1/128 is given twice at this level, first at 1.yaml:3:30; remove one of them",
        ]),
        (["key: k, regex: 'a(b'"], ['1.yaml:3:19: regex "a(b": missing ): a(b']),
        (["key: k, regex: '(a)\\1'"], ['1.yaml:3:19: regex "(a)\\1": invalid escape sequence: \\1']),
        (["key: k, regex: 'a(?=b)'"], ['1.yaml:3:19: regex "a(?=b)": invalid perl operator: (?=']),
        (["key: k, regex: '((a{100}){100}){100}'"], [
            '1.yaml:3:19: regex "((a{100}){100}){100}": invalid repetition size: {100}',
        ]),
        (["key: k, regex: '\\pL{1000}'", f"key: k, regex: {'x' * 1001}"], [
            '1.yaml:3:19: regex "\\pL{1000}": pattern too large - compile failed',
            f'1.yaml:4:19: regex "{"x" * 79}…": is longer than 1,000 characters',
        ]),
        (["key: k, regex: ''"], ["1.yaml:3:19: regex must not be empty"]),
        (["key: k, regex: x", "key: k, regex: x, label: y"], [
            "1.yaml:4:4: this descriptor matches what the one at 1.yaml:3:4 does; join them",
        ]),
        (["key: k, priority: high"], [
            '1.yaml:3:22: priority must be a whole number from -1000000 to 1000000, not the text "high"',
        ]),
        (["key: k, prefix: {ipv4: 0, ipv6: 129}"], [
            "1.yaml:3:27: ipv4 must be a whole number from 1 to 32, not the number 0",
            "1.yaml:3:36: ipv6 must be a whole number from 1 to 128, not the number 129",
        ]),
        (["key: k, prefix: {}"], [
            "1.yaml:3:12: prefix has neither ipv4 nor ipv6, the lengths of the prefixes by which addresses are counted",
        ]),
        (["key: k, value: a, prefix: {ipv6: 64}"], [
            "1.yaml:3:22: prefix has no meaning for a single value, which has a single counter",
        ]),
        (["key: k, cidr: 10.0.0.0/8, share_threshold: true, prefix: {ipv6: 64}"], [
            "1.yaml:3:53: prefix contradicts share_threshold, with which all values share one counter",
        ]),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_at_its_place(descriptors: list[str], expected: list[str]) -> None:
    assert problems(*descriptors) == expected


def test_the_same_network_with_another_priority_or_of_another_key_is_no_mistake() -> None:
    rules = book(
        level(
            "key: k, cidr: 10.0.0.0/8",
            "key: k, cidr: [10.0.0.0/8, 11.0.0.0/8], priority: 1",
            "key: l, cidr: 10.0.0.0/8",
        )
    )

    assert matched(rules, "k", "10.0.0.1") == "k_cidr(10.0.0.0/8,11.0.0.0/8)"
    assert matched(rules, "l", "10.0.0.1") == "l_cidr(10.0.0.0/8)"


def test_the_same_network_in_two_files_of_a_domain_names_both() -> None:
    with pytest.raises(RulesError) as caught:
        book(level("key: k, cidr: 10.0.0.0/8"), level("key: k, cidr: [10.0.0.0/8, 11.0.0.0/8]"), merge_domains=True)

    (problem,) = caught.value.problems
    assert str(problem).startswith("2.yaml:3:19: network 10.0.0.0/8 is given twice at this level, first at 1.yaml:3:18")


def test_a_list_has_a_bound_of_values_and_of_bytes() -> None:
    many = json.dumps([str(number) for number in range(MAX_VALUES + 1)])
    large = json.dumps(["x" * (MAX_LIST_BYTES // 2), "y" * (MAX_LIST_BYTES // 2), "z"])

    assert problems(f"key: k, values: {many}") == [
        "1.yaml:3:20: values has more than 200,000 values; make two descriptors of them"
    ]
    assert problems(f"key: k, values: {large}") == [
        "1.yaml:3:20: the values of this list are larger than 8 MiB; put them into a data file"
    ]


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [
        (["key: k, values: [a, b, a]"], ['1.yaml:3:27: warning: "a" is in this list twice [duplicate]']),
        (["key: k, values: ['::1', '0::1']"], ['1.yaml:3:28: warning: "0::1" is in this list twice [duplicate]']),
        (["key: k, values: [a, b]", "key: k, values: [b, c]"], [
            '1.yaml:4:4: warning: "b" is in the list at 1.yaml:3:4 too, which is tried first [duplicate]',
        ]),
        (["key: k, values: [a, 10.0.0.1]", "key: k, values: ['::ffff:10.0.0.1']"], [
            '1.yaml:4:4: warning: "10.0.0.1" is in the list at 1.yaml:3:4 too, which is tried first [duplicate]',
        ]),
        (["key: k, values: [a, b]", "key: k, values: [b, c], priority: 1"], []),
        (["key: k, cidr: [10.0.0.1/8]"], [
            '1.yaml:3:19: warning: "10.0.0.1/8" has bits of a host; it is used as the network 10.0.0.0/8 [host-bits]',
        ]),
        (["key: k, cidr: [10.0.0.0/8, 10.1.0.0/16]"], [
            ("1.yaml:3:4: warning: 10.1.0.0/16 changes nothing: it is inside 10.0.0.0/8; remove one of them "
            "[overlap]"),
        ]),
        (["key: k, value: a*", "key: k, value: ab*, priority: 1"], []),
        (["key: k, value: '*'", "key: k, values: [a]"], [
            ('1.yaml:4:4: warning: "k_values(a)" is never reached: "k_*" at 1.yaml:3:4 fits first, whatever would fit '
            "this; move it before that one, or remove it [unreached]"),
        ]),
        (["key: k, values: [a]", "key: k, value: '*'"], []),
        (["key: k, values: [a]", "key: k, value: '*', priority: 1"], [
            ('1.yaml:3:4: warning: "k_values(a)" is never reached: "k_*" at 1.yaml:4:4 fits first, whatever would fit '
            "this; give it a higher priority, or remove it [unreached]"),
        ]),
        (["key: k, value: 'a*'", "key: k, values: [a]"], []),
        (["key: k, cidr: 10.0.0.0/8", "key: k, priority: 1"], [
            ('1.yaml:3:4: warning: "k_cidr(10.0.0.0/8)" is never reached: "k" at 1.yaml:4:4 fits first, whatever '
            "would fit this; give it a higher priority, or remove it [unreached]"),
        ]),
        (["key: k, value: ab", "key: k, value: a*, priority: 1"], [
            ('1.yaml:3:4: warning: "k_ab" is never reached: "k_a*" at 1.yaml:4:4 fits first, whatever would fit this; '
            "give it a higher priority, or remove it [unreached]"),
        ]),
    ],
)  # fmt: skip
def test_what_is_allowed_but_hardly_meant_is_warned_of(descriptors: list[str], expected: list[str]) -> None:
    assert warnings(*descriptors) == expected


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [
        (["value: x", "values: [x, y]"], ["4 duplicate"]),
        (["values: [x, y]", "value: x"], ["3 duplicate"]),
        (["value: 10.0.0.1", "values: [10.0.0.1], priority: 1"], ["3 duplicate"]),
        (["value: z", "values: [x, y]"], []),
        (["value: a*", "not: true, value: a*", "priority: 0"], ["5 unreached"]),
        (["value: a*", "not: true, value: b*", "priority: 0"], []),
        (["value: a*, priority: 1", "not: true, value: a*", "priority: 1"], ["4 unreached"]),
        (["cidr: 10.0.0.0/8", "not: true, cidr: 10.0.0.0/8", "regex: a+"], ["5 unreached"]),
        (["regex: a+", "cidr: 10.0.0.0/8", "not: true, cidr: 10.0.0.0/8"], []),
        (["values: [a, b]", "not: true, values: [b, a]", "priority: 0", "value: c"], ["5 unreached"]),
        (["values: [a, b]", "not: true, values: [b, c]", "priority: 0"], []),
        (["not: true, value: '*'"], ["3 unreached"]),
        (["not: true, regex: .*"], ["3 unreached"]),
        (["regex: .*", "value: x", "value: x*", "priority: 0"], ["3 regex", "5 unreached", "6 unreached"]),
        (["regex: .+", "priority: 0"], []),
        (["regex: '.{0,999}'", "priority: 0"], []),
    ],
)
def test_what_no_request_reaches_is_warned_of(descriptors: list[str], expected: list[str]) -> None:
    found = lint(book(level(*(f"key: k, {each}" for each in descriptors))))

    assert [f"{warning.line} {warning.kind}" for warning in found] == expected


def test_a_warning_names_what_is_reached_first() -> None:
    [_, by_one] = warnings("key: k, regex: .*", "key: k")
    [by_two] = warnings("key: k, value: a", "key: k, not: true, value: a", "key: k, value: b, priority: -2")
    advice = "give it a higher priority, or remove it [unreached]"

    assert by_one == (
        '1.yaml:4:4: warning: "k" is never reached: "k_regex(.*)" at 1.yaml:3:4 fits first, whatever would fit this; '
        + advice
    )
    assert by_two == (
        '1.yaml:5:4: warning: "k_b" is never reached: "k_a" at 1.yaml:3:4 and "k_not_value(a)" at 1.yaml:4:4 fit all '
        f"values between them; {advice}"
    )


def test_a_prefix_where_nothing_is_counted_is_warned_of() -> None:
    denied = "key: ip, prefix: {ipv6: 64}, rate_limit: {deny: true}"
    below = f"{denied}, descriptors: [{{key: user, {LIMIT}}}]"

    assert [str(warning) for warning in lint(book(f"domain: d\ndescriptors:\n- {{{denied}}}\n"))] == [
        "1.yaml:3:13: warning: prefix has no effect: what is always denied, or allowed, has no counter [no-effect]"
    ]
    assert lint(book(f"domain: d\ndescriptors:\n- {{{below}}}\n")) == []


def test_a_list_without_a_limit_exempts_if_something_else_would_match() -> None:
    exempting = "domain: d\ndescriptors:\n- {key: k, values: [a]}\n"

    assert lint(book(f"{exempting}- {{key: k, {LIMIT}}}\n")) == []
    (warning,) = lint(book(exempting))
    assert warning.kind == "no-effect"


def why(rules: RuleBook, key: str, value: str) -> list[tuple[str, str, bool, str]]:
    """The candidates of an entry."""
    (found,) = explain(rules, Request("d", [Descriptor(((key, value),))])).descriptors
    return [(one.kind, one.name, one.chosen, one.reason) for one in found.steps[0].candidates]


def test_each_candidate_has_its_reason_in_the_order_of_ranks() -> None:
    rules = book(level(
        "key: ip",
        "key: ip, cidr: 10.0.0.0/8",
        "key: ip, cidr: 10.1.0.0/16",
        "key: ip, cidr: [11.0.0.0/8, 12.0.0.0/8]",
        "key: ip, values: [a, b]",
        "key: ip, value: 10.*",
        "key: ip, values: [c], priority: 2",
        "key: other, values: [c]",
    ))  # fmt: skip

    assert why(rules, "ip", "10.1.2.3") == [
        ("list", "ip_values(c)", False, "does not fit: is none of 1 value (priority 2)"),
        ("exact", "ip_10.1.2.3", False, "there is none"),
        ("range", "ip_cidr(10.0.0.0/8)", False, "not taken: 10.0.0.0/8 contains it, and so does a longer prefix"),
        ("range", "ip_cidr(10.1.0.0/16)", True, "fits: 10.1.0.0/16 contains it"),
        ("range", "ip_cidr(11.0.0.0/8,12.0.0.0/8)", False, "not tried: an earlier one fits"),
        ("list", "ip_values(a,b)", False, "not tried: an earlier one fits"),
        ("wildcard", "ip_10.*", False, "not tried: an earlier one fits"),
        ("key", "ip", False, "not tried: an earlier one fits"),
    ]
    assert why(rules, "ip", "b") == [
        ("list", "ip_values(c)", False, "does not fit: is none of 1 value (priority 2)"),
        ("exact", "ip_b", False, "there is none"),
        ("range", "ip_cidr(10.0.0.0/8)", False, "does not fit: is not an address"),
        ("range", "ip_cidr(10.1.0.0/16)", False, "does not fit: is not an address"),
        ("range", "ip_cidr(11.0.0.0/8,12.0.0.0/8)", False, "does not fit: is not an address"),
        ("list", "ip_values(a,b)", True, "fits: is one of 2 values"),
        ("wildcard", "ip_10.*", False, "not tried: an earlier one fits"),
        ("key", "ip", False, "not tried: an earlier one fits"),
    ]


# A naive matcher, to compare the compiled one with: it tests every descriptor.

WORDS = ["a", "ab", "b", "10.0.0.1", "10.0.0.2", "10.0.1.1", "::ffff:10.0.0.1", "2001:db8::1", "2001:DB8:0::1", "::1"]
PATTERNS = ["a*", "*", "10.0.0.*", "*1", "a"]
CIDRS = ["10.0.0.0/8", "10.0.0.0/24", "10.0.0.1/32", "0.0.0.0/0", "::/0", "2001:db8::/32", "::ffff:10.0.0.0/120", "::1"]


COMPARED: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"value": st.sampled_from([*WORDS, *PATTERNS])}),
    st.fixed_dictionaries({"values": st.lists(st.sampled_from(WORDS), min_size=1, unique=True)}),
    st.fixed_dictionaries({"regex": st.sampled_from(["a", "a|b", ".*1", "[^0-9]*", "(a|ab)(b?)"])}),
    st.fixed_dictionaries({"cidr": st.lists(st.sampled_from(CIDRS), min_size=1, max_size=3, unique=True)}),
)


@st.composite
def descriptors(draw: st.DrawFn, *, priorities: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"key": draw(st.sampled_from(["k", "k", "k", "l", "k_a"])), **draw(COMPARED)}
    if len(found) > 1 and draw(st.integers(0, 3)) == 0:
        found["not"] = True
    return {**found, "priority": draw(st.integers(0, 2))} if priorities else found


LEVELS = st.lists(descriptors(priorities=True), min_size=1, max_size=8)


def parsed(some: Sequence[Mapping[str, Any]]) -> RuleBook | None:
    """The book of these descriptors; None if some of them contradict each other."""
    limited = [{**each, "rate_limit": {"unit": "day", "requests_per_unit": 1}} for each in some]
    try:
        return parse([YamlText("d.yaml", json.dumps({"domain": "d", "descriptors": limited}).encode())])
    except RulesError:
        return None


def canonical(text: str) -> object:
    try:
        address = ip_address(text)
    except ValueError:
        return text
    return getattr(address, "ipv4_mapped", None) or address


def prefix_of(network: str, value: str) -> int:
    """The length of the prefix if the address is in the network, else -1."""
    found = ip_network(network)
    if network.startswith("::ffff:"):
        found = ip_network("10.0.0.0/24")
    address = canonical(value)
    return found.prefixlen if not isinstance(address, str) and address in found else -1


def fitting_prefix(each: Mapping[str, Any], value: str) -> int:
    return max((prefix_of(network, value) for network in each.get("cidr", ())), default=-1)


def wild(pattern: str, text: str) -> bool:
    start, star, end = pattern.partition("*")
    return (
        text == pattern if not star else len(text) >= len(pattern) - 1 and text.startswith(start) and text.endswith(end)
    )


def matches(each: Mapping[str, Any], value: str) -> bool:
    """Whether what would be inverted matches the value."""
    if "cidr" in each:
        return fitting_prefix(each, value) >= 0
    if "values" in each:
        return canonical(value) in [canonical(one) for one in each["values"]]
    if "regex" in each:
        return re.fullmatch(each["regex"], value) is not None
    return wild(each["value"], value)


def naive(some: Sequence[Mapping[str, Any]], key: str, value: str) -> int | None:
    """The index of the descriptor that the entry matches, by the sentence in docs/rules.md."""
    fitting: list[tuple[int, int, int, int]] = []
    """Of each that fits: the negated priority, the class, where it stands in the order of the file, its index."""
    for index, each in enumerate(some):
        own, order = each["key"], -each.get("priority", 0)
        name = f"{own}_{each['value']}" if each.get("value") else own
        text = f"{key}_{value}"
        if each.get("not"):
            if own == key and not matches(each, value):
                fitting.append((order, 1, index, index))
        elif "values" in each:
            if own == key and canonical(value) in [canonical(one) for one in each["values"]]:
                fitting.append((order, 1, index, index))
        elif "cidr" in each:
            others = [
                fitting_prefix(other, value)
                for other in some
                if "cidr" in other
                and other["key"] == key
                and other.get("priority", 0) == -order
                and not other.get("not")
            ]
            if own == key and 0 <= fitting_prefix(each, value) == max(others):
                first = next(
                    place
                    for place, other in enumerate(some)
                    if "cidr" in other
                    and other["key"] == key
                    and other.get("priority", 0) == -order
                    and not other.get("not")
                )
                fitting.append((order, 1, first, index))
        elif "regex" in each:
            if own == key and re.fullmatch(each["regex"], value):
                fitting.append((order, 1, index, index))
        elif name == text:
            fitting.append((order, 0, index, index))
        elif "*" in name and wild(name, text):
            fitting.append((order, 1, index, index))
        elif name == key:
            fitting.append((order, 2, index, index))
    return min(fitting)[3] if fitting else None


def matched_index(rules: RuleBook, some: Sequence[Mapping[str, Any]], key: str, value: str) -> int | None:
    children = list(rules.domains["d"].children.values())
    node = rules.domains["d"].child(key, value, NO_SECRETS)
    assert len(children) == len(some)
    return None if node is None else children.index(node)


ASKED = [
    (key, value) for key in ("k", "l", "k_a") for value in (*WORDS, "", "c", "10.9.9.9", "2001:db8::2", "x1", "a*")
]


@given(LEVELS)
def test_matching_agrees_with_its_definition(some: list[dict[str, Any]]) -> None:
    rules = parsed(some)
    if rules is None:
        return

    for key, value in ASKED:
        expected = naive(some, key, value)
        rule = rules.match("d", ((key, value),))
        assert matched_index(rules, some, key, value) == expected
        assert (rule is None) is (expected is None)
        (found,) = explain(rules, Request("d", [Descriptor(((key, value),))])).descriptors
        chosen = [one.name for one in found.steps[0].candidates if one.chosen]
        assert chosen == ([] if rule is None else [rule.levels[0].name])


PREFIXES = [None, {"ipv4": 24, "ipv6": 64}, {"ipv6": 64}, {"ipv4": 8}]


@given(LEVELS, st.lists(st.sampled_from(PREFIXES), min_size=8, max_size=8))
def test_two_descriptors_of_a_level_never_share_a_counter(
    some: list[dict[str, Any]], prefixes: list[dict[str, int] | None]
) -> None:
    rules = parsed(
        [
            each if prefix is None or ("value" in each and "*" not in each["value"]) else {**each, "prefix": prefix}
            for each, prefix in zip(some, prefixes, strict=False)
        ]
    )
    if rules is None:
        return

    owners: dict[str, Rule] = {}
    for key, value in [*ASKED, *(("k", text) for text in ("10.0.0.0/24", "2001:db8::/64", "10.0.0.0/8"))]:
        rule = rules.match("d", ((key, value),))
        if rule is not None:
            counter = counter_key(rule, counted_entries(rule, ((key, value),)))
            assert owners.setdefault(counter, rule) is rule


@given(st.lists(descriptors(priorities=False), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_with_distinct_priorities_the_order_of_the_file_does_not_matter(
    some: list[dict[str, Any]], random: Random
) -> None:
    ranked = [{**each, "priority": number} for number, each in enumerate(some)]
    shuffled = random.sample(ranked, len(ranked))
    rules, others = parsed(ranked), parsed(shuffled)
    assert (rules is None) is (others is None)
    if rules is None or others is None:
        return

    for key, value in ASKED:
        here, there = matched_index(rules, ranked, key, value), matched_index(others, shuffled, key, value)
        assert (None if here is None else ranked[here]) == (None if there is None else shuffled[there])


def test_a_book_is_freed_with_its_lists() -> None:
    rules = book(
        level(f"key: k, values: {json.dumps([str(number) for number in range(3000)])}", "key: k, cidr: 10.0.0.0/8")
    )
    books = [rules]
    del rules

    free_books(books)

    assert books == []
