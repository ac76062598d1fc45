"""The columns of a rule add up to its hits, whatever was asked: in one process, and over workers."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Rule
from ratelimit_service.server.admin.status import RulesNow
from ratelimit_service.server.series import drain_tally
from ratelimit_service.server.workers.report import MergedCounts, RuleCounts
from ratelimit_service.settings import load_settings
from ratelimit_service.system.clock import SECOND
from tests.books import book
from tests.shop import Shop

SHOP = """
    domain: shop
    pools: [{name: all, unit: minute, requests_per_unit: 15}]
    descriptors:
      - {key: window, rate_limit: {unit: minute, requests_per_unit: 10}}
      - {key: lenient, rate_limit: {unit: minute, requests_per_unit: 10, count_refused: false}}
      - {key: soft, rate_limit: {unit: minute, requests_per_unit: 10, exceed: 4}}
      - {key: bucket, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: token_bucket, exceed: 2}}
      - {key: leaky, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: leaky_bucket}}
      - {key: sliding, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_window}}
      - {key: parts, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sub_windows}}
      - {key: log, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_log}}
      - {key: watched, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 10}}
      - {key: blocking, rate_limit: {unit: minute, requests_per_unit: 10, block_for: 2 minutes}}
      - {key: places, rate_limit: {concurrency: 4, hold: 10s, place: places}}
      - {key: right, rate_limit: {unit: minute, requests_per_unit: 8, elastic: {pool: all, ceiling: 12}}}
      - {key: loan, rate_limit: {unit: minute, requests_per_unit: 7, elastic: {pool: all, ceiling: 14}}}
      - {key: none, rate_limit: {unit: minute, requests_per_unit: 0}}
      - {key: denied, rate_limit: {deny: true}}
      - {key: free, rate_limit: {unlimited: true}}
      - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 10}}
      - {key: apart, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 10}}
      - key: list
        rate_limits:
          - {unit: second, requests_per_unit: 4}
          - {unit: minute, requests_per_unit: 10, exceed: 2}
      - key: watched_list
        shadow_mode: true
        charge: each
        rate_limits:
          - {unit: second, requests_per_unit: 4}
          - {unit: minute, requests_per_unit: 10}
    """

ALL = """
    domain: all
    charge: together
    descriptors:
      - {key: ip, rate_limit: {unit: minute, requests_per_unit: 10}}
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 6, exceed: 2}}
      - {key: watched, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 4}}
      - {key: denied, rate_limit: {deny: true}}
    """

KEYS = {
    domain: sorted({rule.path[1] for rule in book(SHOP, ALL).rules if rule.domain == domain})
    for domain in ("shop", "all")
}


class Asked(NamedTuple):
    """One request."""

    domain: str
    keys: list[str]
    cost: int
    seconds_before: int


REQUESTS = st.sampled_from(sorted(KEYS)).flatmap(
    lambda domain: st.builds(
        Asked,
        st.just(domain),
        st.lists(st.sampled_from(KEYS[domain]), min_size=1, max_size=3, unique=True),
        st.integers(-3, 15),
        st.sampled_from([0, 0, 0, 1, 20]),
    )
)


def asked_for(requests: list[Asked]) -> RuleBook:
    """The rules, which have counted these requests."""
    shop = Shop("domain: none")
    shop.limiter.book = rules = book(SHOP, ALL)
    for request in requests:
        shop.clock.advance(request.seconds_before * SECOND)
        shop.ask(*request.keys, domain=request.domain, cost=request.cost)
    return rules


def check_columns(rules: RuleBook, requests: list[Asked]) -> None:
    for rule in rules.rules:
        columns = RulesNow(rules.rules).described(rule)
        costs = [each.cost for each in requests if each.domain == rule.domain and rule.path[1] in each.keys]
        # Without a limit there is nothing to give back to: a refund is a hit.
        asked = sum(map(abs, costs)) if rule.path[1] == "free" else sum(cost for cost in costs if cost > 0)

        assert columns["total"] == asked, rule.path
        assert sum(columns[name] for name in ("within", "over", "exceeded", "spared")) == asked, rule.path
        assert rule.tally.blocked == (rule.tally.over_limit if rule.path[1] == "blocking" else 0), rule.path
        assert columns["shadow"] == (columns["over"] if rule.shadow else 0), rule.path
        assert columns["near"] <= columns["within"] + columns["over"], rule.path


@given(st.lists(REQUESTS, max_size=30))
def test_the_columns_of_a_rule_add_up_to_its_hits(requests: list[Asked]) -> None:
    check_columns(asked_for(requests), requests)


@given(st.lists(st.lists(REQUESTS, max_size=15), min_size=2, max_size=3))
def test_they_add_up_over_workers(of_workers: list[list[Asked]]) -> None:
    sums = MergedCounts(load_settings({})[0], [])
    rules = book(SHOP, ALL)
    sums.publish(rules)
    for requests in of_workers:
        sums.add_tallies(count for rule in asked_for(requests).rules for count in taken(rule))

    check_columns(rules, [request for requests in of_workers for request in requests])


def taken(rule: Rule) -> list[RuleCounts]:
    """What a worker reports of it."""
    tallies = [((), rule.tally)] if rule.tallies is None else rule.tallies.items()
    return [(rule.path, path, numbers) for path, tally in tallies if (numbers := drain_tally(tally))]
