"""Requests in, verdicts out: what is charged, and what all descriptors add up to."""

from collections.abc import Sequence
from typing import Any

import pytest

from ratelimit_service.errors import RpcError, Status, StoreError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.rules.rule import counter_key
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.store import Done
from ratelimit_service.system.clock import DAY, MINUTE
from tests.books import book
from tests.clocks import Clock
from tests.verdicts import check, kept, values

RULES = """
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 2}
      - key: tenant
        rate_limit: {unit: minute, requests_per_unit: 10}
      - key: free
        rate_limit: {unlimited: true}
      - key: open
      - key: watched
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: quota
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: big_quota
        quota_mode: true
        rate_limit: {unit: minute, requests_per_unit: 2}
      - key: watched_quota
        quota_mode: true
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: base
        rate_limit: {unit: minute, requests_per_unit: 1, name: base}
      - key: vip
        rate_limit: {unit: minute, requests_per_unit: 5, name: vip, replaces: [{name: base}]}
      - key: vip_free
        rate_limit: {unlimited: true, replaces: [{name: base}, {name: vip}]}
    """


def limiter(**options: Any) -> Limiter:
    made = Limiter(MemoryStore(1000, Clock()), **options)
    made.book = book(RULES)
    return made


def ask(limiter: Limiter, *keys: str, cost: int = 1, domain: str = "shop", override: Limit | None = None) -> Verdict:
    """One descriptor for each key."""
    return check(limiter, Request(domain, [Descriptor(((key, "x"),), cost, None, override) for key in keys]))


def summary(verdict: Verdict) -> list[tuple[bool, int] | None]:
    """Of each descriptor: is it over, and what remains."""
    return [None if hit is None else (hit.over, hit.decision.remaining) for hit in verdict.hits]


COPIED = """
    domain: copied
    headers: [ratelimit]
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 2}
      - key: list
        rate_limits: [{unit: minute, requests_per_unit: 2}, {unit: day, requests_per_unit: 9}]
      - key: queue
        rate_limit: {unit: second, requests_per_unit: 5, algorithm: leaky_bucket, queue: {max_delay: 1s}}
      - key: id
        rate_limit: {concurrency: 5, hold: 1 minute, place: id}
      - {key: closed, shadow_mode: true, rate_limit: {deny: true}}
      - {key: free, rate_limit: {unlimited: true}}
    """


@pytest.mark.parametrize(
    "keys", ["user", "user user", "list", "user list", "queue user", "id", "user nothing", "user free closed"]
)
@pytest.mark.parametrize("quota_mode", [False, True])
@pytest.mark.parametrize("explain", [False, True])
def test_a_copy_of_a_plan_has_all_that_the_plan_has_but_the_hits_themselves(
    keys: str, quota_mode: bool, explain: bool
) -> None:
    tested = Limiter(MemoryStore(1000, Clock()), quota_mode=quota_mode)
    tested.book = book(COPIED)
    asked = [Descriptor(((key, "x"),), number) for number, key in enumerate(keys.split(), 1)]
    plan = tested.plan(Request("copied", asked, explain=explain))

    copy = plan.again()

    assert values(copy) == values(plan)
    assert copy.verdict is not plan.verdict
    assert not {*map(id, copy.charged)} & {*map(id, plan.charged)}


def test_a_request_is_allowed_while_its_descriptor_is() -> None:
    tested = limiter()

    verdicts = [ask(tested, "user") for _ in range(3)]

    assert [verdict.allowed for verdict in verdicts] == [True, True, False]
    assert [summary(verdict) for verdict in verdicts] == [[(False, 1)], [(False, 0)], [(True, 0)]]


def test_one_refused_descriptor_refuses_the_request_and_the_others_are_charged_all_the_same() -> None:
    tested = limiter()

    verdict = [ask(tested, "user", "tenant") for _ in range(3)][-1]

    assert not verdict.allowed
    assert summary(verdict) == [(True, 0), (False, 7)]


def test_what_no_rule_limits_is_allowed_and_charges_nothing() -> None:
    tested = limiter()

    assert ask(tested, "open", "nothing").allowed
    assert ask(tested, "user", domain="elsewhere").allowed
    assert tested.store.counters == 0
    assert [(path, tally.total_hits) for path, tally in tested.unknown_domains.items()] == [(("elsewhere",), 1)]


