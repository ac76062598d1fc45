"""Replies that no Redis sends, but a proxy may, or what only resembles Redis: each call ends by policy nevertheless."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, cast

import hiredis
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.kinds import Queue, Synced
from ratelimit_service.algorithms.kinds import leased as regional
from ratelimit_service.errors import StoreError
from ratelimit_service.model import Decision, Limit, Queued, RegionMode, Regions, Unit
from ratelimit_service.rules.bans import Bans
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.envoyproxy import EnvoyproxyScript
from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.stores.redis.leases import Ask, LeasedCounter
from ratelimit_service.stores.redis.link import MAX_REPLY
from ratelimit_service.stores.redis.region_asks import RegionScript, at_home
from ratelimit_service.stores.redis.replies import read_time
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.stores.redis.topology import read_redirection, slot_map
from ratelimit_service.system.address import Tcp
from ratelimit_service.system.clock import MINUTE, SECOND
from ratelimit_service.telemetry.tally import Tally
from tests.stores.redis_stores import charge, hit_of, opened, rule, until

FEW: Final = Limit(3, Unit.MINUTE, MINUTE, count_refused=False)
FIXED: Final = Rule("shop", (), FEW, open_algorithm("fixed_window"))
LEASED: Final = Rule("shop", (), regional.member(FEW, 2, 0), FIXED.algorithm)
SYNCED: Final = Rule(
    *(
        "shop",
        (),
        Limit(3, Unit.MINUTE, MINUTE, regions=Regions(RegionMode.SYNCED, 2, 3), kind=Synced()),
        FIXED.algorithm,
    )
)
QUEUE: Final = Rule("shop", (), Limit(3, Unit.SECOND, SECOND, kind=Queue(SECOND, 0)), open_algorithm("leaky_bucket"))

ASK: Final = Ask(LeasedCounter(FIXED, FEW, "one", MINUTE, 9), 0, 0, 2, 7)
GOOD: Final[list[Any]] = [
    *[9 * SECOND, 1, 3, 2, 60, 0, 2, 3, 2, 60, SECOND, 0, 0, 0, 60, -2, 1, 3, 2, 60, 0, 1, 1, 0, 60, 9],
    *[b"rl2|leased", [0, 0, 1, 9], b"rl2|synced", [9 * SECOND, 5]],
    *[7, 1, 9 * SECOND, 60, 0],
]
"""A reply to `runs` and ASK."""

ANYTHING: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.integers()
    | st.floats()
    | st.binary(max_size=8)
    | st.just(hiredis.ReplyError("ERR no")),
    lambda found: st.lists(found, max_size=9) | st.dictionaries(st.integers(-2, 2), found, max_size=2),
    max_leaves=12,
)
"""What hiredis makes of replies."""


@st.composite
def replies(draw: st.DrawFn) -> Any:
    """Anything, or what is almost good."""
    if draw(st.booleans()):
        return draw(ANYTHING)
    start, end = sorted((draw(st.integers(0, len(GOOD))), draw(st.integers(0, len(GOOD)))))
    return GOOD[:start] + draw(st.lists(ANYTHING, max_size=end - start)) + GOOD[end:]


def hit(of: Rule, key: str) -> Hit:
    return Hit(of, key, 1, tally=Tally(), quota=False)


def runs() -> list[list[Hit]]:
    alone = [[hit(of, key)] for of, key in ((FIXED, "one"), (QUEUE, "queue"), (LEASED, "leased"), (SYNCED, "synced"))]
    return [*alone, [hit(FIXED, "two"), hit(FIXED, "two")]]


def test_a_good_reply_is_understood() -> None:
    sent = runs()

    answer = BatchScript().decode(GOOD, sent, [ASK])

    assert answer.changed == sent[4][1:]
    assert answer.waiting == sent[2]
    assert [(one.key, one.numbers) for one in answer.asked] == [("leased", GOOD[27]), ("synced", GOOD[29])]
    assert answer.granted == [(7, 1, 9 * SECOND, 60, 0, 9 * SECOND)]


@given(replies())
def test_a_reply_of_any_shape_is_a_fault_or_decides_all_hits_that_do_not_wait(reply: Any) -> None:
    sent = runs()

    try:
        answer = BatchScript().decode(reply, sent, [ASK])
    except Fault as fault:
        assert fault.cause == "protocol"  # noqa: PT017 - few replies raise nothing
        return

    decided = [each for run in sent for each in run if each not in answer.waiting]
    assert all(isinstance(each.decision, Decision) for each in decided)
    assert all(each.decision.wait <= SECOND for each in decided if isinstance(each.decision, Queued))
    assert all(each.rule is LEASED for each in answer.waiting)
    assert [0 <= granted.units <= 7 for granted in answer.granted] == [True]
    assert all(at_home(one).least is not None for one in answer.asked if one.rule is LEASED)


def read(reader: Callable[[Any], object], reply: Any) -> None:
    try:
        reader(reply)
    except Fault as fault:
        assert fault.cause in {"protocol", "clusterdown"}  # noqa: PT017 - few replies raise nothing


@given(ANYTHING)
def test_what_else_is_read_of_redis_is_a_fault_if_it_is_of_another_shape(reply: Any) -> None:
    ask = BatchScript().decode(GOOD, runs(), [ASK]).asked[0]
    for reader in (
        read_time,
        lambda reply: slot_map(reply, Tcp("a", 1)),
        lambda reply: RegionScript().collected(ask, reply),
        lambda reply: EnvoyproxyScript("", 0).decode(reply, [[hit(FIXED, "a")]]),
    ):
        read(reader, reply)


@pytest.mark.parametrize("error", ["MOVED 16384 a:1", "MOVED -1 a:1", "MOVED x a:1", "ASK 1 a:70000", "MOVED 1", "ASK"])
def test_a_redirection_to_where_nothing_is_cannot_be_followed(error: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_redirection(error, Tcp("a", 1))


class Fake:
    """A server that connects as Redis does, and then says `replies` to the commands of these names."""

    def __init__(self) -> None:
        self.replies: dict[bytes, bytes] = {}
        self.asked: set[bytes] = set()
        """The names of commands that have come."""
        self.port = 0

    def reply(self, name: bytes, *arguments: bytes) -> bytes:
        self.asked.add(name)
        if name == b"EVALSHA" and b"probe" in arguments[2]:
            return DECIDED
        usual = {b"CLIENT": b"+OK\r\n", b"TIME": b"*2\r\n$1\r\n9\r\n$1\r\n0\r\n", b"DBSIZE": b":1\r\n"}
        return self.replies.get(name) or usual.get(name) or b"$-1\r\n"


class Connection(asyncio.Protocol):
    """One of its connections."""

    def __init__(self, server: Fake) -> None:
        self._server = server
        self._commands = hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._commands.feed(data)
        while (command := self._commands.gets()) is not False:
            self._transport.write(self._server.reply(*command))


@asynccontextmanager
async def fake() -> AsyncIterator[Fake]:
    made = Fake()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(made), "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


DECIDED: Final = b"*6\r\n:1000000\r\n:1\r\n:9\r\n:8\r\n:60\r\n:0\r\n"
"""What the script says of one hit that is allowed."""

SHAPES: Final = {
    "a word": b"+OK\r\n",
    "one number": b"*1\r\n:1\r\n",
    "two numbers": b"*2\r\n:1\r\n:2\r\n",
    "one too many": b"*7\r\n" + b":1\r\n" * 7,
    "texts": b"*6\r\n" + b"$1\r\n1\r\n" * 6,
    "waits for home": b"*6\r\n:1\r\n:0\r\n:0\r\n:0\r\n:0\r\n:-2\r\n",
    "nothing": b"$-1\r\n",
    "a number": b":5\r\n",
    "no list": b"*-1\r\n",
    "lists": b"*1\r\n" * 5 + b":1\r\n",
    "a table": b"%1\r\n:1\r\n:2\r\n",
    "not Redis": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "without end": b"$300000000\r\n" + b"x" * (MAX_REPLY + 1_000_000),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_end_by_policy_whatever_the_script_is_answered(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with fake() as server, opened(f"127.0.0.1:{server.port}", ON_STORE_FAILURE="open") as store:
            server.replies[b"EVALSHA"] = SHAPES[shape]
            both = await asyncio.gather(charge(store, hit_of(rule())), charge(store, hit_of(rule(), "eve")))
            while store.healthy:  # the connection was good for a second before, so another one was made at once
                await charge(store, hit_of(rule()))

            assert all(each.allowed and each.hits[0].by_policy is not None for each in both)
            assert store.errors.keys() == {"protocol"}
            assert store.lost[0].cause == "protocol"

    with caplog.at_level(logging.WARNING):
        uvloop.run(story())

    assert not any(record.exc_info for record in caplog.records)


def test_a_server_is_found_again_when_it_has_replied_well_for_a_second() -> None:
    async def story() -> None:
        async with fake() as server, opened(f"127.0.0.1:{server.port}", ON_STORE_FAILURE="open") as store:
            server.replies[b"EVALSHA"] = SHAPES["a word"]
            while not store.lost:
                await charge(store, hit_of(rule()))
            server.replies[b"EVALSHA"] = DECIDED
            await until(lambda: store.healthy, "it is connected again")
            assert (await charge(store, hit_of(rule()))).hits[0].by_policy is None
            assert store.lost
            await until(lambda: not store.lost, "it has replied for a second")

    uvloop.run(story())


def test_what_waits_for_home_ends_by_policy_whatever_home_replies() -> None:
    of = replace(LEASED, name="", on_store_failure="open")
    key = hit_of(of).key.encode()
    waits = b"*8\r\n:1000000\r\n:0\r\n:0\r\n:0\r\n:0\r\n:-2\r\n$%d\r\nrl2|%b\r\n*4\r\n:0\r\n:0\r\n:1\r\n:9\r\n"

    async def story() -> None:
        async with fake() as region, fake() as home:
            region.replies[b"EVALSHA"] = waits % (len(key) + 4, key)
            home.replies[b"EVALSHA"] = SHAPES["a word"]
            regions: dict[str, Any] = {"REGION": "eu", "REGIONS": "eu,us", "HOME_REDIS_URL": f"127.0.0.1:{home.port}"}
            async with opened(f"127.0.0.1:{region.port}", **regions) as store:
                await until(lambda: all(lane.healthy for lane in store.lanes), "home is there")
                answer = await charge(store, hit_of(of))

                assert answer.allowed
                assert store.errors == {"protocol": 1}

    uvloop.run(story())


@pytest.mark.parametrize("command", [b"TIME", b"HGET", b"INFO", b"DBSIZE", b"GETEX", b"CLIENT"])
def test_no_reply_to_another_command_raises_what_is_no_fault(command: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with fake() as server:
            server.replies = {command: b"*3\r\n:1\r\n$-1\r\n*0\r\n", b"EVALSHA": DECIDED}
            async with opened(f"127.0.0.1:{server.port}", wait=False, ON_STORE_FAILURE="open") as store:
                bans = store.keep_bans(Bans())
                await charge(store, hit_of(rule()))
                await until(lambda: server.asked >= {b"TIME", b"DBSIZE", b"HGET", b"INFO"}, "all are asked")
                with suppress(StoreError):
                    await bans.lift("a", "ada")

    with caplog.at_level(logging.WARNING):
        uvloop.run(story())

    assert not any(record.exc_info for record in caplog.records)
