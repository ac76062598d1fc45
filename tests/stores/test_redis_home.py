"""Limits that all regions share in the home Redis: two stores as two regions, each with a Redis of its own."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.kinds.leased import member
from ratelimit_service.model import NEVER, Limit, RegionMode, Regions, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.home import Home
from ratelimit_service.stores.redis.lane import Lane
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.system.clock import DAY, SECOND
from tests.clocks import stay_within
from tests.redis import Redis, start_redis
from tests.stores.redis_groups import start_cluster, start_sentinels
from tests.stores.redis_stores import NOISE, Proxy, charge, hit_of, opened, rule, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


def central(requests: int = 1000, **options: Any) -> Rule:
    """A rule whose counters are at home."""
    of = rule(requests, **options)
    assert of.limit is not None
    return replace(of, limit=replace(of.limit, regions=Regions(RegionMode.CENTRAL, 2, requests)))


class Three(NamedTuple):
    """The servers of two regions, and their home."""

    eu: Redis
    us: Redis
    home: Redis


@contextmanager
def three(folder: Path) -> Iterator[Three]:
    with ExitStack() as stack:
        yield Three(*(stack.enter_context(start_redis(folder / name)) for name in Three._fields))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Three]:
    """Three of the test's own, which may be stopped and killed."""
    with three(tmp_path) as servers:
        yield servers


@asynccontextmanager
async def region(own: Redis | str, home: object, name: str = "eu", **settings: str) -> AsyncIterator[RedisStore]:
    """The store of an instance in that region, once it has all its servers."""
    of_regions = {"REGION": name, "REGIONS": "eu,us", "HOME_REDIS_URL": str(home), "STORE_DEADLINE": "20s"}
    url = own if isinstance(own, str) else f"127.0.0.1:{own.port}"
    async with opened(url, wait=True, **{**of_regions, **settings}) as store:
        await until(lambda: all(lane.healthy for lane in store.lanes) and not store.lost, "it has its servers")
        yield store


async def with_rules(store: RedisStore, *rules: Rule) -> None:
    """Have it use these rules, and wait until home knows of it."""
    store.use(rules)
    await until(lambda: home_of(store).registrar.floors.own is not None, "home knows of it")


async def tell(store: RedisStore) -> None:
    """Have it tell home its rules, and read what others tell, before it is time to."""
    registrar = home_of(store).registrar
    registrar._due = 0.0
    await until(lambda: registrar._due > 0 and registrar._telling is None, "it has told")


def keys(redis: Redis, start: str = "rl2|shop") -> list[str]:
    """The counters that it has."""
    return [name for name in redis.cli("KEYS", "*").split("\n") if name.startswith(start)]


def test_all_regions_count_at_home_and_the_other_rules_of_a_request_in_their_own_region(servers: Three) -> None:
    shared, own = central(3), rule(3)

    async def story() -> None:
        async with (
            region(servers.eu, f"127.0.0.1:{servers.home.port}") as eu,
            region(servers.us, f"127.0.0.1:{servers.home.port}", "us") as us,
        ):
            answers = [await charge(store, hit_of(shared), hit_of(own, "eve")) for store in (eu, us, eu, us)]

            assert [[hit.decision.remaining for hit in answer.hits] for answer in answers] == [
                [2, 2],
                [1, 2],
                [0, 1],
                [0, 1],
            ]
            assert [answer.allowed for answer in answers] == [True, True, True, False]

    run(story())
    assert keys(servers.home) == [f"rl2|shop|user=ada{shared.key_suffix}"]
    assert keys(servers.eu) == keys(servers.us) == [f"rl2|shop|user=eve{own.key_suffix}"]


def test_a_counter_at_home_has_one_name_whatever_the_redis_of_a_region_is(servers: Three) -> None:
    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}") as store:
            await charge(store, hit_of(central(), "{ada}"), hit_of(leased(), "{ada}"))

    run(story())
    # As where there is a cluster; there a tag that a client sends must not choose the node.
    assert sorted(keys(servers.home, "rl2|{}shop")) == [
        f"rl2|{{}}shop|user={{ada}}{central().key_suffix}",
        f"rl2|{{}}shop|user={{ada}}{leased().key_suffix}|home",
    ]