def test_an_unlimited_rule_is_answered_without_a_counter_and_is_counted() -> None:
    tested = limiter()

    verdict = ask(tested, "free", cost=3)

    assert summary(verdict) == [(False, 4294967295)]
    assert tested.store.counters == 0
    hit = verdict.hits[0]
    assert hit is not None
    assert hit.tally.unlimited == 3


def test_a_shadow_rule_counts_and_never_refuses() -> None:
    tested = limiter()

    verdicts = [ask(tested, "watched") for _ in range(3)]

    assert all(verdict.allowed for verdict in verdicts)
    assert summary(verdicts[-1]) == [(False, 0)]
    hit = verdicts[-1].hits[0]
    assert hit is not None
    assert (hit.tally.over_limit, hit.tally.shadow_mode, hit.tally.within_limit) == (2, 2, 1)


def test_global_shadow_mode_lets_pass_and_still_tells_which_descriptor_was_over() -> None:
    tested = limiter(shadow_mode=True)

    verdict = [ask(tested, "user") for _ in range(3)][-1]

    assert verdict.allowed
    assert summary(verdict) == [(True, 0)]
    assert tested.totals.global_shadow_mode == 1


def test_quotas_refuse_only_when_all_of_them_are_used_up() -> None:
    tested = limiter()

    verdicts = [ask(tested, "quota", "big_quota") for _ in range(3)]

    assert [verdict.allowed for verdict in verdicts] == [True, True, False]
    assert summary(verdicts[1]) == [(True, 0), (False, 0)]


def test_used_up_quotas_refuse_although_a_limit_has_room() -> None:
    tested = limiter()

    verdict = [ask(tested, "tenant", "quota") for _ in range(2)][-1]

    assert not verdict.allowed
    assert summary(verdict) == [(False, 8), (True, 0)]


def test_a_limit_refuses_although_a_quota_has_room() -> None:
    tested = limiter()

    ask(tested, "user", cost=2)
    verdict = ask(tested, "user", "big_quota")

    assert not verdict.allowed


def test_a_shadow_quota_counts_as_passed() -> None:
    tested = limiter()

    verdicts = [ask(tested, "quota", "watched_quota") for _ in range(3)]

    assert [verdict.allowed for verdict in verdicts] == [True, True, True]


def test_in_global_quota_mode_every_rule_is_a_quota() -> None:
    tested = limiter(quota_mode=True)

    verdicts = [ask(tested, "user", "tenant") for _ in range(3)]
    alone = [ask(tested, "base") for _ in range(2)]

    assert [verdict.allowed for verdict in verdicts] == [True, True, True]
    assert [verdict.allowed for verdict in alone] == [True, False]


@pytest.mark.parametrize(
    ("beside", "allowed"),
    [(["nothing"], True), (["open"], True), (["base", "vip"], True), (["vip"], False), (["free"], False)],
    ids=["no rule", "no rate_limit", "a replaced rule", "a used up rule", "an unlimited rule"],
)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_in_global_quota_mode_a_descriptor_that_nothing_limits_is_a_quota_that_is_not_used_up(
    beside: list[str], allowed: bool, later: bool
) -> None:
    store = MemoryStore(1000, Clock())
    tested = Limiter(store, quota_mode=True)
    tested.book = book(RULES)
    ask(tested, "user", "vip", cost=9)
    plan = tested.plan(Request("shop", [Descriptor(((key, "x"),)) for key in ("user", *beside)]))

    answers: list[Verdict | RpcError | None] = []
    if later:
        tested.decide_later(plan, answers.append)
    else:
        answers.append(tested.decide_now(plan, kept, b""))

    (verdict,) = answers
    assert isinstance(verdict, Verdict)
    assert verdict.allowed is allowed


def test_a_replaced_rule_is_not_charged_but_counted_as_replaced() -> None:
    tested = limiter()

    verdicts = [ask(tested, "base", "vip") for _ in range(3)]

    assert [summary(verdict) for verdict in verdicts] == [[None, (False, 4)], [None, (False, 3)], [None, (False, 2)]]
    assert ask(tested, "base").allowed
    assert tested.book is not None
    base = tested.book.match("shop", (("base", "x"),))
    assert base is not None
    assert (base.tally.replaced, base.tally.total_hits) == (3, 1)


