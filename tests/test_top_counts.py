"""Which descriptors are counted as the hottest, under which names, and what the log of hits costs in memory."""

import itertools
import tracemalloc
from collections.abc import Mapping
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.limiter.hit_log import MAX_PENDING, HitLogs
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.bans import FOR_EVER, make_ban
from ratelimit_service.rules.descriptor_name import MAX_LENGTH, descriptor_name, read_descriptor_name
from ratelimit_service.rules.rule import Entries, counted_entries, counter_key
from ratelimit_service.rules.secret import DIGEST, HashValue
from ratelimit_service.stores.hit import DeniedHit
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.top_counts import RecentTop
from tests.books import book
from tests.clocks import Clock
from tests.shop import Shop

RULES: Final = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: soft
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - {key: never, rate_limit: {deny: true}}
  - {key: softly, shadow_mode: true, rate_limit: {deny: true}}
  - {key: always, rate_limit: {unlimited: true}}
  - {key: much, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: ip, prefix: {ipv4: 24}, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: token, hash_values: true, rate_limit: {unit: year, requests_per_unit: 9}}
  - key: path
    value: /a.b|c=%d~
    descriptors:
      - {key: verb, rate_limits: [{unit: year, requests_per_unit: 9}, {unit: hour, requests_per_unit: 9}]}
  - {key: agent, value: "bot*", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 9}}
"""

BYTES: Final = 12 * 1024 * 1024
"""For all names of a process, were each as long as a request can make it, and of characters of four bytes."""

Numbers = dict[tuple[str, Entries], tuple[float, float]]
"""Allowed and refused hits, by the rule's path and the entries."""


def shop_of(rules: str = RULES) -> Shop:
    shop = Shop("domain: shop\ndescriptors: []\n")
    shop.limiter.book = book(rules, hash_value=HashValue("a key"))
    return shop


def taken(log: HitLogs) -> Numbers:
    allowed, refused = (sketch.counts for sketch in log.drain())
    return {
        (".".join(read.rule), read.entries): (allowed.get(name, 0), refused.get(name, 0))
        for name in sorted(allowed.keys() | refused.keys())
        for read in [read_descriptor_name(name)]
    }


def test_each_way_to_be_refused_or_allowed_is_counted_once_for_each_hit_whatever_it_costs() -> None:
    shop = shop_of()
    for _ in range(2):
        shop.ask("user=ada", "soft=x", cost=2)
    shop.ask("never=x", "softly=x", "always=x", "nothing=x", "quota=x")
    shop.ask("quota=x", "quota=y")
    shop.ask("user=bob", cost=0)
    shop.ask("user=bob", cost=-1)
    shop.ask("never=x", cost=-1)

    assert taken(shop.limiter.top) == {
        ("user", (("user", "ada"),)): (1, 1),
        ("soft", (("soft", "x"),)): (2, 0),
        ("quota", (("quota", "x"),)): (1, 1),
        ("quota", (("quota", "y"),)): (1, 0),
        ("never", (("never", "x"),)): (0, 1),
    }
    assert taken(shop.limiter.top) == {}


def test_what_a_ban_refuses_is_counted_by_the_descriptor_of_the_request() -> None:
    shop = shop_of()
    for domain in ("shop", "*"):
        ban = make_ban(domain, [("user", f"eve{domain}")], length=FOR_EVER, why="x", who="x", now=0)
        shop.limiter.bans.put(ban, quietly=True)
    shop.ask("user=eveshop path=/", cost=3)
    shop.ask("token=secret user=eve*", domain="elsewhere")
    refused = shop.limiter.top.drain().refused.counts
    (one, two), numbers = map(read_descriptor_name, refused), list(refused.values())

    assert numbers == [1, 1]
    assert one == ("shop", ("banned",), "shop", (("user", "eveshop"), ("path", "/")))
    assert (two.domain, two.rule, two.entries[1]) == ("elsewhere", ("banned",), ("user", "eve*"))
    assert DIGEST.fullmatch(two.entries[0][1])


def taken_names(counts: Mapping[str, float]) -> dict[Entries, float]:
    return {read_descriptor_name(name).entries: count for name, count in counts.items()}


