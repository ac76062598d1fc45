"""Counters in Redis, looked at and reset from outside the service. Looking charges nothing and writes nothing.

A descriptor's counters are asked for by their names. Those of a rule or a domain are looked for with SCAN, which holds
up nobody, on every primary; what comes twice, because a table grows or a slot moves meanwhile, is seen once.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from ratelimit_service.algorithms.sliding_log import LONGEST
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Entries, Rule, counter_key
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import KeyFormat
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.counters_names import Counter, OwnNames, UpstreamNames
from ratelimit_service.stores.redis.counters_state import Content, content
from ratelimit_service.stores.redis.keys import (
    cluster_counter,
    cluster_key,
    plain_counter,
    plain_key,
    resets_key,
)
from ratelimit_service.stores.redis.primaries import Primaries
from ratelimit_service.stores.redis.target import is_clustered, is_per_second, main_target, per_second_target
from ratelimit_service.stores.redis.upstream import UpstreamScript, is_upstreams
from ratelimit_service.system.address import Address
from ratelimit_service.system.clock import DAY, SECOND
from ratelimit_service.telemetry.tally import Tally

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