def test_a_replaced_rule_replaces_all_the_same_and_an_unlimited_one_may() -> None:
    verdict = ask(limiter(), "base", "vip", "vip_free")

    assert summary(verdict) == [None, None, (False, 4294967295)]


def test_rules_replace_only_within_one_request() -> None:
    tested = limiter()

    ask(tested, "vip")
    verdicts = [ask(tested, "base") for _ in range(2)]

    assert [verdict.allowed for verdict in verdicts] == [True, False]


def test_an_override_stands_in_for_the_rule_and_shares_its_counter_where_both_count_alike() -> None:
    tested = limiter()
    five = Limit(5, Unit.MINUTE, MINUTE)

    ask(tested, "user", cost=2)
    verdicts = [ask(tested, "user", "nothing", override=five), ask(tested, "user")]

    assert summary(verdicts[0]) == [(False, 2), (False, 4)]
    assert summary(verdicts[1]) == [(True, 0)]
    assert [path for path, _ in tested.overrides.items()] == [("shop", "user_x"), ("shop", "nothing_x")]


@pytest.mark.parametrize(
    "rule",
    [
        "{key: k, rate_limit: {unit: 60 minutes, requests_per_unit: 9}}",
        "{key: k, rate_limit: {unit: minute, requests_per_unit: 9, algorithm: sub_windows}}",
        "{key: k, rate_limit: {unit: minute, requests_per_unit: 9, anchor: first_request}}",
        "{key: k, value: '*', share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 9}}",
    ],
    ids=["another window", "another algorithm", "another anchor", "a counter of all values"],
)
def test_an_override_has_a_counter_of_its_own_where_the_rule_counts_otherwise(rule: str) -> None:
    tested = Limiter(MemoryStore(1000, Clock()))
    tested.book = book(f"domain: shop\ndescriptors:\n- {rule}\n")

    ask(tested, "k", cost=2)
    verdict = ask(tested, "k", override=Limit(5, Unit.MINUTE, MINUTE))

    assert summary(verdict) == [(False, 4)]


def test_limits_that_come_with_one_request_have_rules_counters_and_tallies_of_their_own() -> None:
    tested = limiter()
    limits = {"a": Limit(10, Unit.MINUTE, MINUTE), "b": Limit(20, Unit.MINUTE, MINUTE), "c": Limit(50, Unit.DAY, DAY)}
    request = Request("shop", [Descriptor((("user", value),), 9, None, limit) for value, limit in limits.items()])

    hits = [hit for hit in check(tested, request).hits if hit is not None]

    assert [hit.remaining for hit in hits] == [1, 11, 41]
    assert [hit.rule.limit for hit in hits] == [*limits.values()]
    assert [hit.key for hit in hits] == [
        "shop|user=a|fixed_window/60000000",
        "shop|user=b|fixed_window/60000000",
        "shop|user=c|fixed_window/86400000000",
    ]
    assert [(path, tally.near_limit) for path, tally in tested.overrides.items()] == [
        (("shop", "user_a"), 1),
        (("shop", "user_b"), 0),
        (("shop", "user_c"), 0),
    ]


@pytest.mark.parametrize("value", ["ada", "a|b=c%", "x" * 600, "=" * 400])
def test_each_limit_of_a_list_counts_under_the_name_that_it_has_alone(value: str) -> None:
    tested = limiter()
    limits = "[{unit: minute, requests_per_unit: 1}, {unit: day, requests_per_unit: 2, algorithm: sub_windows}]"
    tested.book = book(f"domain: shop\ndescriptors: [{{key: user, rate_limits: {limits}}}]")
    entries = (("user", value),)
    (first,) = tested.plan(Request("shop", [Descriptor(entries)])).hits

    assert first is not None
    assert [hit.key for hit in (first, *first.beside)] == [
        counter_key(hit.rule, entries) for hit in (first, *first.beside)
    ]