def test_the_home_may_be_a_cluster(tmp_path: Path) -> None:
    async def story(servers: Three, url: str) -> None:
        home = {"HOME_REDIS_TYPE": "cluster"}
        async with region(servers.eu, url, **home) as eu, region(servers.us, url, "us", **home) as us:
            for number in range(10):
                answers = [await charge(store, hit_of(central(2), f"user{number}")) for store in (eu, us, eu)]
                assert [answer.allowed for answer in answers] == [True, True, False]

    with three(tmp_path / "servers") as servers, start_cluster(tmp_path) as nodes:
        run(story(servers, nodes.url))
        assert sum(len(keys(node)) for node in nodes.redises) == 10


def test_the_home_may_be_a_primary_that_sentinels_name(tmp_path: Path) -> None:
    async def story(servers: Three, url: str) -> None:
        home = {"HOME_REDIS_TYPE": "sentinel"}
        async with region(servers.eu, url, **home) as eu, region(servers.us, url, "us", **home) as us:
            answers = [await charge(store, hit_of(central(2))) for store in (eu, us, eu)]
            assert [answer.allowed for answer in answers] == [True, True, False]

    with three(tmp_path / "servers") as servers, start_sentinels(tmp_path, replicas=1) as watched:
        run(story(servers, watched.url))
        assert keys(watched.primary)


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGSTOP])
def test_without_its_home_a_central_rule_is_decided_by_its_policy_and_all_others_as_ever(
    servers: Three, tmp_path: Path, signalled: signal.Signals
) -> None:
    allows, denies, own = central(on_store_failure="open"), central(on_store_failure="closed"), rule(2)
    port = servers.home.port

    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{port}", STORE_DEADLINE="200ms") as store:
            servers.home.send(signalled)
            if signalled == signal.SIGKILL:
                await until(lambda: bool(store.lost), "it is missed")
            by_policy = [await charge(store, hit_of(of, "lost"), hit_of(own)) for of in (allows, denies)]

            assert [[hit.decision.allowed for hit in answer.hits] for answer in by_policy] == [
                [True, True],
                [False, True],
            ]
            assert [[hit.by_policy is None for hit in answer.hits] for answer in by_policy] == [[False, True]] * 2
            await until(lambda: bool(store.lost), "it is missed")
            assert [lost.server for lost in store.lost] == [f"127.0.0.1:{port} (home)"]
            assert store.healthy, "this region decides what it can"

            if signalled == signal.SIGKILL:
                with start_redis(tmp_path / "again", port=port):
                    await until(lambda: not store.lost, "it is found again")
            else:
                servers.home.send(signal.SIGCONT)
                await until(lambda: not store.lost, "it is found again")

    run(story())


def test_a_home_that_answers_late_is_not_taken_for_lost_while_nothing_is_asked(servers: Three) -> None:
    async def story() -> None:
        async with Proxy(servers.home.port) as far, region(servers.eu, f"127.0.0.1:{far.port}") as store:
            far.delay = 0.1  # 200 ms for a round trip
            home = store.lanes[-1]
            before = home._heartbeat_sent
            await until(lambda: home._heartbeat_sent > before and not home._pipelines, "a heartbeat was answered")

            assert not store.lost
            assert home._breaker.serves

    run(story())


def test_requests_to_a_far_home_do_not_wait_for_each_other(servers: Three) -> None:
    async def story() -> None:
        async with Proxy(servers.home.port) as far, region(servers.eu, f"127.0.0.1:{far.port}") as store:
            lane = store.lanes[-1]
            far.mute()
            answers = []
            for number in range(10):
                answers.append(asyncio.ensure_future(charge(store, hit_of(central(), f"far{number}"))))
                await until(partial(_sent, lane, number + 1), "it is sent while the others wait")
            far.mute(mute=False)
            assert all(answer.allowed for answer in await asyncio.gather(*answers))

    run(story())


