"""Costs that have come about, in a real Redis: beside leases, known refusals, upstream's names; and without Redis."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.kinds.reserved import Reserved
from ratelimit_service.errors import RpcError, StoreError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Limit, Request, Unit, settling
from ratelimit_service.rules.regions import RegionOptions
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.kept import MOST, KeptSettles
from ratelimit_service.stores.redis.keys import first_counter, slot_of
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.stores.store import Store
from ratelimit_service.system.clock import SECOND
from tests.books import book
from tests.parts import parts_of
from tests.ports import free_port
from tests.redis import Redis, start_redis
from tests.stores.redis_stores import Proxy, charge, hit_of, opened, until
from tests.stores.test_redis_home import region
from tests.stores.test_redis_leases import leased, warm
from tests.stores.test_redis_policy import RULES, numbers

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


async def ask(limiter: Limiter, *keys: str, cost: int) -> Verdict:
    """A request with one descriptor of these keys."""
    answer: asyncio.Future[Verdict | RpcError] = asyncio.get_running_loop().create_future()
    entries = tuple((key, "x") for key in keys)
    limiter.decide_later(limiter.plan(Request("shop", [Descriptor(entries, cost)])), answer.set_result)
    verdict = await answer
    return verdict if isinstance(verdict, Verdict) else Verdict(False, ())


def settle(of: Rule, key: str, cost: int) -> Hit:
    """A cost that has come about."""
    hit = hit_of(of, key, cost)
    assert of.limit is not None
    hit.limit = settling(of.limit)
    return hit


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sub_windows", "token_bucket"])
def test_a_settle_finds_all_that_is_held_given_back_and_what_is_owed_is_refused(redis: Redis, algorithm: str) -> None:
    rule, key = leased(algorithm=algorithm), f"held {algorithm}"

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            spent = await warm(store, rule, key)
            (first,) = (await charge(store, settle(rule, key, 600_000))).hits
            assert first.decision.remaining == 400_000 - spent
            assert store.held(key + rule.key_suffix) == 0
            (second,) = (await charge(store, settle(rule, key, 600_000))).hits
            assert (second.decision.allowed, second.decision.over) == (False, 200_000 + spent)
            for cost in (0, 1):
                (hit,) = (await charge(store, hit_of(rule, key, cost))).hits
                assert (hit.decision.allowed, hit.decision.remaining) == (False, 0)

    run(story())


def test_a_settle_is_charged_on_a_counter_that_is_known_to_refuse_and_is_remembered_for_no_other(redis: Redis) -> None:
    limit = Limit(3, Unit.YEAR, Unit.YEAR.window, count_refused=False)
    rule = Rule("shop", (), limit, open_algorithm("sub_windows"))

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            for _ in range(4):
                await charge(store, hit_of(rule, "known"))
            before = redis.script_calls()
            assert not (await charge(store, hit_of(rule, "known"))).allowed
            assert redis.script_calls() == before
            assert not store.charge([settle(rule, "known", 1)])
            assert not (await charge(store, settle(rule, "known", 7))).allowed
            assert redis.script_calls() == before + 1
            assert (await charge(store, hit_of(rule, "known", -8))).allowed
            (look,) = (await charge(store, hit_of(rule, "known", 0))).hits
            assert look.decision.remaining == 1

    run(story())


@pytest.mark.parametrize("count_refused", [True, False])
def test_under_upstreams_names_it_is_counted_in_full(redis: Redis, count_refused: bool) -> None:
    text = f"{{unit: year, requests_per_unit: 1000, count_refused: {str(count_refused).lower()}}}"
    prefix = f"up{count_refused}:"

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", KEY_FORMAT="envoyproxy", CACHE_KEY_PREFIX=prefix) as store:
            limiter = Limiter(store)
            limiter.book = book(f"domain: shop\nsettle: done\ndescriptors: [{{key: user, rate_limit: {text}}}]")
            (rule,) = limiter.book.rules
            verdict = [await ask(limiter, "user", "done", cost=cost) for cost in (900, 800, 0)]

            left = [[hit and hit.remaining for hit in each.hits] for each in verdict]
            assert ([each.allowed for each in verdict], left) == ([True, False, False], [[100], [0], [0]])
            assert redis.cli("GET", redis.cli("KEYS", f"{prefix}shop*")) == "1700"
            assert (rule.tally.settled, rule.tally.overrun) == (1700, 700)

    run(story())


def test_without_redis_it_is_dropped_and_counted_so_unless_this_process_counts() -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{free_port()}", wait=False) as store:
            limiter = Limiter(store)
            limiter.book = book("settle: done\n" + RULES.replace("    domain", "domain", 1).replace("\n    ", "\n"))
            for key in ("open", "closed", "error", "local"):
                await ask(limiter, key, "done", cost=5)
            counted = {rule.path[1]: numbers(rule.tally) for rule in limiter.book.rules}
            look = await ask(limiter, "local", cost=0)

            assert [counted[key] for key in ("open", "closed", "error")] == [{"settles_dropped": 5}] * 3
            assert counted["local"] == {"settled": 5}
            assert not look.allowed

    run(story())


def test_rules_with_the_same_limit_and_other_algorithms_settle_in_one_call(redis: Redis) -> None:
    limit = "{unit: year, requests_per_unit: 100, count_refused: true, algorithm: "
    rules = "domain: shop\nsettle: done\ndescriptors:\n" + "\n".join(
        f"  - {{key: {name}, rate_limit: {limit}{name}}}}}"
        for name in ("fixed_window", "sliding_window", "token_bucket")
    )

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            limiter = Limiter(store)
            limiter.book = book(rules)
            left = []
            for mark in ((("done", "1"),), ()):
                answer: asyncio.Future[Verdict | RpcError] = asyncio.get_running_loop().create_future()
                asked = [Descriptor(((rule.path[1], "x"), *mark), 40) for rule in limiter.book.rules]
                limiter.decide_later(limiter.plan(Request("shop", asked)), answer.set_result)
                verdict = await answer
                assert isinstance(verdict, Verdict)
                left.append([hit and hit.decision.remaining for hit in verdict.hits])
            assert left == [[60, 60, 60], [20, 20, 20]]

    run(story())


RESERVED = """
    domain: shop
    settle: done
    descriptors:
      - key: id
        rate_limit:
          {unit: year, requests_per_unit: 1000, algorithm: ALGORITHM, reserve: {id: id, hold: 1m, estimate: 400}}
    """


async def answered(
    limiter: Limiter, name: str, cost: int | None, *, settles: bool = False, granted: int | None = None
) -> tuple[bool, int] | None:
    """Whether a request with this id is allowed, or its settle, and what is left; None if it ends with an error."""
    answer: asyncio.Future[Verdict | RpcError] = asyncio.get_running_loop().create_future()
    entries = (("id", name), ("done", "1")) if settles else (("id", name),)
    asked = [Descriptor(entries, 1 if cost is None else cost, hits_addend=cost)]
    limiter.decide_later(limiter.plan(Request("shop", asked)), answer.set_result, granted)
    verdict = await answer
    if isinstance(verdict, RpcError):
        return None
    (hit,) = verdict.hits
    assert hit is not None
    return verdict.allowed, hit.remaining


@pytest.mark.parametrize("algorithm", ["fixed_window", "sub_windows", "token_bucket"])
def test_a_reservation_is_settled_by_any_instance_and_a_refusal_is_not_remembered(redis: Redis, algorithm: str) -> None:
    rules, prefix = book(RESERVED.replace("ALGORITHM", algorithm)), f"{algorithm}:"

    async def story() -> None:
        async with (
            opened(f"127.0.0.1:{redis.port}", CACHE_KEY_PREFIX=prefix) as one,
            opened(f"127.0.0.1:{redis.port}", CACHE_KEY_PREFIX=prefix) as two,
        ):
            first, second = Limiter(one), Limiter(two)
            first.book = second.book = rules

            assert await answered(first, "a", None) == (True, 600)
            assert await answered(first, "b", 500) == (True, 100)
            assert await answered(first, "c", None) == (False, 100)
            assert await answered(second, "a", 100, settles=True) == (True, 400)
            assert await answered(first, "c", None) == (True, 0)
            assert await answered(second, "b", 700, settles=True) == (False, 0)
            keys = redis.cli("KEYS", f"{prefix}*shop*").split()
            assert sorted("|reserved/" in key for key in keys) == [False, True, True, True]

    run(story())


@pytest.mark.parametrize("policy", ["error", "open", "closed", "local"])
@pytest.mark.parametrize("arrives", [False, True])
def test_the_settle_of_a_reservation_that_redis_did_not_answer_is_kept_and_charged_once(
    redis: Redis, policy: str, *, arrives: bool
) -> None:
    text = RESERVED.replace("ALGORITHM", "token_bucket").replace("year,", f"year, on_store_failure: {policy},")

    async def story() -> None:
        async with Proxy(redis.port) as proxy:
            url = f"127.0.0.1:{proxy.port}"
            async with opened(url, CACHE_KEY_PREFIX=f"kept {policy} {arrives}:") as store:
                limiter = Limiter(store)
                limiter.book = book(text)
                (rule,) = limiter.book.rules
                kept = store._pending.kept
                assert await answered(limiter, "a", None) == (True, 600)
                if arrives:  # Redis executes it, when its caller has gone
                    proxy.mute()
                else:
                    await proxy.stop()
                    await until(lambda: not store.healthy, "Redis is missed")
                before = numbers(rule.tally)
                found = await answered(limiter, "a", 100, settles=True, granted=20_000)
                assert (found is None) == (policy == "error")
                assert (len(kept), numbers(rule.tally)) == (1, before)
                if arrives:
                    proxy.mute(mute=False)
                else:
                    await proxy.__aenter__()
                await until(lambda: kept.sent_again == 1, "it was sent again")

                assert await answered(limiter, "b", 0) == (True, 900)
                assert (len(kept), numbers(rule.tally)) == (0, {**before, "settled": 100})

    run(story())


def kept_hit(key: str = "a", hold: int = 60) -> Hit:
    """The settle of a reservation that is held for so many seconds."""
    limit = Limit(1000, Unit.YEAR, Unit.YEAR.window, count_refused=False, kind=Reserved(hold * SECOND))
    return settle(Rule("shop", (), limit, open_algorithm("fixed_window")), key, 5)


def test_settles_are_kept_within_a_bound_of_number_and_bytes() -> None:
    many, long = KeptSettles(), KeptSettles()
    for _ in range(MOST + 5):
        many.keep([kept_hit()], 0, sent=False)
    for _ in range(100):
        long.keep([kept_hit("x" * 60_000)], 0, sent=False)

    assert (len(many), many.dropped) == (10_000, {"full": 5, "old": 0})
    assert (len(long), long.dropped["full"]) == (69, 31)


@pytest.mark.parametrize(
    ("may_have_arrived", "at", "again"),
    [(False, 59.9, True), (False, 60, False), (True, 7.9, True), (True, 8, False)],
)
def test_a_kept_settle_is_sent_no_later_than_its_id_is_known(at: float, *, may_have_arrived: bool, again: bool) -> None:
    kept, found = KeptSettles(), list[Hit]()
    hit = kept_hit()

    kept.keep([hit], 0, sent=may_have_arrived)
    kept.sweep(at, lambda _: True, lambda hits, _: found.extend(hits))

    assert ([(each.key, each.cost, each.limit) for each in found] == [(hit.key, 5, hit.limit)]) is again
    assert (kept.dropped["old"], numbers(hit.tally)) == ((0, {}) if again else (1, {"settles_dropped": 5}))


def test_a_kept_settle_waits_while_the_server_of_its_counter_cannot_decide() -> None:
    kept, found = KeptSettles(), list[str]()
    kept.keep([kept_hit("far"), kept_hit("near")], 0, sent=False)
    kept.sweep(1, lambda counter: "near" in counter.key, lambda hits, _: found.extend(hit.key for hit in hits))

    assert (len(kept), ["near" in key for key in found]) == (1, [True])


def test_in_a_cluster_the_memo_of_each_id_is_in_the_slot_of_its_counter() -> None:
    (rule,) = book(RESERVED.replace("ALGORITHM", "token_bucket")).rules
    assert rule.limit is not None
    script = BatchScript(clustered=True)
    for number in range(50):
        hit = hit_of(rule, f"a{number}")
        hit.limit = rule.limit.kind.held_by(rule.limit, f"id {number}")
        counter, memo = script.encode(parts_of([hit])).keys

        assert slot_of(memo) == slot_of(counter)
        assert first_counter(memo.encode()) == counter.encode()


LISTED = """
    domain: shop
    settle: done
    charge: together
    defaults: {reserve: {id: id, hold: 1m, estimate: 400}}
    descriptors:
      - key: team
        rate_limit: {unit: year, requests_per_unit: 3}
      - key: id
        rate_limits:
          - {unit: year, requests_per_unit: 1000}
          - {unit: year, requests_per_unit: 2000, algorithm: token_bucket}
    """


@pytest.mark.parametrize("in_memory", [True, False])
def test_each_limit_of_a_list_reserves_and_is_settled_and_none_where_one_of_the_request_refuses(
    redis: Redis, *, in_memory: bool
) -> None:
    async def story(store: Store) -> None:
        limiter = Limiter(store)
        limiter.book = book(LISTED)

        async def left(name: str, cost: int | None, *mark: tuple[str, str]) -> list[int]:
            decided: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
            asked = [Descriptor((("id", name), *mark), 1 if cost is None else cost, hits_addend=cost)]
            asked += [] if mark or cost == 0 else [Descriptor((("team", "x"),), 1)]
            plan = limiter.plan(Request("shop", asked))
            store.hit(plan.charged, decided.set_result)
            assert await decided is None
            return [hit.decision.remaining for hit in plan.charged if hit.rule.path[1] == "id"]

        done = ("done", "1")
        assert await left("a", None) == [600, 1600]
        assert await left("b", 9000) == [100, 600]  # half of each limit
        assert await left("c", None) == [100, 600]  # the first has no room
        assert await left("a", 100, done) == [400, 900]
        assert await left("c", None) == [0, 500]
        assert await left("b", 700, done) == [0, 800]  # the first owes 200 of it
        assert await left("b", 700, done) == [0, 800]
        assert await left("c", 0, done) == [200, 1200]
        assert await left("d", 1) == [200, 1200]  # the team has had three
        assert await left("d", 50, done) == [150, 1150]
        assert await left("look", 0) == [150, 1150]

    async def with_redis() -> None:
        async with opened(f"127.0.0.1:{redis.port}", CACHE_KEY_PREFIX="listed:") as store:
            await story(store)

    run(story(MemoryStore(100)) if in_memory else with_redis())


def test_all_regions_reserve_of_what_is_counted_at_home_and_any_of_them_settles(redis: Redis, tmp_path: Path) -> None:
    rules = book(RESERVED.replace("ALGORITHM", "token_bucket, regions: central"), regions=RegionOptions(2))

    async def story(home: str) -> None:
        own = f"127.0.0.1:{redis.port}"
        async with region(own, home) as eu, region(own, home, "us") as us:
            first, second = Limiter(eu), Limiter(us)
            first.book = second.book = rules

            assert await answered(first, "a", None) == (True, 600)
            assert await answered(second, "b", None) == (True, 200)
            assert await answered(second, "a", 100, settles=True) == (True, 500)
            assert await answered(first, "b", 900, settles=True) == (True, 0)

    with start_redis(tmp_path) as home:
        run(story(f"127.0.0.1:{home.port}"))
