"""Counters in Redis, found, looked at and reset from outside the service, by redis-py.

Looks are hits of cost 0 (`counter_looks.py`): they charge and write nothing.

The primaries are found as the service finds them. The counters of a descriptor are known by their keys. Those of a rule
or a domain are found by SCAN on every primary. A key that SCAN returns twice, because a hash table grows or a slot
moves meanwhile, is used once.

Each node of a Cluster has a client of its own, because redis-py's `RedisCluster` cannot do three things, as of 8.1: log
in as an ACL user without the right to `COMMAND`, follow ASK to a node that has no slots yet (redis-py issue 4015), and
follow a redirection without a host (`cluster-preferred-endpoint-type unknown-endpoint`).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, ResponseError, TryAgainError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ratelimit_service.errors import StoreError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Entries, Rule, counted_entries
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import KeyFormat, RedisType
from ratelimit_service.stores.descriptor import looks
from ratelimit_service.stores.hit import Hit, common_counter
from ratelimit_service.stores.redis.counter_looks import Content, content_of, looks_at
from ratelimit_service.stores.redis.counter_names import (
    Counter,
    EnvoyproxyKeyParser,
    OwnKeyParser,
    at_home,
    pool_in_words,
)
from ratelimit_service.stores.redis.envoyproxy import EnvoyproxyScript, counts_as_envoyproxy, envoyproxy_key
from ratelimit_service.stores.redis.faults import Fault, fault_of_exception, fault_of_reply
from ratelimit_service.stores.redis.keys import (
    SLOTS,
    VERSION,
    cluster_key,
    cluster_second,
    first_counter,
    plain_key,
    plain_second,
    resets_key,
    slot_of,
)
from ratelimit_service.stores.redis.link import MAX_SECONDS, NAME, Command
from ratelimit_service.stores.redis.replies import read_time
from ratelimit_service.stores.redis.script import BatchScript, Script
from ratelimit_service.stores.redis.target import (
    Target,
    has_cluster_names,
    home_target,
    is_clustered,
    is_leased,
    main_target,
    per_second_target,
    redis_of,
)
from ratelimit_service.stores.redis.topology import Sentinels, SlotMap, node_address, read_slot_map
from ratelimit_service.system.address import Address, Unix
from ratelimit_service.system.clock import DAY, Clock

ALLOWED: Final = (
    "~<CACHE_KEY_PREFIX>* +scan +pttl +time +eval +evalsha +get +mget +getrange, for limits of requests at once"
    " +zrange +zcard +zcount +zrangebyscore, to reset +unlink +set, in a Cluster +cluster|slots +asking"
)
"""The rights that an ACL user needs for `counters`."""

_REPLY_SECONDS: Final = 10.0
"""The timeout of all replies to one pipeline."""

_SCAN_COUNT: Final = 1000
"""Keys that one SCAN examines: it blocks a server for less than a millisecond."""

_MAX_REDIRECTIONS: Final = 5
_SLICE: Final = 150
"""Counters that are looked at with one pipeline: two milliseconds of Redis, in which it serves no other client."""

_CLUSTER_SLICE: Final = 50
"""The same in a Cluster, where nearly each counter has a slot of its own, and so a call of its own."""


class Primaries:
    """Clients of the primaries of one Redis. Every method that waits raises StoreError.

    `allowed` says which rights the ACL user needs for what is sent.
    """

    def __init__(self, settings: Settings, target: Target, allowed: str = ALLOWED) -> None:
        self._target = target
        self.clustered = is_clustered(target)
        """Keys of one call are in one slot."""
        self.texts: dict[str | bytes | int, str] = {}
        """Of the scripts that are called, by their names."""
        self._allowed = allowed
        self._clients: dict[Address, Redis] = {}
        self.slots: SlotMap = ()
        """As `discover` has found it. Without a Cluster, one primary has all slots."""
        self._options: dict[str, Any] = {
            "socket_connect_timeout": min(target.timeout, MAX_SECONDS),
            "socket_timeout": None,  # `execute` has one for all replies: one for each takes 10 µs a reply
            "retry": Retry(NoBackoff(), 0),  # an error is shown at once: a person waits
            "protocol": 2,  # 3 needs the right to HELLO
            "driver_info": None,  # needs the right to CLIENT SETINFO
            "redis_connect_func": _log_in,
        }
        if target.password:  # redis-py would send AUTH for a user alone
            self._options |= {"username": target.user or None, "password": target.password}
        if target.certificates is not None:
            self._options |= {
                "ssl": True,
                "ssl_ca_certs": settings.redis_tls_cacert or None,
                "ssl_certfile": settings.redis_tls_client_cert or None,
                "ssl_keyfile": settings.redis_tls_client_key or None,
                "ssl_check_hostname": not settings.redis_tls_skip_hostname_verification,
            }

    async def discover(self) -> list[Address]:
        """Find out which servers are primaries now."""
        match self._target.kind:
            case RedisType.CLUSTER:
                self.slots = await self._read_slots()
            case RedisType.SENTINEL:
                self.slots = [(0, SLOTS - 1, await self._ask_sentinels())]
            case RedisType.SINGLE:
                self.slots = [(0, SLOTS - 1, self._target.servers.addresses[0])]
        return list(dict.fromkeys(address for _, _, address in self.slots))

    async def primary_of(self, key: bytes) -> Address:
        """The primary that has this key; any one for a slot that no node has."""
        if not self.slots:
            await self.discover()
        slot = slot_of(key)
        return next((address for first, last, address in self.slots if first <= slot <= last), self.slots[0][2])

    async def scan(self, address: Address, pattern: str) -> AsyncIterator[list[bytes]]:
        """Lists of all keys there that match the pattern; a key may come more than once."""
        cursor: int | None = None
        while cursor != 0:  # SCAN returns 0 when all keys have been examined
            command = ("SCAN", cursor or 0, "MATCH", pattern, "COUNT", _SCAN_COUNT)
            [(cursor, keys)] = await self.execute(address, [command])
            if keys:
                yield keys

    async def execute(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        """Send the commands to that primary in one pipeline and follow redirections; the replies are in their order.

        A script that a server does not know is sent to it. The reply is None where some keys of a command are still at
        one end of the move of their slot, and others at the other end.
        """
        try:
            async with asyncio.timeout(_REPLY_SECONDS):
                return [
                    await self._follow(address, command, reply) if isinstance(reply, ResponseError) else reply
                    for command, reply in zip(commands, await self._send(address, commands), strict=True)
                ]
        except (RedisError, TimeoutError) as error:
            raise _store_error(address, _fault_of(error), self._allowed) from error

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()

    def _client(self, address: Address) -> Redis:
        client = self._clients.get(address)
        if client is None:
            endpoint: dict[str, Any] = (
                {"unix_socket_path": address.path}
                if isinstance(address, Unix)
                else {"host": address.host, "port": address.port}
            )
            client = self._clients[address] = Redis(
                **endpoint,
                **self._options,
                db=self._target.servers.database,
            )
        return client

    async def _send(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client(address).pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute(raise_on_error=False)

    async def _follow(self, asked: Address, command: Command, error: ResponseError) -> Any:
        """The reply of the node to which `asked` redirects; raises any other error."""
        asking: list[Command] = []
        for _ in range(_MAX_REDIRECTIONS):
            if isinstance(error, TryAgainError):
                return None
            if isinstance(error, NoScriptError):
                command = ("EVAL", self.texts[command[1]], *command[2:])
            elif isinstance(error, AskError):  # the base class of MovedError
                asked = node_address(error.host, error.port, asked)
                # ASK, other than MOVED, holds for one command, and the node takes that only after ASKING.
                asking = [] if isinstance(error, MovedError) else [("ASKING",)]
            else:
                raise error
            *_, reply = await self._send(asked, [*asking, command])
            if not isinstance(reply, ResponseError):
                return reply
            error = reply
        raise error

    async def _read_slots(self) -> SlotMap:
        """The map of the first configured node that replies with one."""
        addresses = self._target.servers.addresses
        failure = StoreError("the cluster has no node")
        for address in random.sample(addresses, len(addresses)):
            try:
                return sorted(await read_slot_map(self._target.at(address)))
            except Fault as fault:
                failure = _store_error(address, fault, self._allowed)
        raise failure

    async def _ask_sentinels(self) -> Address:
        """The primary, as the service asks for it."""
        # Not by redis-py's Sentinel: it asks for all primaries, a right that an ACL user may lack, and passes over one
        # that is taken for dead, though it goes on counting.
        sentinels = Sentinels(self._target)
        try:
            return await sentinels.primary()
        except Fault as fault:
            raise _store_error(self._target.servers.addresses[0], fault, self._allowed) from fault
        finally:
            sentinels.close()


class CounterBatch(NamedTuple):
    """Some counters of one server."""

    redis: Primaries
    address: Address
    counters: Sequence[Counter]
    left_out: int = 0
    """Counters that may be of the rules in question; their keys are digests, which do not tell."""


class _LookCall:
    """Looks that travel in one call of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.looks: list[tuple[Counter, Sequence[Hit]]] = []
        self.hits: list[Hit] = []
        """The same, one after the other."""
        self.names: list[str] = []
        """Of the hits' counters."""

    def add(self, counter: Counter, name: str, key: str) -> None:
        """Look at the counter, which has this name in Redis, and this key in the names of one server."""
        looks = looks_at(counter, key)
        self.looks.append((counter, looks))
        self.hits += looks
        self.names += [name] * len(looks)


