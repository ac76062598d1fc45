"""RedisStores for tests, and a proxy that stands between one and its Redis and misbehaves."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Final, NamedTuple, Self

import uvloop

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.algorithms.lease import Granted, Wanted
from ratelimit_service.errors import StoreError
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.bans import Bans
from ratelimit_service.rules.rule import Rule
from ratelimit_service.settings import load_settings
from ratelimit_service.stores import open_store
from ratelimit_service.stores.hit import Hit, OnCounter
from ratelimit_service.stores.redis.store import RedisStore, open_redis
from ratelimit_service.stores.store import BanStore, Done, LostServer, OnTaken, Store
from ratelimit_service.system.clock import MINUTE, Clock
from ratelimit_service.telemetry.gauges import Gauges
from ratelimit_service.telemetry.metric import Metric
from ratelimit_service.telemetry.tally import Tally
from tests.redis import Redis

NOISE: Final = 20.0
"""Seconds that a busy machine may add to a deadline: it is a promise about Redis, not about the machine."""

PATIENT: Final = MINUTE
ENVOYS: Final = 20_000
"""What Envoy grants by default; answers of a busy machine may be too late for it, so nothing is said of those."""


def rule(requests: int = 1000, algorithm: str = "fixed_window", **options: object) -> Rule:
    """A rule of the domain `shop`, a year long, so that no test sees its window end."""
    limit = Limit(requests, Unit.YEAR, Unit.YEAR.window)
    return Rule("shop", (), limit, open_algorithm(algorithm), **options)  # type: ignore[arg-type]  # fields of a rule


def per_minute(requests: int) -> Rule:
    """A rule as most are."""
    return Rule("shop", (), Limit(requests, Unit.MINUTE, MINUTE), open_algorithm("fixed_window"))


class Answered(NamedTuple):
    """What a request was answered, and after how many seconds."""

    hits: list[Hit]
    error: StoreError | None
    seconds: float

    @property
    def allowed(self) -> bool:
        """All hits were."""
        assert self.error is None, self.error
        return all(hit.decision.allowed for hit in self.hits)


def hit_of(of: Rule, key: str = "ada", cost: int = 1, together: int = 0) -> Hit:
    """A hit on a counter of that name."""
    name = f"shop|user={key}{of.key_suffix}"
    return Hit(of, name, cost, tally=Tally(), quota=False, together=together)


async def charge(store: RedisStore, *hits: Hit, grants: int | None = PATIENT) -> Answered:
    """One request of a caller that grants that many microseconds; by default enough for any machine."""
    answer: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    began = monotonic()
    store.hit(hits, answer.set_result, grants)
    error = await answer
    return Answered(list(hits), error, monotonic() - began)


async def until(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Waits until it is."""
    deadline = monotonic() + seconds
    while not true():
        assert monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def opened(url: object, *, wait: bool = True, **settings: str) -> AsyncIterator[RedisStore]:
    """A store by these settings, swept as the service does it, once it is well."""
    read, _ = load_settings({"REDIS_URL": str(url), **settings})
    store = open_store(read)
    assert isinstance(store, RedisStore)

    async def look_after() -> None:
        while True:
            store.sweep()
            await asyncio.sleep(0.1)

    task = asyncio.create_task(look_after())
    try:
        if wait:
            await until(lambda: store.healthy, "the store is well")
        yield store
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await store.close()


