"""Counters in Redis, looked at and reset from outside the service. Looking charges nothing and writes nothing.

A descriptor's counters are asked for by their names. Those of a rule or a domain are looked for with SCAN, which holds
up nobody, on every primary; what comes twice, because a table grows or a slot moves meanwhile, is seen once.

The primaries of one Redis for commands that are not in a hurry: redis-py's clients. Hits go by lanes.

redis-py connects (TLS, ACL users, unix sockets), pipelines, scans, and asks sentinels. Of a Cluster each node has a
client of its own, not redis-py's `RedisCluster`. As of 8.1 that one needs the right to `COMMAND`, which the
documented ACL users lack. It fails when a slot moves to a node that has none yet (redis-py issue 4015), and when a
redirection names no host, as with `cluster-preferred-endpoint-type unknown-endpoint`.
"""

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis, Sentinel
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import AskError, MovedError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ratelimit_service.algorithms.sliding_log import LONGEST
from ratelimit_service.errors import StoreError
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Entries, Rule, counter_key
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import KeyFormat, RedisType
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.counters_decode import Content, Counter, OwnNames, UpstreamNames, content
from ratelimit_service.stores.redis.faults import Fault, fault_of_exception, fault_of_reply
from ratelimit_service.stores.redis.keys import (
    cluster_counter,
    cluster_key,
    plain_counter,
    plain_key,
    resets_key,
    slot_of,
)
from ratelimit_service.stores.redis.target import Target, is_clustered, is_per_second, main_target, per_second_target
from ratelimit_service.stores.redis.upstream import UpstreamScript, is_upstreams
from ratelimit_service.system.address import Address, Tcp, Unix
from ratelimit_service.system.clock import DAY, SECOND
from ratelimit_service.telemetry.tally import Tally

NAME: Final = "ratelimit"
"""The connection's name in CLIENT LIST and ACL LOG."""

_CONNECT_SECONDS: Final = 2.0
"""At most, whatever REDIS_TIMEOUT allows."""

_SENTINEL_SECONDS: Final = 0.5
"""For one sentinel to reply."""

_REPLY_SECONDS: Final = 10.0
_SCAN_COUNT: Final = 1000
"""Keys that one SCAN looks at: it keeps a server from others for less than a millisecond."""

_MOST_REDIRECTIONS: Final = 5

ALLOWED: Final = (
    "~<CACHE_KEY_PREFIX>* +scan +get +pttl +time, to reset +unlink +set, in a Cluster +cluster|slots +asking"
)
"""What an ACL user needs."""

Command = Sequence[str | bytes | int]
Layout = Sequence[tuple[int, int, Address]]
"""First slot, last slot, and the primary that has them."""


