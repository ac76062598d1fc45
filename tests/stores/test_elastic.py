"""Members of a pool in Redis: two instances, a Cluster, what is remembered of denials, and shares in an outage."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.kinds import Elastic
from ratelimit_service.algorithms.kinds.pool import Pool
from ratelimit_service.algorithms.kinds.pool import member as pool_member
from ratelimit_service.model import PLAIN, Decision, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.denied import ENTRY_BYTES, DeniedCache
from ratelimit_service.stores.redis.keys import cluster_key, slot_of
from ratelimit_service.stores.redis.policy import share_of
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.tally import Tally
from tests.books import book
from tests.ports import free_port
from tests.redis import Redis, start_redis
from tests.stores.redis_groups import Nodes, start_cluster
from tests.stores.redis_stores import charge, opened

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run
YEAR = Unit.YEAR.window


CHECKOUT = Pool("checkout", 100, 50, 0)


def member(right: int, ceiling: int, pool: Pool = CHECKOUT, *, strict: bool = False, **more: Any) -> Rule:
    limit = Limit(right, Unit.YEAR, YEAR, count_refused=False, exceed=ceiling - right)
    return Rule("shop", (), pool_member(limit, pool, strict=strict), open_algorithm("sub_windows"), **more)


def hit_of(rule: Rule, key: str, cost: int = 1) -> Hit:
    return Hit(rule, f"shop|tenant={key}{rule.key_suffix}", cost, tally=Tally(), quota=False)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster of three."""
    with start_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