def test_an_override_for_an_unknown_domain_is_ignored() -> None:
    verdict = ask(limiter(), "user", domain="elsewhere", override=Limit(0, Unit.MINUTE, MINUTE))

    assert summary(verdict) == [None]


def test_a_look_and_a_refund_are_never_over_for_their_cost() -> None:
    tested = limiter()

    ask(tested, "user", cost=2)
    look = ask(tested, "user", cost=0)
    refund = ask(tested, "user", cost=-1)

    assert (look.allowed, summary(look)) == (True, [(False, 0)])
    assert (refund.allowed, summary(refund)) == (True, [(False, 1)])


def test_the_tightest_is_the_last_refused_else_the_first_with_the_least_left() -> None:
    tested = limiter()

    first = ask(tested, "tenant", "user", "vip")
    ask(tested, "user", "base", cost=9)
    refused = ask(tested, "user", "base", "tenant")

    assert first.tightest() is first.hits[1]
    assert refused.tightest() is refused.hits[1]
    assert ask(tested, "free", "open").tightest() is None


def test_a_used_up_quota_is_tightest_only_by_what_it_has_left() -> None:
    tested = limiter()
    ask(tested, "quota", "tenant", cost=10)

    verdict = ask(tested, "tenant", "quota")

    assert verdict.tightest() is verdict.hits[0]


def test_without_rules_a_request_is_answered_unavailable() -> None:
    tested = Limiter(MemoryStore(10, Clock()))

    with pytest.raises(RpcError) as caught:
        ask(tested, "user")

    assert (caught.value.status, caught.value.message) == (Status.UNAVAILABLE, "no rate limit configuration loaded")


class BrokenStore(MemoryStore):
    """A store that is away."""

    charge = None  # type: ignore[assignment]  # it takes its time

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> None:
        done(StoreError("the store is away"))


def test_a_store_that_fails_makes_the_request_unavailable_and_counts_no_hit() -> None:
    tested = Limiter(BrokenStore(10, Clock()))
    tested.book = book(RULES)

    with pytest.raises(RpcError) as caught:
        ask(tested, "user")

    assert (caught.value.status, caught.value.message) == (Status.UNAVAILABLE, "the store is away")
    assert tested.totals.store_errors == 1
    assert next(rule.tally.total_hits for rule in tested.book.rules) == 0


class LateStore(MemoryStore):
    """A store that answers when it is told to."""

    charge = None  # type: ignore[assignment]  # it takes its time

    def __init__(self) -> None:
        super().__init__(1000, Clock())
        self.waiting: list[tuple[Sequence[Hit], Done]] = []

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> None:
        self.waiting.append((hits, done))

    def answer(self) -> None:
        for hits, done in reversed(self.waiting):
            MemoryStore.charge(self, hits)
            done(None)


def test_requests_of_one_plan_may_wait_for_the_store_side_by_side() -> None:
    store = LateStore()
    tested = Limiter(store)
    tested.book = book(RULES)
    plan = tested.plan(Request("shop", [Descriptor((("user", "x"),))]))
    answers: list[Verdict | RpcError] = []

    for _ in range(3):
        tested.decide_later(plan, answers.append)
    store.answer()

    assert [answer.allowed for answer in answers if isinstance(answer, Verdict)] == [True, True, False]
    assert len({id(answer) for answer in answers}) == 3


def test_a_request_that_cannot_be_judged_ends_with_an_internal_error() -> None:
    store = LateStore()
    tested = Limiter(store)
    tested.book = book(RULES)
    answers: list[Verdict | RpcError] = []

    tested.decide_later(tested.plan(Request("shop", [Descriptor((("user", "x"),))])), answers.append)
    [(_, done)] = store.waiting
    done(None)  # with a hit that it has not decided

    [answer] = answers
    assert isinstance(answer, RpcError)
    assert (answer.status, answer.message) == (Status.INTERNAL, "the request could not be decided")
    assert tested.totals.service_errors == 1


def test_another_book_makes_another_edition() -> None:
    tested = limiter()
    before = tested.plan(Request("shop", [Descriptor((("user", "x"),))]))

    tested.book = book(RULES)

    assert before.edition is not tested.edition
    assert tested.plan(Request("shop", [Descriptor((("user", "x"),))])).edition is tested.edition