class Primaries:
    """Found by `find`; each is connected to with its first command. Raises StoreError."""

    def __init__(self, settings: Settings, target: Target) -> None:
        self._target = target
        self._options: dict[str, Any] = {
            "socket_connect_timeout": min(target.timeout, _CONNECT_SECONDS),
            "socket_timeout": _REPLY_SECONDS,
            "retry": Retry(NoBackoff(), 0),  # who runs the command sees at once what is wrong
            "protocol": 2,  # 3 needs the right to HELLO
            "driver_info": None,  # needs the right to CLIENT SETINFO
            "redis_connect_func": _introduce,
        }
        if target.certificates is not None:
            self._options |= {
                "ssl": True,
                "ssl_ca_certs": settings.redis_tls_cacert or None,
                "ssl_certfile": settings.redis_tls_client_cert or None,
                "ssl_keyfile": settings.redis_tls_client_key or None,
                "ssl_check_hostname": not settings.redis_tls_skip_hostname_verification,
            }
        self._clients: dict[Address, Redis] = {}
        self.layout: Layout = ()
        """Who has which slots, as `find` saw it."""

    async def find(self) -> list[Address]:
        """Where they are now."""
        match self._target.kind:
            case RedisType.CLUSTER:
                self.layout = await self._slots()
            case RedisType.SENTINEL:
                self.layout = [(0, 0, await self._watched())]
            case RedisType.SINGLE:
                self.layout = [(0, 0, self._target.servers.addresses[0])]
        return list(dict.fromkeys(address for _, _, address in self.layout))

    async def owner(self, key: bytes) -> Address:
        """Who has this key."""
        if not self.layout:
            await self.find()
        slot = slot_of(key)
        return next((address for first, last, address in self.layout if first <= slot <= last), self.layout[0][2])

    async def scan(self, address: Address, pattern: str) -> AsyncIterator[list[bytes]]:
        """All keys there that fit, some at a time; one may come more than once."""
        keys: list[bytes] = []
        try:
            async for key in self._client(address).scan_iter(pattern, _SCAN_COUNT, "string"):
                keys.append(key)
                if len(keys) == _SCAN_COUNT:
                    yield keys
                    keys = []
        except RedisError as error:
            raise _failed(address, error) from error
        if keys:
            yield keys

    async def ask(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        """The replies of that primary, in order, to commands sent in one go; redirections are followed."""
        try:
            return [
                await self._follow(address, command, reply) if isinstance(reply, ResponseError) else reply
                for command, reply in zip(commands, await self._send(address, commands), strict=True)
            ]
        except RedisError as error:
            raise _failed(address, error) from error

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()

    def _client(self, address: Address) -> Redis:
        client = self._clients.get(address)
        if client is None:
            target = self._target
            place: dict[str, Any] = (
                {"unix_socket_path": address.path}
                if isinstance(address, Unix)
                else {"host": address.host, "port": address.port}
            )
            client = self._clients[address] = Redis(
                **place,
                **self._options,
                username=target.user or None,
                password=target.password or None,
                db=target.servers.database,
            )
        return client

    async def _send(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client(address).pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute(raise_on_error=False)

    async def _follow(self, asked: Address, command: Command, error: ResponseError) -> Any:
        """The reply of the node that has the key of a command which `asked` has refused."""
        for _ in range(_MOST_REDIRECTIONS):
            if str(error).startswith("WRONGTYPE"):
                return None
            if not isinstance(error, AskError):  # MovedError is one, too
                raise error
            asked = _node(error.host, error.port, asked)
            asking: list[Command] = [] if isinstance(error, MovedError) else [("ASKING",)]
            *_, reply = await self._send(asked, [*asking, command])
            if not isinstance(reply, ResponseError):
                return reply
            error = reply
        raise error

    async def _slots(self) -> Layout:
        """The primaries of a Cluster, from the first of its nodes that replies."""
        addresses = self._target.servers.addresses
        failure: StoreError | None = None
        for address in random.sample(addresses, len(addresses)):
            try:
                [reply] = await self.ask(address, [("CLUSTER SLOTS",)])
            except StoreError as error:
                failure = error
                continue
            if reply:
                return sorted((first, last, _node(host, port, address)) for first, last, (host, port, *_), *_ in reply)
            failure = StoreError(f"Redis at {address}: {Fault('clusterdown')}")
        assert failure is not None, "a cluster has a node"
        raise failure

    async def _watched(self) -> Address:
        """The primary, from the first of its sentinels that knows it."""
        target = self._target
        login = {"username": target.sentinel_user or None, "password": target.sentinel_password or None}
        options = {**self._options, **login, "socket_timeout": _SENTINEL_SECONDS}
        sentinel = Sentinel(target.servers.addresses, sentinel_kwargs=options)  # type: ignore[no-untyped-call]  # redis-py has no types here
        try:
            try:
                return Tcp(*await sentinel.discover_master(target.servers.master))
            except MasterNotFoundError:
                # It does not say what is wrong with a sentinel. The sentinel does, when it is asked again.
                for client in sentinel.sentinels:
                    await client.sentinel_masters()
                raise
        except RedisError as error:
            fault = _fault_of(error)
            detail = str(fault) if fault.cause in {"noauth", "wrongpass", "tls"} else ""
            raise StoreError(f"Redis at {target.servers.addresses[0]}: {Fault('sentinel', detail)}") from error
        finally:
            for client in sentinel.sentinels:
                await client.aclose()


async def _introduce(connection: AbstractConnection) -> None:
    """Log in, and give the connection its name if the ACL user may."""
    await connection.on_connect()
    await connection.send_command("CLIENT", "SETNAME", NAME)
    with suppress(ResponseError):
        await connection.read_response()


def _node(host: str | bytes | None, port: int, asked: Address) -> Address:
    """A node of a Cluster; one that is told without a host has that of the node which was asked."""
    assert isinstance(asked, Tcp), "a cluster has no unix sockets"
    name = host.decode() if isinstance(host, bytes) else host
    return Tcp(asked.host if name in {None, "", "?"} else name, port)


def _failed(address: Address, error: RedisError) -> StoreError:
    fault = _fault_of(error)
    if fault.cause == "noperm":
        return StoreError(f"Redis at {address}: the ACL user must be allowed: {ALLOWED} ({fault.detail})")
    return StoreError(f"Redis at {address}: {fault}")


def _fault_of(error: RedisError) -> Fault:
    if isinstance(error, ResponseError) or error.status_code is not None:
        # redis-py cuts the code off where it has a class for it.
        return fault_of_reply(ResponseError(f"{error.status_code or ''} {error}".strip()))
    if isinstance(error, MasterNotFoundError):
        return Fault("sentinel")
    if isinstance(error, RedisTimeoutError):
        return Fault("timeout")
    return fault_of_exception(error.__cause__ or error.__context__ or ConnectionResetError())


_MOST_BYTES: Final = 8 << 20
"""Of the states that are read at once: a log may have 700 kB."""


class Found(NamedTuple):
    """Some counters of one server."""

    redis: Primaries
    address: Address
    counters: Sequence[Counter]
    left_out: int = 0
    """Others that may be of the rules that were asked for: their names are digests and do not tell."""


class Counters:
    """The counters of the services that have these settings and these rules."""

    def __init__(self, settings: Settings, book: RuleBook) -> None:
        main, per_second = main_target(settings), per_second_target(settings)
        self._clustered = is_clustered(main, per_second)
        self._prefix = settings.cache_key_prefix
        self._name = (cluster_key if self._clustered else plain_key)(self._prefix)
        self._upstream = settings.key_format is KeyFormat.ENVOYPROXY
        self._book = book
        self._main = Primaries(settings, main)
        self._per_second: Primaries | None = None
        if per_second is not None and per_second.servers != main.servers:
            self._per_second = Primaries(settings, per_second)
        self._touched: set[Primaries] = set()
        self.moved = False
        """Slots have moved while counters were looked for, so that some may have been missed."""

    async def of(self, domain: str, entries: Entries, rules: Sequence[Rule], *, overriding: bool = True) -> list[Found]:
        """The counters that a descriptor has, or would have, of these rules and of limits sent with a request."""
        batches: dict[tuple[Primaries, Address], dict[bytes, Counter]] = {}
        words = " ".join(f"{key}={value}" for key, value in entries)
        for rule in (*rules, *(self._overriding(domain, entries) if overriding else ())):
            assert rule.limit is not None, "an unlimited rule has no counter"
            redis = self._redis_of(rule)
            hit = Hit(rule, counter_key(rule, entries), 0, tally=Tally(), quota=False)
            name, end = self._name(hit), 0
            if self._upstream and is_upstreams(rule):
                now = await self._now(redis, await redis.owner(b""))
                name = UpstreamScript(self._prefix, 0, partial(int, now)).key(hit)
                end = now - now % rule.limit.window + rule.limit.window
            key = name.encode()
            present = None if rule.override else rule
            counter = Counter(key, domain, words, present, rule.algorithm.name, rule.limit, end)
            batches.setdefault((redis, await redis.owner(key)), {}).setdefault(key, counter)
        return [Found(redis, address, tuple(found.values())) for (redis, address), found in batches.items()]

    async def find(self, domain: str, rules: Sequence[Rule] = ()) -> AsyncIterator[Found]:
        """All there are of these rules, or of the domain, also where none of its present rules charges them."""
        for redis in (self._main, self._per_second):
            if redis is None or (rules and all(self._redis_of(rule) is not redis for rule in rules)):
                continue
            seen: set[int] = set()
            addresses = await redis.find()
            layout = redis.layout
            for pattern, names in self._names(redis, domain, rules):
                for address in addresses:
                    now = await self._now(redis, address)
                    async for keys in redis.scan(address, pattern):
                        counters = [names.counter(key, now) for key in _unseen(keys, seen)]
                        found, left_out = _chosen(counters, rules)
                        if found or left_out:
                            yield Found(redis, address, found, left_out)
            if len(addresses) > 1:
                await redis.find()
                self.moved |= redis.layout != layout

    async def contents(self, batch: Found) -> list[tuple[Counter, Content | None]]:
        """What they hold; None for a key that is not there."""
        found: list[tuple[Counter, Content | None]] = []
        for counters in _portions(batch.counters):
            gets = [("GET", counter.key) for counter in counters]
            ttls = [("PTTL", counter.key) for counter in counters]
            time, *replies = await batch.redis.ask(batch.address, [("TIME",), *gets, *ttls])
            now = _microseconds(time)
            for index, counter in enumerate(counters):
                stored, milliseconds = replies[index], replies[len(counters) + index]
                gone = stored is None or milliseconds == _NO_KEY
                found.append((counter, None if gone else content(counter, stored, milliseconds, now)))
        return found

    async def reset(self, batch: Found) -> int:
        """Remove them, so that they are as if untouched; says how many there were."""
        self._touched.add(batch.redis)
        return sum(await batch.redis.ask(batch.address, [("UNLINK", counter.key) for counter in batch.counters]))

    async def announce(self) -> None:
        """Have all services forget whom they remember as refused; `lane.py` reads what is written here."""
        key = resets_key(self._prefix).encode()
        for redis in self._touched:
            address = await redis.owner(key)
            moment = await self._now(redis, address)
            await redis.ask(address, [("SET", key, moment, "PX", DAY // 1000)])

    async def aclose(self) -> None:
        """Close all connections."""
        await self._main.aclose()
        if self._per_second is not None:
            await self._per_second.aclose()

    def _redis_of(self, rule: Rule) -> Primaries:
        return self._per_second if self._per_second is not None and is_per_second(rule) else self._main

    def _overriding(self, domain: str, entries: Entries) -> Iterator[Rule]:
        for unit in Unit:
            yield self._book.overriding(domain, entries, Limit(0, unit, unit.window), 0, Tally())

    def _names(
        self, redis: Primaries, domain: str, rules: Sequence[Rule]
    ) -> Iterator[tuple[str, OwnNames | UpstreamNames]]:
        """The names that counters there may have, each with the pattern that they fit."""

        def is_own(rule: Rule) -> bool:
            return self._redis_of(rule) is redis and not (self._upstream and is_upstreams(rule))

        def is_others(rule: Rule) -> bool:
            return self._redis_of(rule) is redis and is_upstreams(rule)

        if not rules or any(map(is_own, rules)):
            read = (cluster_counter if self._clustered else plain_counter)(self._prefix)
            own = OwnNames(self._book, domain, self._prefix, read, is_own)
            endings = {rule.ending for rule in rules}
            yield own.pattern(endings.pop() if len(endings) == 1 else "", tagged=self._clustered), own
        if self._upstream and (not rules or any(map(is_others, rules))):
            upstream = UpstreamNames(self._book, domain, self._prefix, is_others)
            yield upstream.pattern(), upstream

    @staticmethod
    async def _now(redis: Primaries, address: Address) -> int:
        [time] = await redis.ask(address, [("TIME",)])
        return _microseconds(time)


_NO_KEY: Final = -2


def _unseen(keys: Sequence[bytes], seen: set[int]) -> Iterator[bytes]:
    for key in keys:
        fingerprint = hash(key)  # 64 bits in place of the name: 80 MB for a million, as measured
        if fingerprint not in seen:
            seen.add(fingerprint)
            yield key


def _chosen(counters: Sequence[Counter | None], rules: Sequence[Rule]) -> tuple[list[Counter], int]:
    """Those of the rules, or all; and how many others may be of the rules, but have a digest that does not tell."""
    if not rules:
        return [counter for counter in counters if counter is not None], 0
    wanted = {id(rule) for rule in rules}
    endings = tuple(rule.ending.encode() for rule in rules)
    chosen = [counter for counter in counters if counter is not None and id(counter.rule) in wanted]
    digests = (counter for counter in counters if counter is not None and not counter.descriptor)
    return chosen, sum(counter.key.endswith(endings) for counter in digests)


def _microseconds(time: Sequence[bytes]) -> int:
    return int(time[0]) * SECOND + int(time[1])


def _portions(counters: Sequence[Counter]) -> Iterator[list[Counter]]:
    """The counters, in lists whose states are not too large together."""
    portion: list[Counter] = []
    size = 0
    for counter in counters:
        log = counter.algorithm == "sliding_log"
        size += 7 * (counter.limit.requests + counter.limit.exceed if counter.rule else LONGEST) if log else 100
        if portion and size > _MOST_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(counter)
    if portion:
        yield portion