def test_two_instances_lend_what_a_pool_has_and_not_one_more(redis: Redis) -> None:
    """Within a year the pool gets nothing back: its level is the sum of all that was admitted."""

    async def story() -> None:
        redis.cli("FLUSHALL")
        quiet, loud = member(5, 40), member(1, 30)
        async with opened(f"127.0.0.1:{redis.port}") as one, opened(f"127.0.0.1:{redis.port}") as other:
            hits = [
                hit_of(loud if number % 2 else quiet, ("a", "b", "c", "d")[number % 4], number % 3 + 1)
                for number in range(400)
            ]
            stores = [one, other]
            await asyncio.gather(*(charge(stores[number // 4 % 2], each) for number, each in enumerate(hits)))

        admitted: Counter[str] = Counter()
        for each in hits:
            admitted[each.key] += each.cost * each.decision.allowed
        ceilings = {hit_of(quiet, "a").key: 40, hit_of(loud, "b").key: 30} | {
            hit_of(quiet, "c").key: 40,
            hit_of(loud, "d").key: 30,
        }
        assert all(admitted[key] <= ceiling for key, ceiling in ceilings.items())
        assert 50 <= admitted.total() <= 50 + 5 + 5 + 1 + 1
        on_loan = sum(each.decision.over for each in hits if each.decision.allowed)
        assert on_loan <= 50
        assert all(admitted[hit_of(quiet, key).key] >= 3 for key in "ac")

    run(story())


def test_strict_members_on_two_instances_never_exceed_the_pool(redis: Redis) -> None:
    async def story() -> None:
        redis.cli("FLUSHALL")
        pool = Pool("checkout", 100, 50, 10)
        rules = {key: member(30, 100, pool, strict=True) for key in "ab"}
        async with opened(f"127.0.0.1:{redis.port}") as one, opened(f"127.0.0.1:{redis.port}") as other:
            hits = [hit_of(rules[key], key) for _ in range(60) for key in "ab"]
            await asyncio.gather(*(charge((one, other)[number % 2], each) for number, each in enumerate(hits)))

        assert sum(each.decision.allowed for each in hits) == 50
        assert sum(each.decision.over for each in hits if each.decision.allowed) <= 40

    run(story())


def test_the_same_rule_has_a_pool_in_each_domain_of_requests(redis: Redis) -> None:
    """A rule of domain `*`: one script call has hits of both domains."""
    rules = book(
        """
        domain: "*"
        pools: [{name: checkout, unit: year, requests_per_unit: 100, burst: 10}]
        descriptors:
          - key: tenant
            rate_limit: {unit: year, requests_per_unit: 1, elastic: {pool: checkout, ceiling: 10}}
        """
    )

    async def story() -> None:
        redis.cli("FLUSHALL")
        web, api = (rules.match(domain, (("tenant", "ada"),)) for domain in ("web", "api"))
        assert web is not None
        assert api is not None
        async with opened(f"127.0.0.1:{redis.port}") as store:
            answer = await charge(store, hit_of(web, "ada", 10), hit_of(api, "eve", 10))

        assert [each.decision.allowed for each in answer.hits] == [True, True]
        assert {"rl2|web|checkout|pool/31536000000000", "rl2|api|checkout|pool/31536000000000"} <= {
            *redis.cli("KEYS", "*").splitlines()
        }

    run(story())


def test_members_and_their_pool_share_a_slot_and_no_other_counter_does() -> None:
    name = cluster_key("p:")
    rules = [member(1, 2), member(5, 9), member(1, 2, counter_domain="{web}")]
    of = [name(hit_of(rule, key)) for rule, key in zip(rules, ("ada", "{eve}", "bob"), strict=True)]
    plain = Rule("shop", (), Limit(1, Unit.YEAR, YEAR), open_algorithm("sub_windows"))

    assert of[0] == "p:rl2|{shop|checkout}shop|tenant=ada|sub_windows/31536000000000/10"
    assert slot_of(of[0]) == slot_of(of[1]) == slot_of("{shop|checkout}")
    assert slot_of(of[2]) == slot_of("{%7Bweb%7D|checkout}")
    assert name(hit_of(plain, "ada")) == "p:rl2|shop|tenant=ada|sub_windows/31536000000000/10"
    assert rules[0].common_key == "shop|checkout|pool/31536000000000"


def test_a_cluster_has_a_pool_where_its_members_are(nodes: Nodes) -> None:
    async def story() -> None:
        async with opened(nodes.url, REDIS_TYPE="cluster") as store:
            names = [f"tenant{number}" for number in range(10)]
            answers = [(await charge(store, hit_of(member(2, 20), name, 10))).hits[0] for name in names]
            rights = [(await charge(store, hit_of(member(2, 20), name, 2))).hits[0] for name in names[5:]]

            assert [each.decision.allowed for each in answers] == [True] * 5 + [False] * 5
            assert all(each.decision.allowed for each in rights)

    run(story())
    found = [redis.cli("KEYS", "*checkout*").splitlines() for redis in nodes.redises]
    assert sorted(len([name for name in names if name]) for names in found) == [0, 0, 11]


def test_a_refund_to_one_member_makes_room_that_a_refused_one_sees_at_once(redis: Redis) -> None:
    async def story() -> None:
        redis.cli("FLUSHALL")
        rule = member(1, 100)
        async with opened(f"127.0.0.1:{redis.port}") as store:
            await charge(store, hit_of(rule, "a", 49))
            refused = [(await charge(store, hit_of(rule, "b", 2))).hits[0] for _ in range(3)]
            calls = redis.script_calls()
            await charge(store, hit_of(rule, "b", 2))
            assert redis.script_calls() == calls
            await charge(store, hit_of(rule, "a", -5))
            (again,) = (await charge(store, hit_of(rule, "b", 2))).hits

            assert not any(each.decision.allowed for each in refused)
            assert again.decision.allowed

    run(story())


def test_what_is_remembered_of_members_is_bounded_and_forgotten_with_a_refund_to_any_of_them() -> None:
    cache = DeniedCache(2 * ENTRY_BYTES)
    rule = member(1, 2)
    refused = [hit_of(rule, name) for name in "abcd"]
    refund = hit_of(rule, "x", -1)
    for each in (*refused, refund):
        each.decision = Decision(False, 0, 1, SECOND, SECOND)
        cache.learn([each] if each is not refund else [], 0.0)
    assert [*cache.known] == [each.key for each in refused[-1:]]

    cache.learn([refund], 0.0)

    assert not cache.known


def test_a_changed_pool_is_asked_again_at_once(redis: Redis) -> None:
    """The rules were loaded again with a larger pool: what is remembered of the smaller one does not count."""

    async def story() -> None:
        redis.cli("FLUSHALL")
        small, large = member(1, 100), member(1, 100, Pool("checkout", 100, 80, 0))
        async with opened(f"127.0.0.1:{redis.port}") as store:
            (first,) = (await charge(store, hit_of(small, "a", 50))).hits
            (refused,) = (await charge(store, hit_of(small, "a", 20))).hits
            (allowed,) = (await charge(store, hit_of(large, "a", 20))).hits

            assert (first.decision.allowed, refused.decision.allowed, allowed.decision.allowed) == (True, False, True)

    run(story())


@pytest.mark.parametrize("instances", [1, 2, 3, 7, 100])
def test_the_shares_of_a_pool_in_an_outage_come_to_the_pool(instances: int) -> None:
    rule = member(40, 100, Pool("checkout", 100, 50, 10), strict=True)
    assert rule.limit is not None

    share = share_of(rule.limit, instances)

    assert isinstance(share.kind, Elastic)
    pool = share.kind.pool
    assert pool.requests * instances >= 100 > (pool.requests - 1) * instances
    assert pool.burst * instances >= 50 > (pool.burst - 1) * instances
    assert pool.reserve < pool.burst
    assert share.kind.strict
    assert share.kind.counter.burst == pool.requests + pool.burst
    assert share.kind.right == replace(share, exceed=0, kind=PLAIN)


def test_members_per_second_and_their_pool_may_have_a_redis_of_their_own(redis: Redis, tmp_path: Path) -> None:
    limit = Limit(1, Unit.SECOND, SECOND, count_refused=False, exceed=1000)
    pool = Pool("checkout", 100, 1000, 0)
    second = Rule("shop", (), pool_member(limit, pool, strict=False), open_algorithm("sub_windows"))
    with start_redis(tmp_path) as fast:

        async def story() -> None:
            redis.cli("FLUSHALL")
            url = f"127.0.0.1:{fast.port}"
            async with opened(f"127.0.0.1:{redis.port}", REDIS_PERSECOND="true", REDIS_PERSECOND_URL=url) as store:
                answer = await charge(store, hit_of(second, "a", 900), hit_of(member(1, 9), "b", 5))

            assert answer.allowed
            assert "rl2|shop|checkout|pool/1000000" in fast.cli("KEYS", "*").splitlines()
            assert "rl2|shop|checkout|pool/31536000000000" in redis.cli("KEYS", "*").splitlines()

        run(story())


def test_without_redis_each_process_lends_its_share_of_the_pool() -> None:
    async def story() -> None:
        rule = member(2, 40, on_store_failure="local")
        async with opened(f"127.0.0.1:{free_port()}", wait=False, INSTANCES="2") as store:
            answers = [(await charge(store, hit_of(rule, key, cost))).hits[0] for key, cost in HALF]

        assert [each.decision.allowed for each in answers] == [True, True, False, True, False]

    run(story())


HALF = [("a", 20), ("b", 5), ("c", 2), ("c", 1), ("c", 1)]
"""Of half a pool of 50, loans of 20 and 5; then nothing but a right, of which half is 1."""


def test_limits_differ_by_their_pool() -> None:
    pools = [Pool("checkout", 100, 50, 0), Pool("checkout", 100, 50, 1), Pool("other", 100, 50, 0)]

    assert all(one.limit != other.limit for one, other in pairwise(member(1, 2, pool) for pool in pools))
    assert member(1, 2).limit == member(1, 2).limit
