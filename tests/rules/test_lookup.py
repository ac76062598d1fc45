"""`lookup`: entries are matched as others, and counted as themselves."""

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
from ratelimit_service.rules.data_files import DataFile
from ratelimit_service.rules.reasons import explain, explanation_as_json, why_unlimited
from ratelimit_service.rules.rule import counted_entries, counter_key
from ratelimit_service.rules.secret import HashValue
from ratelimit_service.stores.memory import MemoryStore
from tests.books import book
from tests.shop import entries_of

KEYS = "# keys of customers\nk-1,pro\nk-2,free\n"

TIERS = """\
    domain: shop
    lookup: {from: keys.csv, key: api_key, as: tier, else: free}
    descriptors:
      - key: tier
        value: pro
        rate_limit: {unit: day, requests_per_unit: 1000}
      - key: tier
        value: free
        rate_limit: {unit: day, requests_per_unit: 10}
      - key: user
        descriptors:
          - key: tier
            value: pro
            rate_limit: {unit: day, requests_per_unit: 500}
    """


def tiers(text: str = TIERS, **files: str) -> RuleBook:
    known = {"keys.csv": KEYS, **{f"{name}.csv": file for name, file in files.items()}}
    return book(text, read_data=lambda path: known[path].encode())


def problems(text: str, **files: str) -> list[str]:
    with pytest.raises(RulesError) as refused:
        tiers(text, **files)
    return list(map(str, refused.value.problems))


def found(rules: RuleBook, text: str) -> tuple[int, str] | None:
    """The limit of the rule that matches, and the key of the counter."""
    entries = entries_of(text)
    rule = rules.match("shop", entries)
    if rule is None or rule.limit is None:
        return None
    return rule.limit.requests, counter_key(rule, counted_entries(rule, entries)).rpartition("|")[0]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("api_key=k-1", (1000, "shop|api_key=k-1")),
        ("api_key=k-2", (10, "shop|api_key=k-2")),
        ("api_key=k-3", (10, "shop|api_key=k-3")),
        ("api_key=", (10, "shop|api_key=")),
        ("tier=pro", (1000, "shop|tier=pro")),
        ("user=ada api_key=k-1", (500, "shop|user=ada|api_key=k-1")),
        ("user=ada api_key=k-2", None),
        ("api_key=k-1 user=ada", None),
        ("key=k-1", None),
    ],
)
def test_an_entry_is_matched_by_what_its_value_is_called_and_counted_as_it_came(
    entries: str, expected: tuple[int, str] | None
) -> None:
    assert found(tiers(), entries) == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("api_key=k-1", (1000, "shop|api_key=k-1")),
        ("api_key=k-3", (5, "shop|api_key=k-3")),
    ],
)
def test_without_else_an_unknown_value_stays_as_it_is(entries: str, expected: tuple[int, str]) -> None:
    plain = "descriptors:\n      - {key: api_key, rate_limit: {unit: day, requests_per_unit: 5}}"

    assert found(tiers(TIERS.replace(", else: free", "").replace("descriptors:", plain, 1)), entries) == expected


SEVERAL = """\
    domain: shop
    lookup:
      - {from: keys.csv, key: api_key, as: tier}
      - {from: plans.csv, key: user, as: tier}
    descriptors:
      - {key: tier, value: pro, rate_limit: {unit: day, requests_per_unit: 1000}}
      - key: tier
        value: free
        descriptors:
          - {key: tier, value: gold, rate_limit: {unit: day, requests_per_unit: 7}}
    """


def test_several_lookups_are_for_several_keys_and_each_entry_is_looked_up_once() -> None:
    rules = tiers(SEVERAL, plans="ada,pro\nbob,gold\n")

    assert found(rules, "api_key=k-1") == (1000, "shop|api_key=k-1")
    assert found(rules, "user=ada") == (1000, "shop|user=ada")
    assert found(rules, "api_key=k-2 user=bob") == (7, "shop|api_key=k-2|user=bob")
    assert found(rules, "user=bob") is None


