"""`hash_values`: a digest is counted and shown in place of each secret value, and only matching sees the value."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import RulesError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.reasons import explain, explanation_as_json, why_unlimited
from ratelimit_service.rules.rule import Entries, counted_entries, counter_key
from ratelimit_service.rules.secret import DIGEST, HashValue
from ratelimit_service.stores.memory import MemoryStore
from tests.books import book

KEY = "0123456789abcdef0123456789abcdef"
HASH = HashValue(KEY)
SECRET = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"
DIGEST_OF_SECRET = "h-bcc1e08f32a96dec129521b8d9321757"
"""As OpenSSL 3 makes it: `printf %s VALUE | openssl mac -macopt key:KEY -macopt size:16 BLAKE2BMAC`."""

RULES = """\
domain: shop
descriptors:
  - key: api_key
    hash_values: true
    rate_limit: {unit: day, requests_per_unit: 5}
    descriptors:
      - key: path
        rate_limit: {unit: day, requests_per_unit: 4}
  - key: api_key
    value: SECRET
    hash_values: true
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 500}
  - key: api_key
    value: test_*
    hash_values: true
    value_to_metric: true
    rate_limit: {unit: hour, requests_per_unit: 50}
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10}
    descriptors:
      - key: api_key
        rate_limit: {unit: day, requests_per_unit: 3}
