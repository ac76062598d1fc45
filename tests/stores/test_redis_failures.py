"""When Redis fails: each line of the table of promises, on a real server."""

import asyncio
import logging
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ratelimit_service.errors import StoreError
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.redis.lane import MAX_WAITING
from ratelimit_service.stores.redis.link import Link
from ratelimit_service.stores.redis.script import MAX_IN_PART, MAX_IN_PIPELINE
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.stores.redis.target import Login
from ratelimit_service.stores.store import LostServer
from ratelimit_service.system.address import Tcp
from tests.ports import free_port
from tests.redis import Redis, debugging, start_redis
from tests.stores.redis_stores import ENVOYS, NOISE, PATIENT, Proxy, charge, hit_of, opened, rule, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    """A Redis of the test's own: it may be stopped and killed."""
    with start_redis(tmp_path / "redis", *debugging()) as redis:
        yield redis


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the store has said to the operator."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def clients(redis: Redis) -> list[str]:
    """The numbers of its connections by TCP; `cli` comes by a socket of its own."""
    return re.findall(r"^id=(\d+) addr=127", redis.cli("CLIENT", "LIST"), re.MULTILINE)


async def flood(store: RedisStore, seconds: float, count: int = 50) -> list[float]:
    """Requests, `count` at a time, for so long: how long each took."""
    end = asyncio.get_running_loop().time() + seconds
    took: list[float] = []
    one = rule(10**9)
    while asyncio.get_running_loop().time() < end:
        answers = await asyncio.gather(*(charge(store, hit_of(one), grants=ENVOYS) for _ in range(count)))
        took += [each.seconds for each in answers]
        await asyncio.sleep(0)
    return took


def test_not_there_at_start_it_answers_by_policy_and_connects_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()

    async def story() -> None:
        async with opened(f"127.0.0.1:{port}", wait=False, ON_STORE_FAILURE="open") as store:
            first = await charge(store, hit_of(rule(1)))
            second = await charge(store, hit_of(rule(1)))
            assert first.allowed
            assert second.allowed
            assert not store.healthy
            assert store.errors == {"refused": 2}
            (lost,) = store.lost
            assert lost._replace(since=0) == LostServer(f"127.0.0.1:{port}", "refused", "connection refused", 0, "open")
            assert before <= lost.since <= time.time()

            with start_redis(tmp_path, port=port):
                await until(lambda: store.healthy, "found")

                assert (await charge(store, hit_of(rule(1)))).allowed
                assert not (await charge(store, hit_of(rule(1)))).allowed
                assert not store.lost

    before = time.time()
    run(story())
    lost, regained = lines(caplog)[:2]
    assert lost == (f"store lost: Redis at 127.0.0.1:{port}: connection refused; meanwhile answering by policy, open")
    assert regained.startswith(f"store regained: Redis at 127.0.0.1:{port}, after ")


def at_once(store: RedisStore, grants: int) -> list[StoreError | None]:
    """What a request is answered before `hit` returns; nothing if it waits."""
    answers: list[StoreError | None] = []
    store.hit([hit_of(rule())], answers.append, grants)
    return answers