def test_a_central_denial_is_remembered_and_a_reset_forgets_it_in_all_regions(servers: Three) -> None:
    one = central(1, algorithm="token_bucket")
    assert one.limit is not None
    one = replace(one, limit=replace(one.limit, count_refused=False))

    async def story() -> None:
        home = f"127.0.0.1:{servers.home.port}"
        async with region(servers.eu, home) as eu, region(servers.us, home, "us") as us:
            assert (await charge(eu, hit_of(one))).allowed
            assert not (await charge(us, hit_of(one))).allowed
            servers.home.cli("CONFIG", "RESETSTAT")
            assert not (await charge(us, hit_of(one))).allowed
            assert servers.home.script_calls() == 0

            assert await eu.reset([hit_of(one)]) == 1

            denied = us._denied
            assert denied is not None
            await until(lambda: not denied.known, "the other region has forgotten it")
            assert (await charge(us, hit_of(one))).allowed

    run(story())


def test_all_instances_of_all_regions_together_count_locally_at_most_the_limit(servers: Three) -> None:
    of = central(8, on_store_failure="local")

    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}", INSTANCES="2") as store:
            servers.home.kill()
            await until(lambda: bool(store.lost), "it is missed")
            answers = [await charge(store, hit_of(of)) for _ in range(4)]
            assert [answer.allowed for answer in answers] == [True, True, False, False]

    run(story())


def leased(requests: int = 1000, floor: int = 0, window: int = DAY, **options: Any) -> Rule:
    """A rule of which two regions borrow, each with a floor of so many percent."""
    limit = Limit(requests, Unit.DAY, window, count_refused=False)
    of = Rule("shop", (), limit, open_algorithm(options.pop("algorithm", "fixed_window")), **options)
    assert of.limit is not None
    return replace(of, limit=member(of.limit, 2, floor))


def home_of(store: RedisStore) -> Home:
    assert store._home is not None
    return store._home


def _sent(lane: Lane, pipelines: int) -> bool:
    return lane.in_flight >= pipelines


async def until_allowed(store: RedisStore, of: Rule, key: str) -> None:
    async with asyncio.timeout(60):
        while not await allowed(store, of, key):  # noqa: ASYNC110 - asked again and again
            await asyncio.sleep(0.01)


async def allowed(store: RedisStore, of: Rule, key: str = "ada", count: int = 1) -> int:
    """How many of so many hits that come at once."""
    answers = await asyncio.gather(*(charge(store, hit_of(of, key)) for _ in range(count)))
    return sum(answer.allowed for answer in answers)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sub_windows", "token_bucket"])
def test_regions_borrow_from_home_and_together_allow_no_more_than_the_limit(servers: Three, algorithm: str) -> None:
    of = leased(100, algorithm=algorithm)

    async def story() -> None:
        stay_within(DAY // SECOND)
        home = f"127.0.0.1:{servers.home.port}"
        async with region(servers.eu, home) as eu, region(servers.us, home, "us") as us:
            assert await allowed(eu, of) == 1
            assert await allowed(us, of) == 1
            counts = await asyncio.gather(*(allowed(store, of, count=20) for store in (eu, us) for _ in range(10)))

            # An idle bucket lends less than it holds: a loan is charged as if at its end.
            least = 85 if algorithm == "token_bucket" else 100
            assert least <= sum(counts) + 2 <= 100
            assert eu.errors == us.errors == {}

    run(story())


def test_a_hit_that_costs_nearly_all_of_a_bucket_is_allowed_and_one_of_all_denied_for_ever(servers: Three) -> None:
    of = leased(1000, algorithm="token_bucket", window=60 * SECOND)

    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}") as store:
            answers = [await charge(store, hit_of(of, key, cost)) for key, cost in (("eve", 990), ("ada", 998))]
            assert [answer.hits[0].decision.allowed for answer in answers] == [True, False]
            assert answers[1].hits[0].decision.retry_after == NEVER

    run(story())