def test_a_shared_level_has_one_counter_for_all_values_of_a_name() -> None:
    rules = tiers(
        TIERS.replace("value: pro\n        rate", "value: pro*\n        share_threshold: true\n        rate", 1)
    )

    asked = ("api_key=k-1", "tier=pro", "tier=protected")
    assert {found(rules, text) for text in asked} == {(1000, "shop|tier~tier_pro*")}


def test_an_address_that_is_looked_up_as_text_is_counted_as_text() -> None:
    rules = tiers(
        TIERS.replace("value: pro\n        rate", "values: [pro, max]\n        rate"), keys="::ffff:10.0.0.1,pro\n"
    )

    assert found(rules, "api_key=::ffff:10.0.0.1") == (1000, "shop|api_key=::ffff:10.0.0.1")


def test_an_entry_may_become_one_of_the_same_key() -> None:
    rules = tiers("""\
        domain: shop
        lookup: {from: keys.csv, key: user, as: user}
        descriptors:
          - {key: user, value: pro, rate_limit: {unit: day, requests_per_unit: 9}}
          - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
        """)

    assert found(rules, "user=k-1") == (9, "shop|user=k-1")
    assert found(rules, "user=ada") == (1, "shop|user=ada")
    assert lint(rules) == []


def test_other_domains_look_nothing_up() -> None:
    rules = book(TIERS, TIERS.replace("shop", "api").replace("    lookup", "    # "), read_data=lambda _: KEYS.encode())

    assert rules.match("shop", entries_of("api_key=k-1")) is not None
    assert rules.match("api", entries_of("api_key=k-1")) is None


def test_a_domain_of_several_files_has_the_lookups_of_all() -> None:
    more = "domain: shop\nlookup: {from: plans.csv, key: user, as: tier}\n"
    files = {"keys.csv": KEYS.encode(), "plans.csv": b"ada,pro\n"}

    rules = book(TIERS, more, merge_domains=True, read_data=files.__getitem__)

    assert found(rules, "user=ada") == (1000, "shop|user=ada")
    assert found(rules, "api_key=k-1") == (1000, "shop|api_key=k-1")


def test_a_limit_that_comes_with_a_request_counts_as_without_a_lookup() -> None:
    limit = Limit(3, Unit.DAY, Unit.DAY.window)
    limiter = Limiter(MemoryStore(1000))
    limiter.book = tiers()

    plan = limiter.plan(Request("shop", (Descriptor(entries_of("api_key=k-1"), override=limit),)))

    assert [hit.key for hit in plan.charged] == ["shop|api_key=k-1|fixed_window/86400000000"]
    assert [hit.limit for hit in plan.charged] == [limit]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ("", ("shop", "tier_pro")),
        ("value_to_metric: true, ", ("shop", "tier_pro")),
        ("detailed_metric: true, ", ("shop", "api_key_k-1")),
    ],
)
@pytest.mark.parametrize("value", ["", "value: pro*, "])
def test_metrics_have_the_name_and_the_value_only_on_demand(options: str, value: str, path: tuple[str, ...]) -> None:
    limiter = Limiter(MemoryStore(1000))
    limiter.book = tiers(f"""\
        domain: shop
        lookup: {{from: keys.csv, key: api_key, as: tier}}
        descriptors: [{{key: tier, {value}{options}rate_limit: {{unit: day, requests_per_unit: 9}}}}]
        """)
    plan = limiter.plan(Request("shop", (Descriptor(entries_of("api_key=k-1"), 1),)))
    assert limiter.decide_now(plan, lambda verdict, _: verdict.allowed, b"") is True

    (rule,) = limiter.book.rules
    shown = [(rule.path, rule.tally)] if rule.tallies is None else rule.tallies.items()

    if not options:
        path = rule.path
    assert [(name, tally.total_hits) for name, tally in shown] == [(path, 1)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lookup: yes", "1.yaml:2:9: lookup must be a map or a list of maps, not the boolean yes"),
        ("lookup: [keys.csv]", '1.yaml:2:10: each of lookup must be a map, not the text "keys.csv"'),
        ("lookup: {key: a, as: b}", "1.yaml:2:9: a lookup must have from, the path of a file with lines value,name"),
        (
            "lookup: {from: keys.csv, as: b}",
            "1.yaml:2:9: a lookup must have the key of the entries whose values are looked up",
        ),
        (
            "lookup: {from: keys.csv, key: a}",
            "1.yaml:2:9: a lookup must have as, the key of the entry that is matched instead",
        ),
        (
            'lookup: {from: keys.csv, key: a, as: b, else: ""}',
            "1.yaml:2:47: else must not be empty",
        ),
        (
            "lookup: {from: keys.csv, key: a, to: b}",
            '1.yaml:2:34: unknown key "to"; in lookup there may be from, key, as, hash_values, else',
        ),
        (
            "lookup: [{from: keys.csv, key: a, as: b}, {from: keys.csv, key: a, as: c}]",
            '1.yaml:2:65: entries with the key "a" are looked up twice, first by 1.yaml:2:10',
        ),
        (
            "lookup: {from: names.csv, key: a, as: tier}",
            "names.csv:3:1: the line has no name, and the lookup at 1.yaml:2:9 needs one, the tier of the value; also",
        ),
    ],
)
def test_a_wrong_lookup_is_refused_with_its_place(text: str, problem: str) -> None:
    found = problems(f"domain: shop\n{text}\n", names="#\nk-1,pro\nk-2\nk-3\n")

    assert [each for each in found if each.startswith(problem)]