class Proxy:
    """Passes bytes on to a port, after `delay` seconds, and not at all while it is muted."""

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.connections = 0
        """All that there were."""
        self.port = 0
        self._to = port
        self._speaking = asyncio.Event()
        self._speaking.set()
        self._silenced = 0
        self._hangs_up = False
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._callers: list[socket.socket] = []

    def mute(self, *, mute: bool = True) -> None:
        """Keep what comes, or pass it on again."""
        if mute:
            self._speaking.clear()
        else:
            self._speaking.set()

    def silence(self) -> None:
        """Keep for ever what comes on the connections that there are."""
        self._silenced = self.connections

    def cut(self) -> None:
        """Reset all connections."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def hang_up(self, *, again: bool = True) -> None:
        """Reset all connections, and each new one as soon as a script call was answered on it; or no more."""
        self._hangs_up = again
        self.cut()

    async def deafen(self) -> None:
        """Accept no more connections, and refuse none: their queue is full."""
        assert self._listener is not None
        assert self._accepting is not None
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._listener.listen(0)
        for _ in range(3):
            caller = socket.socket()
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.1", self.port))
            self._callers.append(caller)

    async def __aenter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(self._listener))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Listen no more, and cut all connections."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        for caller in (*self._callers, self._listener):
            if caller is not None:
                caller.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            near, _ = await asyncio.get_running_loop().sock_accept(listener)
            self.connections += 1
            reader, writer = await asyncio.open_connection(sock=near)
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
            except OSError:
                writer.transport.abort()
                continue
            self._writers |= {writer, far_writer}
            for source, sink in ((reader, far_writer), (far_reader, writer)):
                task = asyncio.create_task(self._pump(self.connections, source, sink))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _pump(self, number: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await asyncio.sleep(self.delay)
                await self._speaking.wait()
                if number <= self._silenced:
                    await asyncio.Event().wait()
                sink.write(data)
                await sink.drain()
                if self._hangs_up and data.startswith(_INTEGERS):
                    break
        sink.transport.abort()
        self._writers.discard(sink)


_INTEGERS: Final = b"*"
"""What a reply of a script begins with: a list."""


class RedisStores:
    """Stores on one Redis for the contract, which asks one after the other and waits: on an event loop of their own."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._loop = uvloop.new_event_loop()
        self._opened: list[RedisStore] = []

    def open(self, clock: Clock) -> Store:
        """An empty one whose script gets the time of this clock."""
        self._close_all()
        self._redis.cli("FLUSHALL")
        settings, _ = load_settings({"REDIS_URL": str(self._redis.socket)})
        store = open_redis(settings, lambda: _LONG_AGO + clock())
        self._opened.append(store)
        self._loop.run_until_complete(self._ready(store))
        return Asked(store, self._loop, self._redis)

    async def _ready(self, store: RedisStore) -> None:
        store.sweep()
        await until(lambda: store.healthy, "the store is well")
        self._redis.cli("FLUSHALL")  # it was tried out

    def _close_all(self) -> None:
        for store in self._opened:
            self._loop.run_until_complete(store.close())
        self._opened.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_all()
        self._loop.close()


_LONG_AGO: Final = 10**7 * MINUTE
"""Moment 0 of the clock that a test turns: 0 itself would be Redis's own time."""


class Asked:
    """A RedisStore that answers before `hit` returns."""

    name = "redis"
    charge = None
    healthy = True
    evicted = 0
    lost: Sequence[LostServer] = ()
    warnings = ()

    def __init__(self, store: RedisStore, loop: asyncio.AbstractEventLoop, redis: Redis) -> None:
        self.errors = store.errors
        self._store = store
        self._loop = loop
        self._redis = redis

    @property
    def counters(self) -> int:
        """As Redis has them."""
        return len([name for name in self._redis.cli("KEYS", "*").split("\n") if name not in {"", "rl2|resets"}])

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> None:
        async def ask() -> StoreError | None:
            answer: asyncio.Future[StoreError | None] = self._loop.create_future()
            self._store.hit(hits, answer.set_result, PATIENT)
            return await answer

        done(self._loop.run_until_complete(ask()))

    def take(self, counter: OnCounter, wanted: Wanted, done: OnTaken) -> None:
        async def ask() -> Granted | None:
            answer: asyncio.Future[Granted | None] = self._loop.create_future()
            self._store.take(counter, wanted, answer.set_result)
            return await answer

        done(self._loop.run_until_complete(ask()))

    def held(self, key: str) -> int:
        """As the store."""
        return self._store.held(key)

    def leased(self) -> Mapping[Tally, Gauges]:
        """As the store."""
        return self._store.leased()

    def use(self, rules: Iterable[Rule]) -> None:
        """As the store."""
        self._store.use(rules)

    def keep_bans(self, bans: Bans) -> BanStore:
        """As the store."""
        return self._store.keep_bans(bans)

    async def reset(self, hits: Sequence[Hit]) -> int:
        """As the store; a caller without a loop of its own gets the answer at once."""
        return self._loop.run_until_complete(self._store.reset(hits))

    def metrics(self) -> Sequence[Metric]:
        """None."""
        return ()

    def sweep(self) -> None:
        """Redis does it itself."""

    async def close(self) -> None:
        """RedisStores does it."""