@pytest.mark.parametrize(
    ("asked", "rule", "entries"),
    [
        ("ip=192.0.2.7", ("ip",), (("ip", "192.0.2.0/24"),)),
        ("path=/a.b|c=%d~ verb=GET", ("path_/a.b|c=%d~", "verb"), (("path", "/a.b|c=%d~"), ("verb", "GET"))),
        ("agent=bot7", ("agent_bot*",), (("agent", "bot*"),)),
    ],
)
def test_a_name_tells_rule_and_entries_as_they_are_counted(asked: str, rule: tuple[str, ...], entries: Entries) -> None:
    shop = shop_of()
    shop.ask(asked)
    read = [read_descriptor_name(name) for name in shop.limiter.top.drain().allowed.counts]

    assert {each.domain for each in read} == {each.rule_domain for each in read} == {"shop"}
    assert {each.entries for each in read} == {entries}
    assert all(each.rule[: len(rule)] == rule for each in read)
    assert len(read) == (2 if "verb" in asked else 1)


def test_a_secret_value_is_its_digest() -> None:
    shop = shop_of()
    shop.ask("token=secret")
    [(_, ((key, value),))] = taken(shop.limiter.top)

    assert key == "token"
    assert DIGEST.fullmatch(value)


def test_a_rule_of_any_domain_is_named_with_the_domain_of_the_request() -> None:
    shop = shop_of(RULES.replace("domain: shop", 'domain: "*"'))
    shop.ask("user=ada", domain="a|b")
    [name] = shop.limiter.top.drain().allowed.counts

    assert read_descriptor_name(name) == ("a|b", ("user",), "*", (("user", "ada"),))


def test_a_limit_that_came_with_the_request_has_no_rule() -> None:
    shop = shop_of()
    shop.ask("user=ada", override=Limit(5, Unit.HOUR, 3600 * SECOND))

    assert taken(shop.limiter.top) == {("", (("user", "ada"),)): (1, 0)}


@given(st.text(min_size=1), st.text(min_size=1), st.text())
def test_every_name_is_bounded_and_a_short_one_tells_all(domain: str, key: str, value: str) -> None:
    rules = book("domain: '*'\ndescriptors: [{key: x, rate_limit: {unit: hour, requests_per_unit: 1}}]\n")
    rule = rules.counted_in(rules.rules[0], domain)
    for times in (1, 100):
        entries = ((key, value * times), (value * times, key))
        name = descriptor_name(rule, counter_key(rule, counted_entries(rule, entries)))

        assert len(name) <= MAX_LENGTH
        if len(domain) + sum(map(len, (*entries[0], *entries[1]))) < 80:
            assert read_descriptor_name(name) == (domain, ("x",), "*", entries)


def test_values_that_are_long_are_cut_and_stay_apart() -> None:
    shop = shop_of()
    for end in ("1", "2"):
        shop.ask(f"user={'y' * 300}{end}")
        shop.ask(f"user={'z' * 2000}{end}")
    found = taken(shop.limiter.top)

    assert len(found) == 4
    assert sorted(entries[0][1][:9] for _, entries in found)[2:] == ["yyyyyyyyy", "yyyyyyyyy"]
    assert all(len(value) < 300 for _, entries in found for _, value in entries)


def test_long_entries_of_what_is_denied_always_are_cut_and_stay_apart() -> None:
    shop = shop_of()
    for end in ("1", "2"):
        shop.ask(f"never={'y' * 100_000}{end}")
    logged = [hit for hit in shop.limiter.top.refused.pending if isinstance(hit, DeniedHit)]
    found = taken(shop.limiter.top)

    assert [sum(map(len, itertools.chain(*hit.entries))) < 1000 for hit in logged] == [True, True]
    assert sorted(found.values()) == [(0, 1), (0, 1)]
    assert all(entries[0][1].startswith("yyyy") for _, entries in found)


def test_above_the_bound_hits_that_were_looked_at_weigh_for_all() -> None:
    shop = shop_of()
    log = shop.limiter.top
    for number in range(2 * MAX_PENDING):
        shop.ask(f"much={'ab'[number % 2]}")
    found = log.drain()

    assert found.allowed.skipped == MAX_PENDING
    assert found.allowed.total == 2 * MAX_PENDING
    assert taken_names(found.allowed.counts) == {(("much", each),): MAX_PENDING for each in "ab"}
    assert log.drain().allowed.skipped == 0


def test_a_flood_of_long_names_takes_bounded_memory() -> None:
    """Refused or not, and each of them often enough to be kept."""
    shop, recent = shop_of(), RecentTop(Clock())
    tracemalloc.start()
    try:
        for number in range(7_000):
            shop.ask(f"{'never' if number % 2 else 'much'}=\U0001f600{number:0400}", cost=1 + number % 3)
            if number % MAX_PENDING == 0:
                shop.limiter.top.fold()
            if number == 6_000:
                recent.add(shop.limiter.top.drain())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert BYTES / 4 < peak < BYTES
