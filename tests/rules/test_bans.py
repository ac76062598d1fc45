"""Which descriptors a ban fits, how bans are written and read, and what is logged of them."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import BanError
from ratelimit_service.rules.bans import (
    FOR_EVER,
    Ban,
    Bans,
    canonical,
    check_fits,
    find_ban,
    hidden,
    key_of,
    make_ban,
    read_ban,
    read_length,
)
from ratelimit_service.rules.descriptor_name import read_descriptor_name
from ratelimit_service.rules.rule import Entries
from ratelimit_service.rules.secret import HashValue
from ratelimit_service.system.clock import DAY, HOUR, MINUTE, SECOND
from tests.books import book
from tests.clocks import Clock
from tests.shop import Shop, entries_of

NOW = 1_795_348_800 * SECOND
"""2026-11-22 12:00:00 UTC."""


def ban(domain: str, *entries: tuple[str, str], length: int = HOUR, **changed: Any) -> Ban:
    """A ban that begins now."""
    options: dict[str, Any] = {"length": length, "why": "spam", "who": "ada@host", "now": NOW}
    return make_ban(domain, entries, **options | changed)


def banned(*bans: Ban) -> Bans:
    """These in force."""
    found = Bans(Clock(NOW))
    for each in bans:
        found.put(each)
    return found


NO_RULES = book()
ADA, EVE, SEARCH, FREE = ("user", "ada"), ("user", "eve"), ("path", "/search"), ("plan", "free")


@pytest.mark.parametrize(
    ("of", "domain", "entries", "fits"),
    [
        (("shop", ADA), "shop", (ADA,), True),
        (("shop", ADA), "shop", (EVE,), False),
        (("shop", ADA), "shop", (("login", "ada"),), False),
        (("shop", ADA), "shop", (FREE, ADA), True),
        (("shop", ADA), "shop", (ADA, SEARCH, FREE), True),
        (("shop", ADA), "mail", (ADA,), False),
        (("shop", ADA), "shop", (), False),
        (("shop", ADA, SEARCH), "shop", (ADA, SEARCH), True),
        (("shop", ADA, SEARCH), "shop", (SEARCH, FREE, ADA), True),
        (("shop", ADA, SEARCH), "shop", (ADA,), False),
        (("shop", ADA, SEARCH), "shop", (SEARCH,), False),
        (("shop", ADA, EVE), "shop", (EVE, ADA), True),
        (("shop", ADA, ADA), "shop", (ADA,), True),
        (("shop", ("user", "")), "shop", (("user", ""),), True),
        (("shop", ("user", "")), "shop", (ADA,), False),
        (("shop", ("user", "a*")), "shop", (ADA,), False),
        (("*", ADA), "shop", (ADA,), True),
        (("*", ADA), "mail", (FREE, ADA), True),
        (("*", ADA), "mail", (EVE,), False),
    ],
)
def test_a_ban_fits_descriptors_that_have_all_its_entries(
    of: tuple[Any, ...], domain: str, entries: Entries, fits: bool
) -> None:
    made = ban(*of)

    assert find_ban(banned(made), NO_RULES, domain, entries) == (made if fits else None)


@pytest.mark.parametrize(
    ("value", "fitting", "others"),
    [
        ("10.0.0.1", ["10.0.0.1", "::ffff:10.0.0.1", "::FFFF:a00:1%eth0"], ["10.0.0.2", "10.0.0.10"]),
        ("2001:DB8:0::1", ["2001:db8::1", "2001:0DB8::1"], ["2001:db8::2"]),
        ("10.0.0.0/8", ["10.1.2.3", "::ffff:10.1.2.3", "10.0.0.0/8", "10.1.0.0/16"], ["11.0.0.1", "0.0.0.0/0", "10"]),
        ("10.1.2.3/8", ["10.9.9.9"], ["11.0.0.1"]),
        ("2001:db8:1:2::/64", ["2001:db8:1:2::7", "2001:DB8:1:2::/64"], ["2001:db8:1:3::7", "unknown", ""]),
        ("10.0.0.1/32", ["10.0.0.1"], ["10.0.0.2"]),
        ("1.5", ["1.5"], ["1.50"]),
        ("a*", ["a*"], ["ab", "*"]),
    ],
)
@pytest.mark.parametrize("domain", ["shop", "*"])
def test_a_ban_compares_addresses_as_such_and_a_network_has_all_of_its_own(
    value: str, fitting: list[str], others: list[str], domain: str
) -> None:
    bans = banned(ban(domain, ("ip", value), ADA))

    for asked in (*fitting, *others):
        found = find_ban(bans, NO_RULES, "shop", (ADA, ("ip", asked)))
        assert (found is not None) is (asked in fitting), asked


def test_one_ban_has_one_key_however_its_addresses_are_written() -> None:
    assert ban("shop", ("ip", "::ffff:10.0.0.1")).key == ban("shop", ("ip", "10.0.0.1/32")).key
    assert ban("shop", ("ip", "2001:DB8::1/64")).entries == (("ip", "2001:db8::/64"),)


def test_a_ban_that_an_earlier_release_wrote_has_its_key_and_compares_addresses() -> None:
    text = ban("shop", ("ip", "10.0.0.1")).text.replace("10.0.0.1", "::ffff:10.0.0.1")
    old = read_ban(text)
    bans = banned(old)

    assert old.key == key_of("shop", (("ip", "::ffff:10.0.0.1"),))
    assert find_ban(bans, NO_RULES, "shop", (("ip", "10.0.0.1"),)) == old
    bans.drop(old.key, "lifted")
    assert bans._by_domain == {}


def test_a_request_has_a_name_for_each_length_of_prefix_in_use_however_many_bans_there_are() -> None:
    some = [ban("shop", ("ip", f"2001:db8:{number:x}::/{bits}")) for number in range(500) for bits in (48, 64)]
    bans = banned(*some, ban("shop", ADA), ban("shop", ("ip", "10.0.0.0/8")))

    assert list(bans.lengths) == [8, 48, 64]
    for each in some[1::2]:
        bans.drop(each.key, "lifted")
    assert list(bans.lengths) == [8, 48]


def test_of_several_bans_the_one_that_ends_last_is_found() -> None:
    short, long, other = ban("shop", ADA), ban("shop", FREE, length=DAY), ban("*", SEARCH, length=FOR_EVER)
    bans = banned(short, long, other)

    assert find_ban(bans, NO_RULES, "shop", (ADA, FREE)) == long
    assert find_ban(bans, NO_RULES, "shop", (ADA, FREE, SEARCH)) == other
    assert find_ban(bans, NO_RULES, "shop", (ADA,)) == short


_ENTRY = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"))
_DOMAIN = st.sampled_from(["shop", "mail", "*"])
_BAN = st.builds(
    lambda domain, entries, seconds: ban(domain, *entries, length=seconds * SECOND),
    _DOMAIN,
    st.lists(_ENTRY, min_size=1, max_size=3),
    st.integers(1, 50),
)


@given(st.lists(_BAN, max_size=30), st.lists(st.integers(0, 29)), _DOMAIN, st.lists(_ENTRY, max_size=5))
def test_the_index_finds_what_a_look_at_all_bans_finds(
    made: list[Ban], dropped: list[int], domain: str, entries: list[tuple[str, str]]
) -> None:
    bans, left = banned(*made), {each.key: each for each in made}
    for index in dropped:
        if index < len(made):
            bans.drop(made[index].key, "lifted")
            left.pop(made[index].key, None)

    fitting = [
        each for each in left.values() if each.domain in {domain, "*"} and all(one in entries for one in each.entries)
    ]
    found = find_ban(bans, NO_RULES, domain, tuple(entries))
    assert (found.until if found else 0) == max((each.until for each in fitting), default=0)
    assert found is None or found in fitting
    assert len(bans) == len(left)


def test_ten_thousand_bans_that_share_an_entry_lie_in_small_buckets() -> None:
    bans = banned(*(ban("shop", FREE, ("user", str(number))) for number in range(1000)))

    assert max(map(len, bans._by_domain["shop"].values())) == 1
    for each in bans.all():
        bans.drop(each.key, "lifted")
    assert bans._by_domain == {}


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("1h", HOUR),
        ("90m", 90 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("15 minutes", 15 * MINUTE),
        ("1 minute", MINUTE),
        ("week", 7 * DAY),
        ("1s", SECOND),
        ("100 years", 100 * 365 * DAY),
        ("ever", FOR_EVER),
        ("forever", FOR_EVER),
    ],
)
def test_lengths_are_written_as_windows_and_as_durations(text: str, length: int) -> None:
    assert read_length(text) == length


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is not a duration such as 10s"),
        ("soon", "is not a duration such as 10s, 1h30m, 15 minutes or 200ms, nor forever"),
        ("1 fortnight", "is not a duration"),
        ("10", "is not a duration"),
        ("0s", "from a second to 100 years, or for ever, and not 0s"),
        ("-1h", "from a second"),
        ("999ms", "from a second"),
        ("101 years", "from a second"),
    ],
)
def test_other_lengths_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(BanError, match=wrong):
        read_length(text)


@pytest.mark.parametrize(
    ("domain", "entries", "why", "wrong"),
    [
        ("", (ADA,), "spam", "the domain is empty"),
        ("shop", (), "spam", "a ban needs an entry"),
        ("shop", (("", "x"),), "spam", "the key of an entry is empty"),
        ("shop", (ADA,), "", "say why"),
        ("shop", (ADA,), "  ", "say why"),
        ("shop", (ADA,), "a" * 201, "at most 200 printable characters"),
        ("shop", (ADA,), "two\nlines", "one line"),
        ("shop", (ADA,), "\x1b[31mred", "printable"),
        ("shop", (ADA,), "turned \u202earound", "printable"),
        ("shop", (("user", "x" * 2000),), "spam", "bytes as JSON, the maximum is 2,000"),
        ("shop", (("user", "\ud800"),), "spam", "a character that cannot be written as UTF-8"),
    ],
)
def test_bans_that_cannot_be_shown_or_kept_are_refused(domain: str, entries: Entries, why: str, wrong: str) -> None:
    with pytest.raises(BanError, match=wrong):
        make_ban(domain, entries, length=HOUR, why=why, who="ada", now=NOW)


def test_a_name_is_cut_and_cleaned() -> None:
    assert ban("shop", ADA, who="\x1b[31mada\n" + "x" * 200).who == "[31mada" + "x" * 93
    assert ban("shop", ADA, who="\n").who == "unknown"


def test_a_ban_ends_on_a_whole_second_and_not_before_its_time() -> None:
    made = make_ban("shop", (ADA,), length=SECOND, why="spam", who="ada", now=NOW + 1)

    assert (made.made, made.until) == (NOW, NOW + 2 * SECOND)


def test_bans_are_read_as_they_were_written() -> None:
    for made in (
        ban("shop", SEARCH, ADA),
        ban("*", ("ü", "\u202e"), length=FOR_EVER),
        ban("shop", ADA).lifted("eve", NOW),
    ):
        assert read_ban(made.text) == made
    assert json.loads(ban("shop", ADA).text) == {
        "domain": "shop",
        "entries": [{"key": "user", "value": "ada"}],
        "until": 1_795_352_400,
        "why": "spam",
        "who": "ada@host",
        "made": 1_795_348_800,
    }


def test_the_order_of_entries_makes_no_other_ban() -> None:
    assert ban("shop", ADA, SEARCH).key == ban("shop", SEARCH, ADA, ADA).key == key_of("shop", canonical([SEARCH, ADA]))
    assert key_of("a", (("b", "c"),)) != key_of("a", (("b,c", ""),))


GOOD: dict[str, object] = {
    "domain": "shop",
    "entries": [{"key": "user", "value": "ada"}],
    "until": 9,
    "why": "x",
    "who": "y",
    "made": 1,
}

WRONG: list[dict[str, object]] = [
    {"more": 1},
    {"domain": 1},
    {"entries": "user"},
    {"entries": [["user", "ada"]]},
    {"entries": [{"key": "user", "value": 1}]},
    {"entries": []},
    {"until": "soon"},
    {"until": 0},
    {"until": -1},
    {"until": 1.5},
    {"until": 10**30},
    {"why": None},
    {"why": "a\nb"},
    {"who": 7},
    {"made": None},
    {"lifted_by": 1},
]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "[" * 100_000,
        "{}",
        *(json.dumps(GOOD | changed) for changed in WRONG),
    ],
)
def test_what_is_no_ban_is_refused(text: str) -> None:
    assert read_ban(json.dumps(GOOD)).domain == "shop"
    with pytest.raises(BanError):
        read_ban(text)


SECRETS = """
    domain: shop
    descriptors:
      - {key: api_key, hash_values: true, rate_limit: {unit: day, requests_per_unit: 1}}
    """


def test_a_ban_of_a_secret_value_has_its_digest_in_every_domain() -> None:
    rules, plain = book(SECRETS, hash_value=HashValue("key")), (("api_key", "hunter2"), ("user", "ada"))
    ((_, digest),) = rules.shown("shop", plain[:1])
    for domain in ("shop", "*", "other"):
        entries = hidden(rules, domain, plain)
        assert entries == (("api_key", digest), ("user", "ada"))
        assert hidden(rules, domain, entries) == entries

        bans = banned(ban(domain, *entries))
        of = "shop" if domain == "*" else domain
        assert find_ban(bans, rules, of, plain) is not None
        assert find_ban(bans, rules, of, entries) is None
        assert "hunter2" not in bans.all()[0].text


AS_SHOWN = """
    domain: shop
    lookup: {from: keys.csv, key: api_key, as: tier}
    descriptors:
      - {key: ip, cidr: 10.0.0.0/8, label: office, share_threshold: true, LIMIT}
      - {key: ip, values: [192.0.2.1, x], LIMIT}
      - {key: ip, cidr: 198.51.100.0/24, prefix: {ipv4: 28}, LIMIT}
      - {key: ip, prefix: {ipv4: 24, ipv6: 64}, LIMIT}
      - {key: path, value: "/x*", share_threshold: true, LIMIT, descriptors: [{key: user, LIMIT}]}
      - {key: verb, values: [GET, PUT], share_threshold: true, LIMIT}
      - {key: "a*", value: "b*", share_threshold: true, LIMIT}
      - {key: tier, value: "g*", share_threshold: true, LIMIT}
      - {key: token, value: "t*", share_threshold: true, hash_values: true, LIMIT}
      - {key: token, hash_values: true, LIMIT}
      - {key: from, prefix: {ipv4: 24, ipv6: 64}, hash_values: true, LIMIT}
      - {key: request_id, rate_limit: {concurrency: 5, hold: 1m, place: request_id}}
      - {key: accept, LIMIT}
      - {key: never, rate_limit: {deny: true}}
    """.replace("LIMIT", "rate_limit: {unit: year, requests_per_unit: 9}")


def as_shown() -> Shop:
    shop = Shop("domain: shop\ndescriptors: []\n")
    shop.limiter.book = book(AS_SHOWN, hash_value=HashValue("key"), read_data=lambda _: b"k1,gold\nk2,grey\n")
    return shop


@pytest.mark.parametrize(
    ("asked", "also", "not_this"),
    [
        ("ip=10.1.2.3", "ip=10.9.9.9", "ip=11.1.1.1"),
        ("ip=::ffff:192.0.2.1", "ip=192.0.2.1", "ip=x"),
        ("ip=198.51.100.17", "ip=198.51.100.31", "ip=198.51.100.32"),
        ("ip=203.0.113.7", "ip=::ffff:203.0.113.9", "ip=203.0.114.7"),
        ("ip=2001:db8:1:2::7", "ip=2001:DB8:1:2:ffff::1", "ip=2001:db8:1:3::7"),
        ("path=/x1", "path=/x2 user=ada", "path=/y"),
        ("path=/x1 user=ada", "path=/x2 user=ada", "path=/x1 user=bob"),
        ("verb=GET", "verb=PUT", "verb=POST"),
        ("ax=by", "ax=bz", "ay=by"),
        ("api_key=k1", "api_key=k2", "api_key=k3"),
        ("tier=gold", "api_key=k1", "tier=silver"),
        ("token=t1", "token=t2", "token=s1"),
        ("token=s1", "token=s1 more=x", "token=s2"),
        ("from=203.0.113.7", "from=203.0.113.8", "from=203.0.114.7"),
        ("request_id=1", "request_id=2", "request=1"),
        ("accept=*/*", "accept=*/* more=x", "accept=text/html"),
        ("never=x", "never=x", "never=y"),
        ("unknown=::ffff:10.0.0.1", "unknown=10.0.0.1", "unknown=10.0.0.2"),
    ],
)
@pytest.mark.parametrize("domain", ["shop", "*"])
def test_what_is_shown_of_a_request_bans_it(asked: str, also: str, not_this: str, domain: str) -> None:
    shop = as_shown()
    rules = shop.limiter.book
    assert rules is not None
    shop.ask(asked)
    hot = shop.limiter.top.drain()
    names = [read_descriptor_name(name).entries for counts in (hot.allowed, hot.refused) for name in counts.counts]

    # Where no rule counts, nothing is shown: the operator has the request from elsewhere.
    shown = names[0] if names else entries_of(asked)
    check_fits(rules, domain, shown)
    bans = banned(ban(domain, *hidden(rules, domain, shown)))
    found = [find_ban(bans, rules, "shop", entries_of(text)) is not None for text in (asked, also, not_this)]
    assert found == [True, True, False]
    assert hidden(rules, domain, bans.all()[0].entries) == bans.all()[0].entries


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        (("user", "a" * 200 + "…" + "0123456789abcdef"), "is cut, because it is too long to show"),
        (("…", "0123456789abcdef"), "is cut, because it is too long to show"),
        (("(too long to show)", "0123456789abcdef"), "is cut, because it is too long to show"),
        (
            ("route", "/x*"),
            '"route=/x*" is a pattern, whose values do not share a counter: name one of its values, or ',
        ),
        (
            ("token", "10.0.0.0/8"),
            'the values of "token" are secret, and no rule counts them by a prefix of this length',
        ),
        (("from", "2001:db8::/48"), 'the values of "from" are secret, and no rule counts them by a prefix'),
    ],
)
@pytest.mark.parametrize("domain", ["shop", "*"])
def test_a_ban_that_can_fit_nothing_is_refused(entry: tuple[str, str], wrong: str, domain: str) -> None:
    rules = book(
        """
        domain: shop
        descriptors:
          - {key: route, value: "/x*", rate_limit: {unit: day, requests_per_unit: 1}}
          - {key: token, hash_values: true, rate_limit: {unit: day, requests_per_unit: 1}}
          - {key: from, hash_values: true, prefix: {ipv6: 64}, rate_limit: {unit: day, requests_per_unit: 1}}
        """,
        hash_value=HashValue("key"),
    )

    with pytest.raises(BanError) as refused:
        check_fits(rules, domain, (ADA, entry))
    assert wrong in str(refused.value)
    for fitting in (("from", "2001:db8::/64"), ("token", "a/b"), ("net", "10.0.0.0/8")):
        assert check_fits(rules, domain, (ADA, fitting)) == ""
    assert "stands for itself" in check_fits(rules, domain, (("accept", "*/*"),))


def test_where_a_key_is_secret_in_another_domain_alone_its_bans_are_plain() -> None:
    rules = book(SECRETS, "domain: mail\ndescriptors: [{key: api_key}]\n", hash_value=HashValue("key"))
    plain = (("api_key", "hunter2"),)

    assert hidden(rules, "mail", plain) == plain
    assert find_ban(banned(ban("mail", *plain)), rules, "mail", plain) is not None
    everywhere = banned(ban("*", *hidden(rules, "*", plain)))
    assert [find_ban(everywhere, rules, domain, plain) is not None for domain in ("shop", "mail")] == [True, True]


def test_each_change_is_logged_with_its_maker_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(NOW)
    bans = Bans(clock)
    short, hostile = ban("shop", ADA, length=MINUTE), ban("*", ("user", "\x1b[31m\neve"), length=FOR_EVER)
    bans.put(short)
    bans.put(short)
    bans.put(hostile)
    bans.drop(hostile.key, "lifted by eve@host")
    bans.drop(hostile.key, "lifted by eve@host")
    clock.advance(MINUTE - 1)
    bans.sweep()
    clock.advance(SECOND)
    bans.sweep()

    assert [record.getMessage() for record in caplog.records] == [
        "banned: user=ada in domain shop until 2026-11-22 12:01:00 UTC by ada@host: spam",
        "banned: user=\\x1b[31m\\neve in every domain for ever by ada@host: spam",
        "no longer banned: user=\\x1b[31m\\neve in every domain, lifted by eve@host",
        "no longer banned: user=ada in domain shop, its time is over; it was banned by ada@host: spam",
    ]


def test_each_change_is_told_and_nothing_else() -> None:
    bans, changes = Bans(Clock(NOW)), list[int]()
    bans.on_change = lambda: changes.append(len(bans))
    bans.put(ban("shop", ADA))
    bans.put(ban("shop", ADA))
    bans.put(ban("shop", ADA, length=DAY))
    bans.sweep()
    bans.drop(ban("shop", ADA).key, "lifted")
    bans.drop(ban("shop", ADA).key, "lifted")

    assert changes == [1, 1, 0]


def test_the_time_that_is_left_is_kept_up_to_date() -> None:
    clock = Clock(NOW)
    bans = Bans(clock)
    made, always = ban("shop", ADA, length=MINUTE), ban("shop", EVE, length=FOR_EVER)
    bans.put(made)
    bans.put(always)
    denial, endless = bans.denial(made), bans.denial(always)
    before = denial.decision.retry_after
    clock.advance(20 * SECOND)
    bans.sweep()

    assert (before, denial.decision.retry_after, denial.decision.reset_after) == (MINUTE, 40 * SECOND, 40 * SECOND)
    assert (endless.decision.retry_after, endless.decision.reset_after) == (-1, 0)
