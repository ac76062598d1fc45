"""What names of counters tell of domain, descriptor and rule."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Entries, Rule, counted_entries, counter_key
from ratelimit_service.rules.secret import HashValue
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.counter_names import Counter, EnvoyproxyKeyParser, OwnKeyParser
from ratelimit_service.stores.redis.envoyproxy import EnvoyproxyScript, counts_as_envoyproxy
from ratelimit_service.stores.redis.keys import cluster_key, plain_key
from ratelimit_service.system.clock import MINUTE
from ratelimit_service.telemetry.tally import Tally
from tests.books import book
from tests.clocks import Clock

NOW = 28_000_000 * MINUTE

SHOP = book(
    """
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 10}
        descriptors:
          - key: path
            rate_limits:
              - {unit: minute, requests_per_unit: 5, algorithm: sub_windows, parts: 4}
              - {unit: day, requests_per_unit: 50, anchor: first_request}
              - {calendar: {unit: month, start: 15, zone: Europe/Berlin}, requests_per_unit: 500}
      - key: user
        value: root
        rate_limit: {unit: minute, requests_per_unit: 100}
      - key: file
        value: /a/*
        share_threshold: true
        rate_limit: {unit: minute, requests_per_unit: 7}
        descriptors:
          - key: verb
            value: "*"
            rate_limit: {unit: hour, requests_per_unit: 7, algorithm: token_bucket}
      - key: dir
        value: /x/*
        share_threshold: true
        descriptors:
          - key: free
          - key: verb
            rate_limit: {unit: minute, requests_per_unit: 3}
      - key: a*
        value: b*
        share_threshold: true
        rate_limit: {unit: minute, requests_per_unit: 3}
      - key: ip
        cidr: 10.0.0.0/8
        share_threshold: true
        rate_limit: {unit: minute, requests_per_unit: 3}
      - key: ip
        values: [192.0.2.1, x]
        rate_limit: {unit: minute, requests_per_unit: 3}
      - key: ip
        prefix: {ipv4: 24, ipv6: 64}
        descriptors:
          - key: verb
            rate_limit: {unit: minute, requests_per_unit: 3}
    """,
    """
    domain: shop_user
    descriptors:
      - key: ada
        rate_limit: {unit: minute, requests_per_unit: 10}
    """,
)


def parser(of: RuleBook, domain: str, prefix: str = "", *, cluster: bool = False) -> OwnKeyParser:
    return OwnKeyParser(of, domain, prefix, lambda _: True, clustered=cluster)


def hits(of: RuleBook, domain: str, entries: Entries) -> Iterator[Hit]:
    """A hit for each limit that these entries meet."""
    rule = of.match(domain, entries)
    assert rule is not None
    for each in (rule, *rule.beside):
        yield Hit(each, counter_key(each, counted_entries(each, entries)), 1, tally=Tally(), quota=False)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((("user", "ada"),), "user=ada"),
        ((("user", "root"),), "user=root"),
        ((("user", "a|b=c~d%e{f}"),), "user=a|b=c~d%e{f}"),
        ((("user", "ada"), ("path", "/ü x")), "user=ada path=/ü x"),
        ((("file", "/a/b"),), "file=/a/*"),
        ((("file", "/a/b"), ("verb", "GET")), "file=/a/* verb=GET"),
        ((("dir", "/x/y"), ("verb", "GET")), "dir=/x/* verb=GET"),
        ((("ax", "by"),), "ax=b*"),
        ((("ip", "10.1.2.3"),), "ip=cidr(10.0.0.0/8)"),
        ((("ip", "::ffff:192.0.2.1"),), "ip=192.0.2.1"),
        ((("ip", "x"),), "ip=x"),
        ((("ip", "2001:DB8::1"), ("verb", "GET")), "ip=2001:db8::/64 verb=GET"),
        ((("ip", "unknown"), ("verb", "GET")), "ip=unknown verb=GET"),
    ],
)
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("prefix", ["", "limits:", "{tag}"])
def test_a_name_tells_the_entries_and_the_rule(entries: Entries, words: str, cluster: bool, prefix: str) -> None:
    for hit in hits(SHOP, "shop", entries):
        key = (cluster_key if cluster else plain_key)(prefix)(hit).encode()

        counter = parser(SHOP, "shop", prefix, cluster=cluster).parse(key, NOW)

        assert counter == Counter(key, "shop", words, hit.rule, hit.rule.algorithm.name, hit.rule.limit)  # type: ignore[arg-type]  # it has one


ADDRESSES = """
    domain: shop
    lookup: {from: tiers.csv, key: from, as: tier}
    descriptors:
      - {key: ip, value: 192.0.2.1, LIMIT}
      - {key: ip, value: "10.2.*", prefix: {ipv4: 24}, LIMIT}
      - {key: ip, cidr: 10.1.1.0/25, prefix: {ipv4: 24}, LIMIT}
      - {key: ip, cidr: 10.1.1.128/25, prefix: {ipv4: 24}, LIMIT}
      - {key: ip, values: [192.0.2.1, 192.0.2.2], LIMIT}
      - {key: ip, prefix: {ipv4: 24}, LIMIT}
      - {key: token, cidr: 10.0.0.0/8, prefix: {ipv4: 24}, hash_values: true, LIMIT}
      - {key: tier, prefix: {ipv4: 24}, LIMIT}
    """.replace("LIMIT", "rate_limit: {unit: day, requests_per_unit: 1}")


@pytest.mark.parametrize(
    "entry",
    [
        *(("ip", value) for value in ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2", "x", "10.1.1.0/24")),
        *(("ip", value) for value in ("10.1.1.1", "10.1.1.200", "10.2.1.1", "::ffff:10.2.1.1", "10.9.9.9")),
        *(("token", "10.1.1.1"), ("from", "203.0.113.7"), ("tier", "203.0.113.7")),
    ],
)
def test_a_name_tells_the_rule_that_counts_an_address(entry: tuple[str, str]) -> None:
    rules = book(ADDRESSES, hash_value=HashValue("key", keep_digests=True), read_data=lambda _: b"203.0.113.7,gold\n")
    [hit] = hits(rules, "shop", (entry,))

    counter = parser(rules, "shop").parse(plain_key("")(hit).encode(), NOW)

    assert counter is not None
    assert counter.rule is hit.rule


REST = """
    domain: "{}"
    otherwise: {{rate_limits: [{{unit: minute, requests_per_unit: 5}}, {{unit: day, requests_per_unit: 9}}], {}}}
    descriptors:
      - key: user
        rate_limit: {{unit: minute, requests_per_unit: 10}}
    """


@pytest.mark.parametrize(
    ("options", "entries", "words"),
    [
        ("", (("path", "/x"),), "path=/x"),
        ("", (("user", "ada"), ("path", "/x")), "user=ada path=/x"),
        ("", (), "(no entries)"),
        ("share_threshold: true", (("path", "/x"),), "(what no descriptor fits)"),
        ("share_threshold: true", (("user", "ada"),), "user=ada"),
    ],
)
@pytest.mark.parametrize("domain", ["shop", "*"])
@pytest.mark.parametrize("cluster", [False, True])
def test_a_name_tells_counters_of_a_default_and_of_any_domain(
    options: str, entries: Entries, words: str, domain: str, cluster: bool
) -> None:
    rest = book(REST.format(domain, options))
    for hit in hits(rest, "shop", entries):
        key = (cluster_key if cluster else plain_key)("")(hit).encode()

        counter = parser(rest, "shop", cluster=cluster).parse(key, NOW)

        assert counter == Counter(key, "shop", words, hit.rule, "fixed_window", hit.rule.limit)  # type: ignore[arg-type]  # it has one
        assert hit.rule in rest.rules_in("shop")


def test_envoyproxys_name_tells_the_rule_of_any_domain() -> None:
    rest = book(REST.format("*", ""))
    [hit] = hits(rest, "shop", (("user", "ada"),))
    key = EnvoyproxyScript("", 0, Clock(NOW)).key(hit)

    counter = envoyproxy_parse(rest, "shop")(key)

    assert key == f"shop_user_ada_{NOW // 1_000_000}"
    assert counter is not None
    assert (counter.rule, counter.descriptor) == (hit.rule, "user_ada")
    assert envoyproxy_parse(book(REST.format("api", "")), "shop")(key) is None


@given(st.text(), st.text(), st.text(), st.booleans())
def test_any_domain_and_any_value_are_told_apart_from_all_others(
    domain: str, value: str, other: str, cluster: bool
) -> None:
    rule = Rule(domain, SHOP.rules[0].levels, SHOP.rules[0].limit, SHOP.rules[0].algorithm)
    hit = Hit(rule, counter_key(rule, (("user", value),)), 1, tally=Tally(), quota=False)
    key = (cluster_key if cluster else plain_key)("")(hit).encode()

    counter = parser(SHOP, domain, cluster=cluster).parse(key, NOW)

    assert counter is not None
    if len(hit.key) < 500:
        assert counter.descriptor == f"user={value}"
    assert other == domain or parser(SHOP, other, cluster=cluster).parse(key, NOW) is None


def test_a_counter_of_no_present_rule_tells_how_it_was_charged() -> None:
    counter = parser(SHOP, "shop").parse(b"rl2|shop|gone=x|sub_windows/60000000/4", NOW)

    assert counter is not None
    assert (counter.rule, counter.algorithm, counter.descriptor) == (None, "sub_windows", "gone=x")
    assert (counter.limit.window, counter.limit.parts) == (MINUTE, 4)


def test_a_rule_that_counts_another_way_now_does_not_have_its_old_counters() -> None:
    counter = parser(SHOP, "shop").parse(b"rl2|shop|user=ada|sliding_log/60000000", NOW)

    assert counter is not None
    assert counter.rule is None


def test_a_name_under_which_a_rule_does_not_count_here_is_of_no_rule() -> None:
    elsewhere = OwnKeyParser(SHOP, "shop", "", lambda _: False)

    counter = elsewhere.parse(b"rl2|shop|user=ada|fixed_window/60000000", NOW)

    assert counter is not None
    assert (counter.rule, counter.descriptor) == (None, "user=ada")


@pytest.mark.parametrize(
    ("ending", "may_be_sent"),
    [
        ("fixed_window/60000000", False),
        ("fixed_window/1000000", True),
        ("fixed_window/1000000/first_request", False),
        ("fixed_window/2592000000000/month/15/Europe/Berlin", False),
        ("token_bucket/1000000", False),
    ],
)
def test_what_no_rule_charges_may_be_of_a_limit_sent_with_a_request_if_its_name_is_such(
    ending: str, may_be_sent: bool
) -> None:
    counter = parser(SHOP, "shop").parse(f"rl2|shop|user=ada|{ending}".encode(), NOW)

    assert counter is not None
    assert counter.may_be_sent is may_be_sent


def test_a_digest_tells_neither_entries_nor_rule() -> None:
    [hit] = hits(SHOP, "shop", (("user", "x" * 600),))

    counter = parser(SHOP, "shop").parse(f"rl2|{hit.key}".encode(), NOW)

    assert counter is not None
    assert (counter.descriptor, counter.rule, counter.algorithm) == ("", None, "fixed_window")


@pytest.mark.parametrize(
    "key",
    [b"rl2|probe", b"rl2|resets", b"rl2|shopping|user=a|x", b"rl1|shop|user=a|x", b"shop|user=a", b"rl2|shop|\xff|x"],
)
def test_what_is_no_counter_of_the_domain_is_none(key: bytes) -> None:
    assert parser(SHOP, "shop").parse(key, NOW) is None


@pytest.mark.parametrize(
    "ending", ["x", "", "fixed_window/", "fixed_window/0", "fixed_window/1x", "new_way/60000000/9"]
)
def test_a_way_of_counting_that_is_not_known_is_no_error(ending: str) -> None:
    counter = parser(SHOP, "shop").parse(f"rl2|shop|user=ada|{ending}".encode(), NOW)

    assert counter is not None
    assert counter.algorithm == ""


def envoyproxy_parse(of: RuleBook, domain: str, prefix: str = "") -> Callable[[str], Counter | None]:
    envoyproxy = EnvoyproxyKeyParser(of, domain, prefix, counts_as_envoyproxy)
    return lambda key: envoyproxy.parse(key.encode(), NOW)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((("user", "ada"),), "user_ada"),
        ((("user", ""),), "user_"),
        ((("user", "a_b"),), "user_a_b"),
        ((("user", "root"),), "user_root"),
        ((("file", "/a/b"),), "file_/a/*"),
        ((("dir", "/x/y"), ("verb", "GET")), "dir_/x/*_verb_GET"),
        ((("ax", "by"),), "ax_b*"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "p_"])
def test_envoyproxys_name_tells_the_rule(entries: Entries, words: str, prefix: str) -> None:
    [hit] = hits(SHOP, "shop", entries)
    key = EnvoyproxyScript(prefix, 0, Clock(NOW)).key(hit)

    counter = envoyproxy_parse(SHOP, "shop", prefix)(key)

    assert counter is not None
    assert (counter.descriptor, counter.rule) == (words, hit.rule)
    assert counter.end == NOW + MINUTE


@pytest.mark.parametrize(
    "entries", [(("ip", "10.1.2.3"),), (("ip", "192.0.2.1"),), (("ip", "x"),), (("ip", "2001:DB8::1"), ("verb", "GET"))]
)
def test_lists_networks_and_prefixes_have_no_names_of_envoyproxy(entries: Entries) -> None:
    [hit] = hits(SHOP, "shop", entries)

    assert not counts_as_envoyproxy(hit.rule)


def test_envoyproxys_ambiguous_names_belong_to_the_rule_with_the_most_literal_text() -> None:
    second = NOW // 1_000_000

    # Domain `shop` has `user`, domain `shop_user` has `ada`: the name may be either's.
    assert envoyproxy_parse(SHOP, "shop")(f"shop_user_ada_x_{second}") is None
    counter = envoyproxy_parse(SHOP, "shop_user")(f"shop_user_ada_x_{second}")
    assert counter is not None
    assert counter.rule is SHOP.match("shop_user", (("ada", "x"),))


@pytest.mark.parametrize(
    "key",
    [
        "shop_order_{second}",  # no rule
        "shop_user_ada_{off}",  # no window of a minute begins then
        "shop_user_ada_{past}",
        "shop_user_ada_{future}",
        "shop_user_ada",
        "shop_user_ada_x",
        "shops_user_ada_{second}",
    ],
)
def test_what_envoyproxy_would_not_charge_now_is_left_alone(key: str) -> None:
    second = NOW // 1_000_000
    name = key.format(second=second, off=second + 1, past=second - 60, future=second + 120)

    assert envoyproxy_parse(SHOP, "shop")(name) is None


HASH = HashValue("0123456789abcdef0123456789abcdef", keep_digests=True)
SECRET = book(
    """
    domain: shop
    descriptors:
      - key: api_key
        hash_values: true
        rate_limit: {unit: minute, requests_per_unit: 1}
        descriptors:
          - key: path
            rate_limit: {unit: minute, requests_per_unit: 2}
      - key: api_key
        value: paid
        hash_values: true
        rate_limit: {unit: minute, requests_per_unit: 3}
      - key: api_key
        value: hour_*
        rate_limit: {unit: hour, requests_per_unit: 4}
      - key: api_key
        value: minute_*
        rate_limit: {unit: minute, requests_per_unit: 5}
        descriptors:
          - key: verb
            rate_limit: {unit: minute, requests_per_unit: 6}
      - key: api_key
        value: shared_*
        share_threshold: true
        rate_limit: {unit: minute, requests_per_unit: 7}
    """,
    hash_value=HASH,
)


@pytest.mark.parametrize(
    ("entries", "requests", "ambiguous"),
    [
        ((("api_key", "x"), ("path", "/")), 2, False),
        ((("api_key", "paid"),), 3, False),
        ((("api_key", "hour_x"),), 4, False),
        ((("api_key", "minute_x"), ("verb", "GET")), 6, False),
        ((("api_key", "shared_x"),), 7, False),
        # A digest does not tell whether the value begins with `minute_`.
        ((("api_key", "x"),), 0, True),
        ((("api_key", "minute_x"),), 0, True),
    ],
)
def test_a_digest_of_a_secret_value_tells_the_rule_where_only_one_has_such_names(
    entries: Entries, requests: int, ambiguous: bool
) -> None:
    rule = SECRET.match("shop", entries)
    assert rule is not None
    counted = counted_entries(rule, entries)

    counter = parser(SECRET, "shop").parse(f"rl2|{counter_key(rule, counted)}".encode(), NOW)

    assert counter is not None
    assert (counter.limit.requests, counter.ambiguous, counter.may_be_sent) == (requests, ambiguous, False)
    assert (counter.rule is None) is ambiguous


def test_envoyproxys_name_with_a_digest_tells_the_rule() -> None:
    for value, rule in (("paid", 3), ("x", 1), ("shared_x", 7)):
        matched = SECRET.match("shop", (("api_key", value),))
        assert matched is not None
        counted = counted_entries(matched, (("api_key", value),))
        hit = Hit(matched, counter_key(matched, counted), 1, tally=Tally(), quota=False)
        counter = envoyproxy_parse(SECRET, "shop")(EnvoyproxyScript("", 0, Clock(NOW)).key(hit))
        assert counter is not None
        assert counter.limit.requests == rule