def test_hits_that_come_at_once_wait_for_one_ask_in_all_processes_of_a_region(servers: Three) -> None:
    of = leased(1000)

    async def story() -> None:
        async with Proxy(servers.home.port) as far:
            home = f"127.0.0.1:{far.port}"
            async with region(servers.eu, home) as first, region(servers.eu, home) as second:
                await with_rules(first, of)
                await with_rules(second, of)
                far.delay = 0.1
                assert await asyncio.gather(*(allowed(store, of, count=50) for store in (first, second))) == [50, 50]
                # The first ask knows of the hits in its call, the next one of all.
                assert home_of(first).asks + home_of(second).asks < 20

    run(story())


def test_a_request_with_hits_of_its_own_region_and_of_several_that_wait_is_answered_once(servers: Three) -> None:
    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}") as store:
            hits = [hit_of(leased(5), "a"), hit_of(rule(5), "b"), hit_of(leased(7), "c"), hit_of(central(9), "d")]
            assert [hit.decision.allowed for hit in (await charge(store, *hits)).hits] == [True] * 4
            again = [hit_of(rule(5), "b", 0), hit_of(central(9), "d", 0)]
            assert [hit.decision.remaining for hit in (await charge(store, *again)).hits] == [4, 8]

    run(story())


def test_a_bundle_with_a_hit_that_waits_is_charged_as_a_whole_when_it_is_decided(servers: Three) -> None:
    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}") as store:
            bundle = [hit_of(rule(5), "b", together=1), hit_of(leased(1), "a", together=1)]
            assert (await charge(store, *bundle)).allowed
            assert not (await charge(store, *(hit.again() for hit in bundle))).allowed
            (look,) = (await charge(store, hit_of(rule(5), "b", 0))).hits
            assert look.decision.remaining == 4

    run(story())


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGSTOP])
def test_cut_off_a_region_has_its_floor_or_its_policies_and_heals_by_itself(
    servers: Three, tmp_path: Path, signalled: signal.Signals
) -> None:
    with_floor, opens, closes = leased(100, 10), leased(on_store_failure="open"), leased(on_store_failure="closed")
    port = servers.home.port

    async def story() -> None:
        stay_within(DAY // SECOND)
        async with region(servers.eu, f"127.0.0.1:{port}", STORE_DEADLINE="3s") as store:
            await with_rules(store, with_floor)
            servers.home.send(signalled)
            if signalled == signal.SIGKILL:
                await until(lambda: bool(store.lost), "it is missed")

            assert await allowed(store, with_floor, count=20) == 10
            assert await allowed(store, opens, "eve", 3) == 3
            assert await allowed(store, closes, "bob", 3) == 0
            assert await allowed(store, rule(3), count=5) == 3
            assert store.healthy
            # From now on nothing waits for home.
            assert (await charge(store, hit_of(closes, "bob"))).seconds < NOISE
            await until(lambda: bool(store.lost), "it is missed")
            asks = home_of(store).asks
            assert await allowed(store, closes, "dan", 3) == 0
            assert home_of(store).asks == asks, "nothing is sent to a home that is lost"

            if signalled == signal.SIGSTOP:
                servers.home.send(signal.SIGCONT)
                await lend_again(store)
            else:
                with start_redis(tmp_path / "again", port=port):
                    await lend_again(store)

    async def lend_again(store: RedisStore) -> None:
        found = 0
        async with asyncio.timeout(60):
            while found < 80:  # all but the other region's floor, and what was spent
                found += await allowed(store, with_floor, count=10)
        await until(lambda: not store.lost, "it is found again")
        await until_allowed(store, closes, "bob")

    run(story())


def test_a_home_that_may_not_be_written_is_lost_until_it_may(servers: Three) -> None:
    of = leased(on_store_failure="closed")

    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}") as store:
            servers.home.cli("REPLICAOF", "127.0.0.1", str(servers.us.port))
            assert (await charge(store, hit_of(of))).hits[0].by_policy == (
                "closed",
                "home Redis: it is a replica, not the primary",
            )
            assert [lost.cause for lost in store.lost] == ["readonly"]
            servers.home.cli("REPLICAOF", "NO", "ONE")
            await until(lambda: not store.lost, "it may be written again")
            await until_allowed(store, of, "ada")

    run(story())