@pytest.mark.parametrize(
    ("old", "new", "warnings"),
    [
        ("k-2,free", "k-2,free", []),
        (
            "k-2,free",
            "k-2,gold\nk-3,silver",
            ['1.yaml:2:9: warning: no descriptor fits "tier=gold", "tier=silver", which this lookup makes of entries'],
        ),
    ],
)
def test_a_name_without_a_descriptor_is_a_warning(old: str, new: str, warnings: list[str]) -> None:
    rules = book(TIERS, read_data=lambda _: KEYS.replace(old, new).encode())

    assert [str(warning).removesuffix(" [lookup]") for warning in lint(rules)] == warnings


def test_a_descriptor_of_entries_that_always_become_others_is_a_warning() -> None:
    plain = "descriptors:\n      - {key: api_key, rate_limit: {unit: day, requests_per_unit: 5}}"

    assert [str(warning)[:78] for warning in lint(tiers(TIERS.replace("descriptors:", plain, 1)))] == [
        '1.yaml:4:6: warning: "api_key" is never reached: the lookup at 1.yaml:2:9 turn'
    ]


def explained(rules: RuleBook, text: str) -> dict[str, Any]:
    request = Request("shop", (Descriptor(entries_of(text), 1),))
    (descriptor,) = explanation_as_json(explain(rules, request), 0)["descriptors"]
    return dict(descriptor)


def test_an_explanation_says_what_was_looked_up() -> None:
    known = explained(tiers(), "user=ada api_key=k-1")
    unknown = explained(tiers(), "api_key=k-9")
    kept = explained(tiers(TIERS.replace(", else: free", "")), "api_key=k-9")

    assert [step["lookup"] for step in known["steps"]] == ["", 'api_key="k-1" is tier="pro" by keys.csv']
    assert [(step["key"], step["value"]) for step in known["steps"]] == [("user", "ada"), ("tier", "pro")]
    assert [rule["counter"] for rule in known["rules"]] == ["shop|user=ada|api_key=k-1|fixed_window/86400000000"]
    assert [rule["metric"] for rule in known["rules"]] == ["shop.user.tier_pro"]
    assert unknown["steps"][0]["lookup"] == 'api_key="k-9" is tier="free" by else: it is not in keys.csv'
    assert kept["steps"][0]["lookup"] == (
        'api_key="k-9" is not in keys.csv, and the lookup has no else: it stays as it is'
    )