"""


def shop(value: str = SECRET, hash_value: HashValue = HASH) -> RuleBook:
    return book(RULES.replace("SECRET", value), hash_value=hash_value)


def requests(found: RuleBook, *entries: tuple[str, str]) -> int | None:
    """The limit of the rule that the entries match."""
    rule = found.match("shop", entries)
    return None if rule is None or rule.limit is None else rule.limit.requests


def key_of(found: RuleBook, *entries: tuple[str, str]) -> str:
    """The key of the counter of the rule that the entries match."""
    rule = found.match("shop", entries)
    assert rule is not None
    return counter_key(rule, counted_entries(rule, entries))


@pytest.mark.parametrize(
    ("key", "value", "digest"),
    [
        (KEY, SECRET, DIGEST_OF_SECRET),
        (KEY, "", "h-b2cf8792417c9e5c092d4f049a2cd38a"),
        (KEY, "grün", "h-153ab2fc9e232ec0f8d8f074f079fc75"),
        ("k" * 64, SECRET, "h-a47e6a45fa306905e433d1d95eb55544"),
    ],
)
def test_a_digest_is_blake2b_as_openssl_makes_it(key: str, value: str, digest: str) -> None:
    assert HashValue(key)(value) == digest


def test_a_key_longer_than_blake2b_takes_is_replaced_by_its_own_digest() -> None:
    """`printf %s KEY | b2sum` makes that digest, 64 bytes, and OpenSSL takes it by `-macopt hexkey:`."""
    assert HashValue("k" * 65)(SECRET) == "h-212fc2e103a2e26ff15ca21877245e81"


@given(st.text(), st.text())
def test_the_same_value_always_has_the_same_digest_and_two_values_never(one: str, other: str) -> None:
    assert DIGEST.fullmatch(HASH(one))
    assert (HASH(one) == HashValue(KEY)(other)) == (one == other)


def test_without_a_key_each_function_has_a_random_one() -> None:
    assert HashValue("")(SECRET) != HashValue("")(SECRET)


@given(st.text(max_size=600), st.text(max_size=600))
def test_two_secret_values_never_share_a_counter(one: str, other: str) -> None:
    found = shop()
    first, second = (key_of(found, ("user", "ada"), ("api_key", value)) for value in (one, other))

    assert (first == second) == (one == other)


def test_values_are_matched_as_they_are_and_counted_as_digests() -> None:
    found = shop()
    cases: dict[Entries, int] = {
        (("api_key", "any"),): 5,
        (("api_key", SECRET),): 500,
        (("api_key", "test_1"),): 50,
        (("api_key", "any"), ("path", "/")): 4,
        (("user", "ada"),): 10,
        (("user", "ada"), ("api_key", SECRET)): 3,
    }

    for entries, limit in cases.items():
        assert requests(found, *entries) == limit
    assert key_of(found, ("api_key", SECRET)) == f"shop|api_key={DIGEST_OF_SECRET}|fixed_window/86400000000"
    assert key_of(found, ("api_key", "test_1")) == f"shop|api_key={HASH('test_1')}|fixed_window/3600000000"
    assert key_of(found, ("user", "ada"), ("api_key", SECRET)) == (
        f"shop|user=ada|api_key={DIGEST_OF_SECRET}|fixed_window/86400000000"
    )


def test_a_digest_in_the_rules_is_as_good_as_its_value() -> None:
    by_value, by_digest = shop(SECRET), shop(DIGEST_OF_SECRET)

    assert requests(by_digest, ("api_key", SECRET)) == 500
    assert [rule.path for rule in by_value.rules] == [rule.path for rule in by_digest.rules]
    assert key_of(by_value, ("api_key", SECRET)) == key_of(by_digest, ("api_key", SECRET))


@pytest.mark.parametrize("value", [SECRET, DIGEST_OF_SECRET])
def test_a_digest_in_a_request_is_a_value_as_any_other(value: str) -> None:
    found = shop(value)

    assert requests(found, ("api_key", DIGEST_OF_SECRET)) == 5
    assert requests(found, ("api", f"key_{DIGEST_OF_SECRET}")) is None
    assert key_of(found, ("api_key", DIGEST_OF_SECRET)) != key_of(found, ("api_key", SECRET))


def test_an_operator_s_command_takes_a_digest_in_place_of_its_value() -> None:
    found = shop(hash_value=HashValue(KEY, keep_digests=True))

    assert requests(found, ("api_key", DIGEST_OF_SECRET)) == 500
    assert key_of(found, ("api_key", DIGEST_OF_SECRET)) == key_of(shop(), ("api_key", SECRET))


def test_another_key_makes_other_counters() -> None:
    old, new = shop(), shop(hash_value=HashValue(KEY[::-1]))

    assert key_of(old, ("api_key", SECRET)) != key_of(new, ("api_key", SECRET))
    assert key_of(old, ("user", "ada")) == key_of(new, ("user", "ada"))


def test_a_limit_that_comes_with_a_request_is_counted_by_the_digest_too() -> None:
    found = shop()
    day = Limit(7, Unit.DAY, Unit.DAY.window)
    several: Entries = (("api_key", "none"), ("verb", "GET"), ("api_key", SECRET))
    keys = []
    for entries in ((("api_key", SECRET),), several):
        limiter = Limiter(MemoryStore(10))
        limiter.book = found
        keys.append(limiter.plan(Request("shop", [Descriptor(entries, override=day)])).charged[0].key)
        (path, _), *_ = limiter.overrides.items()
        assert path[-1] == f"api_key_{DIGEST_OF_SECRET}"

    assert keys == [
        key_of(found, ("api_key", SECRET)),
        f"shop|api_key={HASH('none')}|verb=GET|api_key={DIGEST_OF_SECRET}|fixed_window/86400000000",
    ]


def test_metrics_by_value_have_the_digest() -> None:
    limiter = Limiter(MemoryStore(10))
    limiter.book = shop()
    for value in (SECRET, "test_1"):
        limiter.plan(Request("shop", [Descriptor((("api_key", value),))]))

    paths = [path for rule in limiter.book.rules if rule.tallies for path, _ in rule.tallies.items()]
    assert paths == [("shop", f"api_key_{DIGEST_OF_SECRET}"), ("shop", f"api_key_{HASH('test_1')}")]


UNLIMITED: list[Entries] = [
    (("api_key", SECRET), ("verb", "GET")),
    (("path", "/"), ("api_key", SECRET)),
    (("path", SECRET[:3]), ("api_key", SECRET)),
    (("user", "ada"), ("api_key", SECRET), ("api_key", SECRET)),
    (("api_key", SECRET), ("user", "ada")),
    (("api_key", f"test_{SECRET}"), ("user", "ada")),
]


@pytest.mark.parametrize("entries", UNLIMITED)
def test_what_is_said_of_a_request_without_a_limit_has_no_secret(entries: Entries) -> None:
    found = shop()
    said = [
        why_unlimited(found, "shop", entries),
        why_unlimited(found, "other", entries),
        json.dumps(explanation_as_json(explain(found, Request("shop", [Descriptor(entries)])), 0)),
        str(found.shown("shop", entries)),
        str(found.shown("other", entries)),
    ]

    for text in said:
        assert SECRET not in text
    assert "h-" in said[2]
    assert found.match("shop", entries) is None


def test_an_explanation_shows_the_digest_and_the_rule_that_the_value_matches() -> None:
    override = Limit(7, Unit.DAY, Unit.DAY.window)
    for entries, limit in (((("api_key", SECRET),), None), ((("api_key", SECRET),), override)):
        explained = explain(shop(), Request("shop", [Descriptor(entries, override=limit)]))
        (descriptor,) = explained.descriptors
        text = json.dumps(explanation_as_json(explained, 0))

        assert SECRET not in text
        assert descriptor.entries == (("api_key", DIGEST_OF_SECRET),)
        assert descriptor.matched[0].counter == f"shop|api_key={DIGEST_OF_SECRET}|fixed_window/86400000000"
    explained = explain(shop(), Request("shop", [Descriptor((("api_key", SECRET),))]))
    assert [(step.value, step.candidates[0].name) for step in explained.descriptors[0].steps] == [
        (DIGEST_OF_SECRET, f"api_key_{DIGEST_OF_SECRET}")
    ]


def test_names_of_secret_rules_have_digests() -> None:
    found = shop()

    assert SECRET not in str([(rule.path, repr(rule), rule.levels) for rule in found.rules])
    assert SECRET not in str([name for root in found.domains.values() for name in root.children])
    assert found.rules[2].path == ("shop", f"api_key_{DIGEST_OF_SECRET}")


def wrong(*texts: str, **options: Any) -> list[str]:
    with pytest.raises(RulesError) as raised:
        book(*texts, **options)
    return [str(problem) for problem in raised.value.problems]


def test_without_a_key_hash_values_is_an_error_that_names_the_setting() -> None:
    assert wrong("domain: a\ndescriptors: [{key: k, hash_values: true}]") == [
        "1.yaml:2:24: hash_values needs a key that all instances share: set HASH_KEY or HASH_KEY_FILE"
    ]


@pytest.mark.parametrize("value", ["false", "~", ""])
def test_hash_values_that_are_false_need_no_key(value: str) -> None:
    found = book(f"domain: shop\ndescriptors: [{{key: api_key, hash_values: {value}}}]")

    assert found.shown("shop", (("api_key", SECRET),)) == (("api_key", SECRET),)


def test_a_random_key_is_warned_of() -> None:
    text = "domain: a\ndescriptors: [{{key: k, {} hash_values: true, rate_limit: {{unit: day, requests_per_unit: 1}}}}]"
    refused = "with counters in Redis these rules are refused"

    (plain,) = lint(book(text.format(""), hash_value=HashValue("")))
    (digest,) = lint(book(text.format(f"value: {DIGEST_OF_SECRET},"), hash_value=HashValue("")))
    assert plain.message == (
        f"HASH_KEY is not set, so digests are made with a random key, and change with each start; {refused}"
    )
    assert digest.message == f"HASH_KEY is not set, so no value has this digest; {refused}"
    assert {plain.kind, digest.kind} == {"hash-key"}
    assert lint(book(text.format(""), hash_value=HASH)) == []


def test_a_pattern_of_keys_has_no_secret_values() -> None:
    assert wrong("domain: a\ndescriptors: [{key: k*, hash_values: true}]", hash_value=HASH) == [
        '1.yaml:2:25: hash_values needs a key without a *, and this is "k*"'
    ]


def test_another_value_of_a_secret_key_must_be_secret_too_in_every_file_of_the_domain() -> None:
    plain = "domain: shop\ndescriptors: [{key: user, descriptors: [{key: api_key, value: plain}]}]"
    hashed = "domain: shop\ndescriptors: [{key: api_key, hash_values: true}]"
    other = "domain: other\ndescriptors: [{key: api_key, value: plain}]"

    for texts, file in (((plain, other, hashed), 1), ((hashed, other, plain), 3)):
        assert wrong(*texts, hash_value=HASH, merge_domains=True) == [
            f'{file}.yaml:2:63: the values of "api_key" are secret in this domain; write hash_values: true here too'
        ]


def test_an_error_does_not_quote_a_secret_value() -> None:
    text = f"domain: shop\ndescriptors: [{{key: api_key, value: {SECRET}, hash_values: yess}}]"
    twice = f"domain: shop\ndescriptors: [{', '.join([f'{{key: api_key, value: {SECRET}, hash_values: true}}'] * 2)}]"

    for problems in (wrong(text, hash_value=HASH), wrong(text), wrong(twice, hash_value=HASH), wrong(twice)):
        assert problems
        assert SECRET not in str(problems)


@pytest.mark.parametrize(
    "given",
    [
        "value: 4111111111111111111111",
        "value: 41111.11111111111111e9",
        "values: 4111111111111111111111",
        "values: [4111111111111111111111, 41111.11111111111111e9]",
    ],
)
@pytest.mark.parametrize("keyed", [True, False])
def test_an_error_about_the_type_of_a_secret_value_does_not_quote_it(given: str, keyed: bool) -> None:
    text = f"domain: shop\ndescriptors: [{{key: api_key, {given}, hash_values: true}}]"

    problems = wrong(text, hash_value=HASH if keyed else None)
    assert problems
    assert "41111" not in str(problems)
    assert "41111" in str(wrong(text.replace(", hash_values: true", "")))


def test_a_secret_value_is_not_warned_of() -> None:
    limit = "rate_limit: {unit: day, requests_per_unit: 1}"
    text = f"domain: a\ndescriptors: [{{key: k, value: 10.0.0.0/8, hash_values: true, {limit}}}]"

    assert lint(book(text, hash_value=HASH)) == []


def test_a_key_with_a_star_at_the_level_of_a_secret_one_shows_no_value_either() -> None:
    found = book(
        """\
        domain: shop
        descriptors:
          - {key: "api*", value: "*", detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
          - {key: user, descriptors: [{key: api_key, hash_values: true}]}
        """,
        hash_value=HASH,
    )

    assert key_of(found, ("api_key", SECRET)) == f"shop|api_key={DIGEST_OF_SECRET}|fixed_window/86400000000"


def test_addresses_are_grouped_before_they_are_hashed() -> None:
    found = book(
        """\
        domain: shop
        descriptors:
          - key: address
            hash_values: true
            prefix: {ipv4: 24, ipv6: 64}
            rate_limit: {unit: day, requests_per_unit: 1}
        """,
        hash_value=HASH,
    )
    keys = {
        address: key_of(found, ("address", address))
        for address in ("192.0.2.1", "192.0.2.77", "::ffff:192.0.2.3", "192.0.3.1", "2001:db8::1", "2001:DB8:0::ff")
    }

    assert len(set(keys.values())) == 3
    assert keys["192.0.2.1"] == keys["192.0.2.77"] == keys["::ffff:192.0.2.3"]
    assert keys["2001:db8::1"] == keys["2001:DB8:0::ff"]
    assert HASH("192.0.2.0/24") in keys["192.0.2.1"]
    assert "192" not in keys["192.0.2.1"].replace(HASH("192.0.2.0/24"), "")


def test_what_is_secret_in_some_domain_is_secret_in_domains_without_rules_and_in_the_rules_for_those() -> None:
    any_domain = """
        domain: "*"
        default: {detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 7}}
        """
    secret: Entries = (("api_key", SECRET),)
    keys = []
    for found in (shop(), book(any_domain, RULES, hash_value=HASH), book(RULES, any_domain, hash_value=HASH)):
        assert found.shown("shopp", secret) == (("api_key", DIGEST_OF_SECRET),)
        limiter = Limiter(MemoryStore(10))
        limiter.book = found
        keys += [hit.key for hit in limiter.plan(Request("shopp", [Descriptor(secret)])).charged]
        paths = [path for rule in found.rules if rule.tallies for path, _ in rule.tallies.items()]
        assert SECRET not in str(paths)

    assert keys == [f"shopp|api_key={DIGEST_OF_SECRET}|fixed_window/86400000000"] * 2