def is_stopped(redis: Redis) -> bool:
    """It has heard the signal."""
    return Path(f"/proc/{redis.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


@asynccontextmanager
async def standing_still(redis: Redis) -> AsyncIterator[None]:
    """It does nothing meanwhile, and goes on then."""
    redis.send(signal.SIGSTOP)
    try:
        await until(lambda: is_stopped(redis), "it is stopped")
        yield
    finally:
        redis.send(signal.SIGCONT)


def test_a_black_hole_delays_no_request_longer_than_granted_and_later_none_at_all(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            async with standing_still(redis):
                answers = await asyncio.gather(*(charge(store, hit_of(rule()), grants=ENVOYS) for _ in range(100)))

                late = "no answer from the store: no answer in time"
                assert {str(answer.error) for answer in answers} == {late}
                assert max(answer.seconds for answer in answers) < NOISE
                assert [str(error) for error in at_once(store, ENVOYS)] == [late]

                await until(lambda: not store.healthy, "it is lost")
                (lost,) = store.lost
                assert (lost.cause, lost.words) == ("timeout", "no answer in time")
            await until(lambda: store.healthy, "found again")
            assert (await charge(store, hit_of(rule()))).allowed

    run(story())
    assert [line.partition(":")[0] for line in lines(caplog)] == ["store lost", "store regained"]


def test_a_request_that_grants_more_than_the_silence_has_lasted_waits_and_is_answered(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            async with standing_still(redis):
                assert (await charge(store, hit_of(rule()), grants=ENVOYS)).error
                assert at_once(store, ENVOYS)
                patient = asyncio.create_task(charge(store, hit_of(rule())))
                await asyncio.sleep(0)
            assert (await patient).allowed

    run(story())


def test_under_full_load_a_black_hole_piles_nothing_up(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            await flood(store, 0.2)
            async with standing_still(redis):
                took = await flood(store, 1.5)

                assert max(took) < NOISE
                assert len(store._pending) < 20_000
                assert sum(lane.waiting for lane in store.lanes) <= 2 * (MAX_IN_PIPELINE + MAX_IN_PART)

    run(story())


def test_what_waits_for_a_server_that_stands_still_is_bounded(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            async with standing_still(redis):
                assert (await charge(store, hit_of(rule()), grants=ENVOYS)).error
                answers: list[StoreError | None] = []
                for _ in range(MAX_WAITING + 5):
                    store.hit([hit_of(rule())], answers.append, PATIENT)

                assert [str(error) for error in answers] == [
                    "no answer from the store: too many hits wait for an answer"
                ] * 5
            await until(lambda: len(answers) == MAX_WAITING + 5, "all are answered")
            assert answers.count(None) == MAX_WAITING

    run(story())


def test_pauses_of_the_server_cost_what_comes_meanwhile_and_no_connection(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Each time it answers late, and that it answers is all that has to be known."""

    async def story() -> None:
        async with Proxy(redis.port) as proxy, opened(f"127.0.0.1:{proxy.port}") as store:
            (lane,) = store.lanes
            for _ in range(20):
                proxy.mute()
                answers = await asyncio.gather(*(charge(store, hit_of(rule()), grants=ENVOYS) for _ in range(5)))
                proxy.mute(mute=False)
                assert all(answer.error for answer in answers)
                await until(lambda: lane.waiting == 0, "it has answered")

                assert (await charge(store, hit_of(rule()))).allowed

            assert store.errors == {"timeout": 100}
            assert proxy.connections == 1

    run(story())
    assert lines(caplog) == []


def test_a_server_whose_answers_are_too_late_is_not_charged_for_nothing(redis: Redis) -> None:
    """After five replies a request that grants less than they took is answered now, one that grants more is sent."""

    async def story() -> None:
        async with Proxy(redis.port) as proxy, opened(f"127.0.0.1:{proxy.port}") as store:
            (lane,) = store.lanes
            proxy.delay = 0.1
            for _ in range(5):
                assert (await charge(store, hit_of(rule(), "late"), grants=ENVOYS)).error
                await until(lambda: lane.waiting == 0, "it has answered")
            before = (await charge(store, hit_of(rule(), "late", cost=0))).hits[0].decision.remaining
            refused = [bool(at_once(store, ENVOYS)) for _ in range(20)]
            after = (await charge(store, hit_of(rule(), "late", cost=0))).hits[0].decision.remaining

            assert 995 <= before < 1000
            assert refused == [True] * 20
            assert after == before

            proxy.delay = 0.0
            await until(lambda: not at_once(store, ENVOYS), "it is known to be quick again")

    run(story())


def test_a_service_that_was_not_running_reads_its_answers_before_it_judges_the_server(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            before = clients(redis)
            for _ in range(5):
                answer = asyncio.create_task(charge(store, hit_of(rule()), grants=100_000))
                for _ in range(3):  # it is put, it is sent, and uvloop writes at the end of a turn
                    await asyncio.sleep(0)
                time.sleep(0.4)  # noqa: ASYNC251  # as when all of its processor time is used up
                store.sweep()

                assert (await answer).allowed
            assert clients(redis) == before

    run(story())


def test_a_late_answer_is_dropped(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", ON_STORE_FAILURE="closed") as store:
            one = rule(10)
            async with standing_still(redis):
                late = await charge(store, hit_of(one), grants=ENVOYS)
                denied = late.hits[0].decision
            assert not denied.allowed

            # It was charged all the same: that is said in docs/redis.md.
            assert (await charge(store, hit_of(one, cost=0))).hits[0].decision.remaining == 9
            assert not denied.allowed

    run(story())


def test_a_command_that_cannot_be_written_leaves_every_other_its_own_answer(redis: Redis) -> None:
    async def story() -> None:
        link = await Link.open(Login(Tcp("127.0.0.1", redis.port)))
        with pytest.raises(UnicodeEncodeError):
            link.send(("ECHO", "\ud800"), lambda _: None)

        async with asyncio.timeout(60):
            assert [await link.execute("ECHO", word) for word in ("first", "second")] == [b"first", b"second"]
        link.abort()

    run(story())


def test_a_request_whose_command_cannot_be_written_harms_no_other(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            broken = await charge(store, hit_of(rule(), "\ud800"))
            answers = [await charge(store, hit_of(rule(3))) for _ in range(5)]

            assert str(broken.error) == "no answer from the store: it answers with an error"
            assert [answer.allowed for answer in answers] == [True, True, True, False, False]
            assert sum(lane.waiting for lane in store.lanes) == 0

    run(story())


def test_a_cut_connection_costs_only_what_was_in_flight(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with Proxy(redis.port) as proxy, opened(f"127.0.0.1:{proxy.port}") as store:
            (lane,) = store.lanes
            for _ in range(4):
                await until(lambda: lane._breaker.proven, "the connection has answered for a tenth of a second")
                before = lane._link
                proxy.cut()
                await until(partial(is_another, store, before), "it is cut")
                assert (await charge(store, hit_of(rule()))).allowed

            assert store.errors == {}

    run(story())
    assert lines(caplog) == []


def is_another(store: RedisStore, before: object) -> bool:
    """The connection is not that one any more."""
    return store.lanes[0]._link is not before


def test_a_server_that_accepts_and_closes_connections_is_not_tried_without_a_pause(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Proxy(redis.port) as proxy, opened(f"127.0.0.1:{proxy.port}") as store:
            (lane,) = store.lanes
            proxy.hang_up()
            await until(lambda: lane._breaker.backoff._count == 5, "it was let in and lost again")
            assert [lost.cause for lost in store.lost] == ["reset"]
            assert at_once(store, PATIENT)
            proxy.hang_up(again=False)
            await until(lambda: not store.lost, "it has answered for a tenth of a second")
            assert lane._breaker.proven
            assert (await charge(store, hit_of(rule()))).allowed

    run(story())
    assert [line.partition(":")[0] for line in lines(caplog)] == ["store lost", "store regained"]


def test_no_request_waits_longer_than_granted_for_a_connection_that_does_not_come(redis: Redis) -> None:
    """The server is gone, and packets to it vanish: nothing refuses a connection, and nothing accepts it."""

    async def story() -> None:
        async with Proxy(redis.port) as proxy, opened(f"127.0.0.1:{proxy.port}") as store:
            (lane,) = store.lanes
            await until(lambda: lane._breaker.proven, "the connection has answered for a tenth of a second")
            await proxy.deafen()
            proxy.cut()
            await until(lambda: not store.healthy, "it is missed")
            hasty = await charge(store, hit_of(rule()), grants=ENVOYS)

            assert hasty.error
            assert [str(error) for error in at_once(store, ENVOYS)] == ["no answer from the store: connection lost"]
            assert at_once(store, PATIENT) == []

    run(story())


def test_an_address_that_does_not_answer_leaves_time_for_the_next_one(redis: Redis) -> None:
    """As of a name with an IPv6 address that nothing routes, or with that of a pod that is gone."""

    async def story() -> None:
        async with Proxy(redis.port) as proxy:
            await proxy.deafen()
            places = [Tcp("127.0.0.1", proxy.port), Tcp("127.0.0.1", redis.port)]
            link = await Link.connect(places, Login(Tcp("two.example", 6379)))
            assert await link.execute("PING") == b"PONG"
            link.abort()

            with pytest.raises(TimeoutError):
                await Link.connect(places[:1] * 2, Login(Tcp("two.example", 6379), timeout=0.2))

    run(story())


def test_a_half_open_connection_is_noticed_without_traffic(redis: Redis) -> None:
    async def story() -> None:
        async with Proxy(redis.port) as proxy, opened(f"127.0.0.1:{proxy.port}") as store:
            proxy.mute()
            await until(lambda: not store.healthy, "noticed")
            proxy.mute(mute=False)
            await until(lambda: store.healthy, "found again")

    run(story())


def test_a_connection_that_stays_mute_is_replaced_by_one_that_answers(redis: Redis) -> None:
    async def story() -> None:
        async with Proxy(redis.port) as proxy, opened(f"127.0.0.1:{proxy.port}") as store:
            proxy.silence()
            patient = await charge(store, hit_of(rule()))
            assert str(patient.error) == "no answer from the store: no answer in time"  # it was in flight

            await until(lambda: store.healthy, "another connection answers")
            assert (await charge(store, hit_of(rule()))).allowed
            assert held(proxy.port) == 1

    run(story())


def test_a_server_that_stands_still_is_sought_by_one_attempt_at_a_time(redis: Redis) -> None:
    """Beside the connection that is kept."""

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            (lane,) = store.lanes
            most = 0

            def attempts() -> int:
                nonlocal most
                most = max(most, held(redis.port))
                return lane._breaker.backoff._count

            async with standing_still(redis):
                await until(lambda: attempts() == 2, "two attempts have failed")
            assert most == 2
            await until(lambda: store.healthy and held(redis.port) == 1, "one connection is left")

    run(story())


def held(port: int) -> int:
    """The sockets of this process that are connected to that port, or about to be."""
    own = {str(file.readlink()) for file in tuple(Path("/proc/self/fd").iterdir()) if file.is_symlink()}
    lines = Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    there = {f"socket:[{fields[9]}]" for fields in map(str.split, lines) if fields[2].endswith(f":{port:04X}")}
    return len(own & there)


def test_a_restart_is_healed_and_counting_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        with start_redis(tmp_path / "a") as redis:
            port = redis.port
            async with opened(f"127.0.0.1:{port}") as store:
                assert (await charge(store, hit_of(rule()))).allowed
                redis.kill()
                await until(lambda: not store.healthy, "noticed")
                with start_redis(tmp_path / "b", port=port):
                    await until(lambda: store.healthy, "found again")

                    assert (await charge(store, hit_of(rule()))).allowed

    run(story())


@pytest.mark.parametrize("command", [("SCRIPT", "FLUSH"), ("FLUSHALL",)])
def test_a_flush_of_scripts_causes_no_error(redis: Redis, command: tuple[str, ...]) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            for _ in range(3):
                redis.cli(*command)
                answers = await asyncio.gather(*(charge(store, hit_of(rule())) for _ in range(20)))

                assert all(answer.allowed for answer in answers)

    run(story())


def test_what_is_answered_by_policy_is_not_charged_when_the_script_was_missing(redis: Redis) -> None:
    """Redis turns it away with NOSCRIPT, and the request is over by then."""

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            (lane,) = store.lanes
            redis.cli("SCRIPT", "FLUSH")
            async with standing_still(redis):
                assert (await charge(store, hit_of(rule(), "late"), grants=ENVOYS)).error
            await until(lambda: lane.waiting == 0, "Redis has turned it away")

            assert (await charge(store, hit_of(rule(), "next"))).allowed
            assert "late" not in redis.cli("KEYS", "*")

    run(story())


def test_a_flushed_counter_begins_anew(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            one = rule(1)
            assert (await charge(store, hit_of(one))).allowed
            assert not (await charge(store, hit_of(one))).allowed

            redis.cli("FLUSHALL")

            assert (await charge(store, hit_of(one))).allowed

    run(story())


def test_a_cancelled_request_harms_no_other_in_its_batch(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:

            def gone(_: object) -> None:
                raise ConnectionResetError("the caller went away")

            store.hit([hit_of(rule())], gone)
            assert (await charge(store, hit_of(rule()))).allowed

    run(story())


def test_an_error_of_an_order_gives_up_no_server(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    broken = Rule("shop", (), Limit(1, Unit.YEAR, Unit.YEAR.window, parts=0), rule(algorithm="sub_windows").algorithm)

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            before = clients(redis)
            for _ in range(20):
                assert (await charge(store, hit_of(broken))).error
            assert store.healthy
            assert (await charge(store, hit_of(rule()))).allowed
            assert store.errors == {"error": 20}
            assert clients(redis) == before

    run(story())
    (line,) = lines(caplog)
    assert "it answers with an error (ERR invalid expire time" in line
    assert line.endswith("; more of these are logged in a minute")


def test_a_full_redis_is_answered_by_policy_and_the_log_says_what_to_do(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            redis.cli("CONFIG", "SET", "maxmemory", "1")
            for _ in range(10):
                assert (await charge(store, hit_of(rule()))).error
            await until(lambda: not store.healthy, "the breaker opened")
            assert store.errors["oom"] == 10
            redis.cli("CONFIG", "SET", "maxmemory", "0")
            await until(lambda: store.healthy, "found again")

    run(story())
    assert len(lines(caplog)) == 2
    assert "out of memory: raise maxmemory, or make room" in lines(caplog)[0]


def test_a_redis_that_cannot_persist_and_so_refuses_writes_is_answered_by_policy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(redis: Redis) -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            (tmp_path / "dump.rdb").mkdir()  # where the snapshot should be written
            redis.cli("CONFIG", "SET", "save", "3600 1")
            redis.cli("BGSAVE")
            await until(lambda: "rdb_last_bgsave_status:err" in redis.cli("INFO", "persistence"), "it cannot save")
            for _ in range(10):
                assert (await charge(store, hit_of(rule()))).error
            await until(lambda: not store.healthy, "the breaker opened")
            assert store.errors["misconf"] == 10
            redis.cli("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
            await until(lambda: store.healthy, "found again")

    with start_redis(tmp_path) as redis:
        run(story(redis))
    assert len(lines(caplog)) == 2
    assert "it cannot persist and refuses writes" in lines(caplog)[0]


def test_a_user_without_permission_for_scripts_is_logged_with_what_is_missing(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    redis.cli("ACL", "SETUSER", "limiter", "on", ">hunter2", "~*", "+@read", "+@connection")

    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}", wait=False, REDIS_AUTH="limiter:hunter2") as store:
            assert (await charge(store, hit_of(rule()))).error
            assert store.errors == {"noperm": 1}
            redis.cli("ACL", "SETUSER", "limiter", "+@scripting", "+@write", "+time")
            await until(lambda: store.healthy, "allowed")
            assert (await charge(store, hit_of(rule()))).allowed

    run(story())
    assert "the ACL user must be allowed: ~<CACHE_KEY_PREFIX>*" in lines(caplog)[0]
    assert "hunter2" not in caplog.text


def test_a_redis_without_room_for_a_connection_is_logged_each_time(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It sends an error before any command, and closes the connection."""

    async def story() -> None:
        redis.cli("CONFIG", "SET", "maxclients", "1")
        with socket.create_connection(("127.0.0.1", redis.port)) as client:
            client.sendall(b"PING\r\n")
            assert client.recv(100) == b"+PONG\r\n"
            for _ in range(10):
                async with opened(f"127.0.0.1:{redis.port}", wait=False) as store:
                    assert (await charge(store, hit_of(rule()))).error
                    assert store.errors == {"maxclients": 1}
        async with opened(f"127.0.0.1:{redis.port}") as store:
            assert (await charge(store, hit_of(rule()))).allowed

    run(story())
    lost = [line for line in lines(caplog) if line.startswith("store lost")]
    assert all("it has no room for another connection: raise its maxclients" in line for line in lost)
    assert len(lost) == 10


def test_a_wrong_password_is_logged_without_the_password(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    redis.cli("CONFIG", "SET", "requirepass", "hunter2")

    async def story() -> None:
        async with opened(f"redis://default:hunter3@127.0.0.1:{redis.port}", wait=False) as store:
            answer = await charge(store, hit_of(rule()))
            assert str(answer.error) == "no answer from the store: user or password is wrong: check REDIS_AUTH"
        async with opened(f"127.0.0.1:{redis.port}", wait=False) as store:
            assert (await charge(store, hit_of(rule()))).error
            assert store.errors == {"noauth": 1}
        async with opened(f"127.0.0.1:{redis.port}", REDIS_AUTH="hunter2") as store:
            assert (await charge(store, hit_of(rule()))).allowed

    run(story())
    assert "user or password is wrong: check REDIS_AUTH" in caplog.text
    assert "it asks for a password: set REDIS_AUTH" in caplog.text
    assert "hunter" not in caplog.text


def test_a_primary_that_becomes_a_replica_is_not_used(redis: Redis) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{redis.port}") as store:
            redis.cli("REPLICAOF", "127.0.0.1", str(free_port()))
            assert (await charge(store, hit_of(rule()))).error
            await until(lambda: not store.healthy, "noticed")
            assert "readonly" in store.errors
            redis.cli("REPLICAOF", "NO", "ONE")
            await until(lambda: store.healthy, "found again")
            assert (await charge(store, hit_of(rule()))).allowed

    run(story())


def test_two_services_that_count_locally_admit_the_limit_and_one_rounding_each(redis: Redis) -> None:
    async def story() -> None:
        address = f"127.0.0.1:{redis.port}"
        async with (
            opened(address, ON_STORE_FAILURE="local", INSTANCES="2") as one,
            opened(address, ON_STORE_FAILURE="local", INSTANCES="2") as other,
        ):
            async with standing_still(redis):
                limited = rule(7)
                both = [store for _ in range(20) for store in (one, other)]
                answers = [await charge(store, hit_of(limited), grants=ENVOYS) for store in both]

                assert sum(answer.allowed for answer in answers) in {7, 8}
            fresh = rule(5)
            answers = [await charge(store, hit_of(fresh, "new")) for _ in range(10) for store in (one, other)]
            assert sum(answer.allowed for answer in answers) == 5

    run(story())


def test_a_server_that_is_loading_its_data_is_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        slowly = ("--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024")
        with start_redis(tmp_path, *debugging()) as redis:
            redis.cli("DEBUG", "POPULATE", "20000")
            redis.cli("SAVE")
            port = redis.port
        with Redis(tmp_path, port, slowly) as redis:
            redis.wait_until(lambda: "Loading RDB" in redis.log, "it loads")
            async with opened(f"127.0.0.1:{port}", wait=False) as store:
                assert (await charge(store, hit_of(rule()))).error
                assert store.errors == {"loading": 1}
                redis.cli("CONFIG", "SET", "key-load-delay", "0")
                await until(lambda: store.healthy, "loaded")
                assert (await charge(store, hit_of(rule()))).allowed

    run(story())


def test_closing_answers_all_requests_that_wait(redis: Redis) -> None:
    async def story() -> None:
        async with AsyncExitStack() as still:
            async with opened(f"127.0.0.1:{redis.port}") as store:
                await still.enter_async_context(standing_still(redis))
                waiting = asyncio.create_task(charge(store, hit_of(rule())))
                await asyncio.sleep(0)
            answer = await waiting

        assert str(answer.error) == "no answer from the store: the service is stopping"

    run(story())