def test_why_a_request_is_not_limited_names_what_was_compared() -> None:
    assert why_unlimited(tiers(), "shop", entries_of("user=ada api_key=k-2")).startswith(
        'entry 2 of 2, tier="free", fits nothing below'
    )


NAMES = st.sampled_from(["pro", "free", "gold"])
VALUES = st.sampled_from(["k-1", "k-2", "k-3", "pro", "free"])
ENTRIES = st.lists(st.tuples(st.sampled_from(["api_key", "tier", "user"]), VALUES), min_size=1, max_size=3)


@given(files=st.dictionaries(VALUES, NAMES), otherwise=st.none() | NAMES, entries=ENTRIES)
def test_a_book_with_a_lookup_matches_as_one_without_matches_what_was_looked_up(
    files: dict[str, str], otherwise: str | None, entries: list[tuple[str, str]]
) -> None:
    lines = "".join(f"{value},{name}\n" for value, name in files.items())
    text = TIERS.replace(", else: free", f", else: {otherwise}" if otherwise else "")
    rules = book(text, read_data=lambda _: lines.encode())
    plain = book(TIERS.replace("lookup:", "# lookup:"))

    def naive(key: str, value: str) -> tuple[str, str]:
        name = files.get(value, otherwise)
        return (key, value) if key != "api_key" or name is None else ("tier", name)

    ours = rules.match("shop", tuple(entries))
    theirs = plain.match("shop", tuple(naive(*entry) for entry in entries))

    assert (ours and ours.path) == (theirs and theirs.path)
    if ours is not None and theirs is not None:
        assert counter_key(ours, tuple(entries)) == counter_key(theirs, tuple(entries))


SECRET = HashValue("a key of the operator")
PRO = SECRET("k-1")


@pytest.mark.parametrize("keys", [KEYS, f"{PRO},pro\nk-2,free\n"])
@pytest.mark.parametrize("where", ["lookup", "descriptor"])
def test_secret_values_are_looked_up_and_shown_nowhere(keys: str, where: str) -> None:
    text = TIERS.replace("key: api_key,", "key: api_key, hash_values: true,")
    if where == "descriptor":
        more = "descriptors:\n      - {key: api_key, hash_values: true, rate_limit: {unit: day, requests_per_unit: 1}}"
        text = TIERS.replace(", else: free", "").replace("descriptors:", more, 1)
    rules = book(text, read_data=lambda _: keys.encode(), hash_value=SECRET)
    shown = explained(rules, "api_key=k-1")

    assert found(rules, "api_key=k-1") == (1000, f"shop|api_key={PRO}")
    assert found(rules, "api_key=k-2") == (10, f"shop|api_key={SECRET('k-2')}")
    assert shown["steps"][0]["lookup"] == f'api_key="{PRO}" is tier="pro" by keys.csv'
    assert "k-1" not in json.dumps(shown)


def test_a_digest_in_a_request_is_a_value_as_any_other() -> None:
    text = TIERS.replace("key: api_key,", "key: api_key, hash_values: true,")
    rules = book(text, read_data=lambda _: f"{PRO},pro".encode(), hash_value=SECRET)

    assert found(rules, "api_key=k-1") == (1000, f"shop|api_key={PRO}")
    assert found(rules, f"api_key={PRO}") == (10, f"shop|api_key={SECRET(PRO)}")


def test_secret_values_need_a_key_for_their_digests() -> None:
    assert problems(TIERS.replace("key: api_key,", "key: api_key, hash_values: true,")) == [
        "1.yaml:2:40: hash_values needs a key that all instances share: set HASH_KEY or HASH_KEY_FILE"
    ]


def test_the_book_has_its_data_files() -> None:
    assert {path: type(file) for path, file in tiers().data.items()} == {"keys.csv": DataFile}
