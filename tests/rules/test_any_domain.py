"""Domain `*`: the rules for all domains that have none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import RulesError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.reasons import explain, why_unlimited
from ratelimit_service.rules.rule import Entries, Rule, counter_key
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.keys import cluster_key
from ratelimit_service.telemetry.tally import joined
from tests.books import book, matched
from tests.clocks import Clock

SHOP = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]\n"
ANY = """\
    domain: "*"
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 2}
      - key: path
        rate_limits:
          - {unit: second, requests_per_unit: 1}
          - {unit: day, requests_per_unit: 5}
    """

USER: Entries = (("user", "ada"),)
PATH: Entries = (("path", "x"),)


@pytest.mark.parametrize(
    ("domain", "entries", "expected"),
    [
        ("shop", USER, ("shop.user", "shop|user=ada")),
        ("shop", PATH, None),
        ("api", USER, ("*.user", "api|user=ada")),
        ("a|b", USER, ("*.user", "a%7Cb|user=ada")),
        ("*", USER, ("*.user", "*|user=ada")),
        ("api", PATH, ("*.path.per_second", "api|path=x")),
        ("api", (("plan", "free"),), None),
    ],
)
def test_its_rules_are_for_domains_without_a_file_and_count_in_their_names(
    domain: str, entries: Entries, expected: tuple[str, str] | None
) -> None:
    assert matched(book(SHOP, ANY), domain, entries) == expected


def test_without_it_domains_without_a_file_have_no_rules() -> None:
    assert matched(book(SHOP), "api", USER) is None
    assert book(SHOP).name_of("api") is None


def test_all_limits_of_a_list_count_in_the_name_of_the_domain() -> None:
    rule = book(ANY).match("api", PATH)

    assert rule is not None
    assert [counter_key(each, PATH) for each in (rule, *rule.beside)] == [
        "api|path=x|fixed_window/1000000",
        "api|path=x|fixed_window/86400000000",
    ]


def test_the_same_rules_are_kept_for_a_domain() -> None:
    rules = book(ANY)

    assert rules.match("api", USER) is rules.match("api", USER)
    assert {id(rule) for rule in rules.rules_in("api")} >= {id(rules.match("api", USER)), id(rules.match("api", PATH))}
    assert rules.rules_in("*") == list(rules.rules)


def test_the_name_of_a_very_long_domain_is_no_part_of_a_key() -> None:
    rules = book(ANY)
    keys = [matched(rules, domain, USER) for domain in ("x" * 501, "x" * 502, "x" * 60_000)]

    assert len(set(keys)) == 3
    assert all(key is not None and len(key[1]) < 100 and key[1].startswith("%%") for key in keys)


def test_it_may_have_a_default_and_a_lookup() -> None:
    rules = book(
        """\
        domain: "*"
        lookup: {from: users.csv, key: user, as: plan}
        otherwise: {rate_limit: {unit: day, requests_per_unit: 1}, share_threshold: true}
        descriptors: [{key: plan, value: pro, rate_limit: {unit: day, requests_per_unit: 100}}]
        """,
        read_data=lambda _: b"ada,pro\n",
    )

    assert matched(rules, "api", USER) == ("*.plan_pro", "api|user=ada")
    assert matched(rules, "api", PATH) == ("*.default", "api|~default")
    assert matched(rules, "web", PATH) == ("*.default", "web|~default")


def ask(limiter: Limiter, domain: str, entries: Entries = USER, override: Limit | None = None) -> Verdict:
    plan = limiter.plan(Request(domain, (Descriptor(entries, override=override),)))
    verdict = limiter.decide_now(plan, lambda verdict, _: verdict, b"")
    assert verdict is not None
    return verdict


def a_limiter(rules: RuleBook) -> Limiter:
    limiter = Limiter(MemoryStore(10_000, Clock()), max_values=10)
    limiter.book = rules
    return limiter


def test_each_domain_has_its_own_counters_and_all_share_the_tallies() -> None:
    rules = book(SHOP, ANY)
    limiter = a_limiter(rules)

    allowed = [ask(limiter, domain).allowed for domain in ("api", "api", "api", "web", "web", "web")]

    assert allowed == [True, True, False, True, True, False]
    assert [(rule.path, rule.tally.total_hits) for rule in rules.rules if rule.tally.total_hits] == [(("*", "user"), 6)]
    assert limiter.domains.of("*").allowed == 4
    assert limiter.domains.of("*").refused == 2


def test_what_clients_send_as_domains_adds_no_metrics() -> None:
    text = ANY.replace("key: user\n", "key: user\n        detailed_metric: true\n")
    rules = book(SHOP, text)
    limiter = a_limiter(rules)
    override = Limit(1, Unit.DAY, Unit.DAY.window)

    for number in range(100):
        ask(limiter, f"domain-{number}")
        ask(limiter, f"domain-{number}", (("plan", "free"),))
        ask(limiter, f"domain-{number}", override=override)

    tallies = rules.rules[1].tallies
    assert tallies is not None
    assert [path for path, _ in tallies.items()] == [("*", "user_ada")]
    assert [domain for domain, _ in limiter.domains.items()] == ["other", "shop", "*"]
    assert list(limiter.unknown_domains.items()) == []
    assert limiter.unmatched.seen().counts == {joined(("*", "plan")): 100}
    assert limiter.domains.of("*").unmatched == 100
    assert len(list(limiter.overrides.items())) == 11


def test_a_limit_that_comes_with_a_request_shares_the_counter_of_the_rule_it_overrides() -> None:
    limiter = a_limiter(book(ANY))
    override = Limit(3, Unit.DAY, Unit.DAY.window)

    allowed = [ask(limiter, "api", override=override).allowed for _ in range(4)]

    assert allowed == [True, True, True, False]
    assert not ask(limiter, "api").allowed
    assert ask(limiter, "web").allowed


def test_limits_charged_together_are_so_in_each_domain() -> None:
    text = ANY.replace('domain: "*"', 'domain: "*"\n    charge: together')
    limiter = a_limiter(book(text))
    both = [Descriptor(PATH), Descriptor(USER)]

    for domain in ("api", "web"):
        for _ in range(5):
            plan = limiter.plan(Request(domain, both))
            limiter.decide_now(plan, lambda verdict, _: verdict, b"")

        assert ask(limiter, domain).allowed  # a second one for the user: the others were denied by the path


def test_two_files_of_it_are_joined_as_of_any_domain() -> None:
    with pytest.raises(RulesError, match="MERGE_DOMAIN_CONFIG joins files"):
        book(ANY, ANY.replace("user", "plan").replace("path", "host"))
    joined = book(ANY, ANY.replace("user", "plan").replace("path", "host"), merge_domains=True)

    assert matched(joined, "api", (("plan", "free"),)) == ("*.plan", "api|plan=free")


def test_an_explanation_says_that_the_rules_are_those_of_any_domain() -> None:
    explained = explain(book(SHOP, ANY), Request("api", (Descriptor(USER),)))
    (descriptor,) = explained.descriptors

    assert explained.problem == ""
    assert descriptor.outcome == "The rule at 2.yaml:4:5 applies: 2 requests per day."
    assert descriptor.hints == ('Domain "api" has no rules of its own: those of domain "*" apply.',)
    assert descriptor.matched[0].counter == "api|user=ada|fixed_window/86400000000"
    assert descriptor.matched[0].metric == ("*", "user")


def test_why_a_request_is_not_limited_is_said_for_any_domain() -> None:
    assert why_unlimited(book(ANY), "api", (("plan", "free"),)) == (
        'entry 1 of 1, plan="free", fits nothing below domain "api"'
    )


KEYS = st.sampled_from(["user", "path", "plan"])


@given(st.lists(st.tuples(KEYS, st.text(max_size=3)), max_size=3).map(tuple), st.booleans(), st.booleans())
def test_a_domain_is_limited_and_counted_as_if_it_had_these_rules_itself(
    entries: Entries, default: bool, together: bool
) -> None:
    more = "otherwise: {rate_limit: {unit: day, requests_per_unit: 1}}\n    " if default else ""
    more += "charge: together\n    " if together else ""
    text = ANY.replace("descriptors:", f"{more}descriptors:")
    theirs = book(text.replace('"*"', "api")).match("api", entries)
    ours = book(SHOP, text).match("api", entries)

    assert (ours is None) is (theirs is None)
    if ours is not None and theirs is not None:
        assert [each.limit for each in (ours, *ours.beside)] == [each.limit for each in (theirs, *theirs.beside)]
        assert [counter_key(each, entries) for each in (ours, *ours.beside)] == [
            counter_key(each, entries) for each in (theirs, *theirs.beside)
        ]
        assert cluster_key("")(hit_of(ours, entries)) == cluster_key("")(hit_of(theirs, entries))


def hit_of(rule: Rule, entries: Entries) -> Hit:
    return Hit(rule, counter_key(rule, entries), 1, tally=rule.tally, quota=False)