class Counters:
    """The counters of services with these settings and these rules, at the time of Redis; in tests of `clock`."""

    def __init__(self, settings: Settings, book: RuleBook, clock: Clock | None = None) -> None:
        main, per_second, home = main_target(settings), per_second_target(settings), home_target(settings)
        self._clustered = has_cluster_names(main, per_second, home)
        self._prefix = settings.cache_key_prefix
        self._key_of = (cluster_key if self._clustered else plain_key)(self._prefix)
        self._second = cluster_second if self._clustered else plain_second
        self._envoyproxy = settings.key_format is KeyFormat.ENVOYPROXY
        self._script = BatchScript(self._prefix, clock, clustered=self._clustered, looking=True)
        self._moment = 0
        """Of Redis: services charge the counters of envoyproxy at a moment of their own."""
        self._envoyproxy_script = EnvoyproxyScript(self._prefix, 0, lambda: self._moment)
        self._book = book
        self._main = Primaries(settings, main)
        # One server in two parts is asked once.
        known = {main.servers: self._main}
        self._per_second, self._home = (
            None if target is None else known.setdefault(target.servers, Primaries(settings, target))
            for target in (per_second, home)
        )
        self._all = tuple(known.values())
        for redis in self._all:
            redis.texts = {script.sha: script.text for script in (self._script, self._envoyproxy_script)}
        self._with_resets: set[Primaries] = set()
        self.slots_moved = False
        """Slots have moved during `find` or `read`: counters may have been missed."""

    async def of_descriptor(
        self, domain: str, entries: Entries, rules: Sequence[Rule], *, overriding: bool = True
    ) -> list[CounterBatch]:
        """The counters that these rules, which have limits, charge for a descriptor.

        With `overriding` also those of limits that may be sent with a request.
        """
        batches: dict[tuple[Primaries, Address], dict[bytes, Counter]] = {}
        moments: dict[Primaries, int] = {}
        for hit in looks(self._book, domain, entries, rules, overriding=overriding):
            rule = hit.rule
            redis = self._redis_of(rule)
            words = " ".join(f"{key}={value}" for key, value in counted_entries(rule, entries))
            name, end = self._key_of(hit), 0
            if self._envoyproxy and counts_as_envoyproxy(rule):
                if redis not in moments:
                    moments[redis] = await self._now(redis, await redis.primary_of(b""))
                now = moments[redis]
                name = envoyproxy_key(self._prefix, hit, now)
                end = now - now % hit.limit.window + hit.limit.window
            key = name.encode()
            present = None if rule.override else rule
            counter = Counter(key, domain, words, present, rule.algorithm.name, hit.limit, end)
            batches.setdefault((redis, await redis.primary_of(key)), {}).setdefault(key, counter)
            if self._home is not None and (home := at_home(counter)) is not None:
                where = self._home, await self._home.primary_of(home.key)
                batches.setdefault(where, {}).setdefault(home.key, home)
        return [CounterBatch(redis, address, tuple(found.values())) for (redis, address), found in batches.items()]

    async def of_pool(self, rule: Rule) -> CounterBatch:
        """The counter of the pool for which the rule stands."""
        assert rule.pool, "it stands for a pool"
        assert rule.limit is not None, "a pool has a counter"
        key = self._key_of(common_counter(rule)).encode()
        redis = self._redis_of(rule)
        words = pool_in_words(rule.pool)
        counter = Counter(key, rule.counter_domain, words, rule, rule.algorithm.name, rule.limit)
        return CounterBatch(redis, await redis.primary_of(key), [counter])

    async def find(self, domain: str, rules: Sequence[Rule] = ()) -> AsyncIterator[CounterBatch]:
        """All counters of these rules; without rules all of the domain, also those that no present rule charges."""
        for redis in self._all:
            if rules and not any(self._has_counters(redis, rule) for rule in rules):
                continue
            seen: set[int] = set()
            addresses = await redis.discover()
            slots = redis.slots
            for parser in self._parsers(redis, domain, rules):
                for address in addresses:
                    now = await self._now(redis, address)
                    async for keys in redis.scan(address, parser.pattern):
                        # A second counter may outlast the first, which is found by it then.
                        counters = [parser.parse(key, now) for key in _unseen(map(first_counter, keys), seen)]
                        selected, left_out = _select(counters, rules)
                        if selected or left_out:
                            yield CounterBatch(redis, address, selected, left_out)
            if len(addresses) > 1:
                await redis.discover()
                self.slots_moved |= redis.slots != slots

    async def read(self, batch: CounterBatch) -> list[tuple[Counter, Content]]:
        """Read the contents of the counters, but of those whose slot moves meanwhile."""
        contents: list[tuple[Counter, Content]] = []
        if any(counter.end for counter in batch.counters):
            self._moment = await self._now(batch.redis, batch.address)
        most = _CLUSTER_SLICE if batch.redis.clustered else _SLICE
        for first in range(0, len(batch.counters), most):
            calls = self._calls(batch.redis, batch.counters[first : first + most])
            sent = [call.script.encode([call]) for call in calls]
            commands: list[Command] = [
                ("EVALSHA", call.script.sha, len(keys), *keys, *arguments)
                for call, (keys, arguments, _) in zip(calls, sent, strict=True)
            ]
            commands += [("PTTL", counter.key) for call in calls for counter, _ in call.looks]
            replies = await batch.redis.execute(batch.address, commands)
            ttls = iter(replies[len(calls) :])
            for call, (_, _, runs), reply in zip(calls, sent, replies, strict=False):
                looks = list(zip(call.looks, ttls, strict=False))
                if reply is None:
                    self.slots_moved = True
                    continue
                try:
                    call.script.decode(reply, runs)
                except Fault as fault:
                    raise StoreError(f"Redis at {batch.address}: {fault}") from fault
                contents += ((counter, content_of(counter, hits, ttl)) for (counter, hits), ttl in looks)
        return contents

    def _calls(self, redis: Primaries, counters: Iterable[Counter]) -> Sequence[_LookCall]:
        """The looks at these counters: in a Cluster a call for each slot."""
        calls: dict[tuple[Script, int], _LookCall] = {}
        for counter in counters:
            script: Script = self._envoyproxy_script if counter.end else self._script
            name = counter.key.decode()
            place = script, slot_of(name) if redis.clustered else 0
            if place not in calls:
                calls[place] = _LookCall(script)
            calls[place].add(counter, name, name[len(self._prefix) + len(VERSION) :])
        return [*calls.values()]

    async def reset(self, batch: CounterBatch) -> int:
        """Remove counters and their blocks, so that the whole limits are free; returns how many counters there were."""
        self._with_resets.add(batch.redis)
        commands: list[Command] = [("UNLINK", counter.key, *self._second_of(counter)) for counter in batch.counters]
        return sum(map(bool, await batch.redis.execute(batch.address, commands)))

    async def announce_resets(self) -> None:
        """Make all services forget which counters were denied: they read this key together with the number of keys."""
        key = resets_key(self._prefix).encode()
        for redis in self._with_resets:
            address = await redis.primary_of(key)
            moment = await self._now(redis, address)
            await redis.execute(address, [("SET", key, moment, "PX", DAY // 1000)])

    async def aclose(self) -> None:
        """Close all connections."""
        for redis in self._all:
            await redis.aclose()

    def _second_of(self, counter: Counter) -> Sequence[str]:
        """The name of the second counter that this one has by itself, if it has one."""
        ending = counter.limit.kind.ending
        return (self._second(counter.key.decode(), ending),) if ending else ()

    def _redis_of(self, rule: Rule) -> Primaries:
        return redis_of(rule, self._main, self._per_second, self._home)

    def _has_counters(self, redis: Primaries, rule: Rule) -> bool:
        """Whether counters of the rule are there; of one that home grants to regions also at home."""
        return self._redis_of(rule) is redis or (redis is self._home and is_leased(rule))

    def _parsers(
        self, redis: Primaries, domain: str, rules: Sequence[Rule]
    ) -> Iterator[OwnKeyParser | EnvoyproxyKeyParser]:
        """A parser for each format in which these rules write keys there."""

        def has_own_keys(rule: Rule) -> bool:
            return self._has_counters(redis, rule) and not (self._envoyproxy and counts_as_envoyproxy(rule))

        def has_envoyproxy_keys(rule: Rule) -> bool:
            return self._redis_of(rule) is redis and counts_as_envoyproxy(rule)

        if not rules or any(map(has_own_keys, rules)):
            endings = {rule.key_suffix for rule in rules}
            ending = endings.pop() if len(endings) == 1 else ""
            yield OwnKeyParser(self._book, domain, self._prefix, has_own_keys, clustered=self._clustered, ending=ending)
        if self._envoyproxy and (not rules or any(map(has_envoyproxy_keys, rules))):
            yield EnvoyproxyKeyParser(self._book, domain, self._prefix, has_envoyproxy_keys)

    @staticmethod
    async def _now(redis: Primaries, address: Address) -> int:
        [time] = await redis.execute(address, [("TIME",)])
        return read_time(time)


async def _log_in(connection: AbstractConnection) -> None:
    """Log in as redis-py does, and set the connection's name if the ACL user may."""
    await connection.on_connect()
    await connection.send_command("CLIENT", "SETNAME", NAME)
    with suppress(ResponseError):
        await connection.read_response()


def _store_error(address: Address, fault: Fault, allowed: str) -> StoreError:
    if fault.cause == "noperm":
        return StoreError(f"Redis at {address}: the ACL user must be allowed: {allowed} ({fault.detail})")
    return StoreError(f"Redis at {address}: {fault}")


def _fault_of(error: RedisError | TimeoutError) -> Fault:
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return Fault("timeout")
    if isinstance(error, ResponseError) or error.status_code is not None:
        # redis-py takes the code off the text of an error for which it has a class.
        return fault_of_reply(ResponseError(f"{error.status_code or ''} {error}".strip()))
    cause = error.__cause__ or error.__context__
    if isinstance(cause, RedisError):  # an error reply to AUTH, which a pipeline raises as a ConnectionError
        return _fault_of(cause)
    return fault_of_exception(cause or ConnectionResetError())


def _unseen(keys: Iterable[bytes], seen: set[int]) -> Iterator[bytes]:
    for key in keys:
        fingerprint = hash(key)  # 64 bits in place of the key: 80 MB for a million, as measured
        if fingerprint not in seen:
            seen.add(fingerprint)
            yield key


def _select(counters: Sequence[Counter | None], rules: Sequence[Rule]) -> tuple[list[Counter], int]:
    """The counters of these rules, or all; and how many more may be theirs, whose keys are digests."""
    if not rules:
        return [counter for counter in counters if counter is not None], 0
    wanted = {id(rule) for rule in rules}
    endings = tuple(rule.key_suffix.encode() for rule in rules)
    selected = [counter for counter in counters if counter is not None and id(counter.rule) in wanted]
    digests = (counter for counter in counters if counter is not None and not counter.descriptor)
    return selected, sum(counter.key.endswith(endings) for counter in digests)