def test_who_cannot_wait_for_a_far_home_is_denied_or_answered_by_policy(servers: Three) -> None:
    with_floor, opens = leased(100, 10, on_store_failure="open"), leased(on_store_failure="open")

    async def story() -> None:
        async with (
            Proxy(servers.home.port) as far,
            region(servers.eu, f"127.0.0.1:{far.port}") as store,
        ):
            await with_rules(store, with_floor, opens)
            far.delay = 0.3
            assert await allowed(store, with_floor, count=10) == 10
            denied, answered = await asyncio.gather(
                charge(store, hit_of(with_floor), grants=100_000), charge(store, hit_of(opens), grants=100_000)
            )

            assert [hit.decision.allowed for hit in (*denied.hits, *answered.hits)] == [False, True]
            assert denied.hits[0].by_policy == ("closed", "home Redis: no answer in time")
            assert answered.hits[0].by_policy == ("open", "home Redis: no answer in time")

    run(story())


def test_a_floor_that_one_region_raises_before_the_other_does_not_exceed_the_limit(servers: Three) -> None:
    before, after = leased(100, 10), leased(100, 40)

    async def story() -> None:
        stay_within(DAY // SECOND)
        home = f"127.0.0.1:{servers.home.port}"
        async with region(servers.eu, home) as eu, region(servers.us, home, "us") as us:
            await with_rules(eu, before)
            await with_rules(us, before)
            assert await allowed(us, before, count=80) == 80
            await with_rules(eu, after)
            assert await allowed(eu, after, count=100) == 10
            await with_rules(us, after)
            assert await allowed(us, after, count=100) == 10

    run(story())


def test_cut_off_since_its_start_a_process_has_the_floor_that_others_of_its_region_had(servers: Three) -> None:
    with_floor = leased(100, 10)

    async def story() -> None:
        stay_within(DAY // SECOND)
        async with Proxy(servers.home.port) as far:
            async with region(servers.eu, f"127.0.0.1:{far.port}") as store:
                await with_rules(store, with_floor)
                await until(lambda: bool(keys(servers.eu, "rl2|{region}floors")), "the region has its copy")
            async with region(servers.eu, f"127.0.0.1:{far.port}") as store:
                far.hang_up()
                store.use([with_floor])
                await until(lambda: bool(store.lost), "home is missed")
                await until(lambda: bool(home_of(store).registrar.floors._copied), "the copy is read")
                assert await allowed(store, with_floor, count=100) == 10

    run(story())


def test_two_regions_by_one_name_are_told_in_the_log_the_metrics_and_the_status(
    servers: Three, caplog: pytest.LogCaptureFixture
) -> None:
    of, now = leased(100, 10), [1_790_000_000 * SECOND]

    async def story() -> None:
        home = f"127.0.0.1:{servers.home.port}"
        async with region(servers.eu, home) as eu, region(servers.us, home, "eu", REGIONS="us,eu") as other:
            for store in (eu, other):
                home_of(store).registrar._clock = lambda: now[0]
                await with_rules(store, of)
            for _ in range(4):
                now[0] += 5 * SECOND
                await tell(eu)
                await tell(other)

            for store in (eu, other):
                assert [text[:26] for text in store.warnings] == [
                    "two regions are called eu:",
                    "REGIONS is not the same he",
                ]
                (agree,) = home_of(store).registrar.metrics()
                assert agree.samples == [((("setting", "REGION"),), 0), ((("setting", "REGIONS"),), 0)]

    run(story())
    assert len([text for text in caplog.messages if "two regions are called eu" in text]) == 2


def test_what_is_left_of_a_loan_is_given_back_at_its_end(servers: Three) -> None:
    of = leased(1000, window=10 * SECOND, algorithm="token_bucket")

    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}") as store:
            home = home_of(store)
            await until_lent(store, of)
            await until(lambda: home.returned > 0, "it was given back")
            assert home.lost == 0

    async def until_lent(store: RedisStore, of: Rule) -> None:
        spent = 0
        while home_of(store).granted - spent < 10:
            spent += await allowed(store, of, count=10)

    run(story())


def test_what_is_asked_for_when_a_process_stops_is_deposited_for_the_others(servers: Three) -> None:
    async def story() -> None:
        async with Proxy(servers.home.port) as far:
            async with region(servers.eu, f"127.0.0.1:{far.port}") as store:
                await with_rules(store, leased())
                home, far.delay = home_of(store), 0.1
                asked = asyncio.ensure_future(charge(store, hit_of(leased())))
                await until(lambda: bool(home._asking), "home is asked")
            assert (await asked).allowed
            assert home.granted >= 1
            assert home.lost == 0

    run(story())


def test_a_reset_reaches_the_counter_at_home(servers: Three) -> None:
    of = leased(10)

    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}") as store:
            assert await allowed(store, of, count=20) == 10
            assert await store.reset([hit_of(of)]) == 1
            assert await allowed(store, of, count=20) == 10

    run(story())


def test_counters_about_which_home_is_asked_at_once_have_a_bound(servers: Three) -> None:
    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}") as store:
            home_of(store)._max_asked = 20
            servers.home.send(signal.SIGSTOP)
            of = leased(on_store_failure="open")
            hits = [hit_of(of, f"user{number}") for number in range(30)]  # one script call, and one reply
            await asyncio.gather(*(charge(store, hit) for hit in hits))

            assert store.errors["overload"] == 10
            assert home_of(store).failed["overload"] == 10
            assert sum(hit.by_policy is not None for hit in hits) == 30

    run(story())


def test_requests_that_wait_have_a_bound(servers: Three) -> None:
    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}") as store:
            home_of(store)._max_waiting = 20
            servers.home.send(signal.SIGSTOP)
            of = leased(on_store_failure="closed")
            await asyncio.gather(*(charge(store, hit_of(of)) for _ in range(30)))

            assert store.errors["overload"] == 10

    run(story())


def test_loans_whose_end_is_remembered_have_a_bound_and_others_are_burnt(servers: Three) -> None:
    async def story() -> None:
        async with region(servers.eu, f"127.0.0.1:{servers.home.port}") as store:
            home_of(store)._max_ends = 3
            for number in range(5):
                assert await allowed(store, leased(), f"user{number}") == 1
            assert len(home_of(store)._ends) == 3

    run(story())


def test_a_cluster_may_be_the_home_and_the_redis_of_a_region(tmp_path: Path) -> None:
    of = leased(20)

    async def story(servers: Three, url: str) -> None:
        kind = {"HOME_REDIS_TYPE": "cluster", "REDIS_TYPE": "cluster"}
        async with region(url, url, **kind) as eu, region(servers.us, url, "us", HOME_REDIS_TYPE="cluster") as us:
            for number in range(5):
                counts = await asyncio.gather(*(allowed(store, of, f"user{number}", 30) for store in (eu, us)))
                assert sum(counts) <= 20
                assert sum(counts) + await allowed(eu, of, f"user{number}", 30) == 20

    with three(tmp_path / "servers") as servers, start_cluster(tmp_path) as nodes:
        run(story(servers, nodes.url))


def test_units_that_are_lent_while_their_region_is_lost_are_burnt(servers: Three) -> None:
    async def story() -> None:
        async with (
            Proxy(servers.home.port) as far,
            region(servers.eu, f"127.0.0.1:{far.port}", STORE_DEADLINE="5s", ON_STORE_FAILURE="closed") as store,
        ):
            await with_rules(store, leased())
            far.delay = 0.2
            asked = asyncio.ensure_future(charge(store, hit_of(leased())))
            await until(lambda: bool(home_of(store)._asking), "home is asked")
            servers.eu.kill()

            assert not (await asked).allowed
            await until(lambda: home_of(store).lost == 1, "what was lent is lost")

    run(story())
