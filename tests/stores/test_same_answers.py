"""Whatever the rules and the requests are, a limiter answers and counts the same with every store.

The rules are drawn from all options, in any combination. Windows are years, so that no time passes in them; those of a
second let nothing through, so that it does not matter when they end.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import uvloop
from hypothesis import settings

from ratelimit_service.algorithms import NAMES
from ratelimit_service.errors import RpcError, RulesError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import MAX_REQUESTS, NEVER, Descriptor, Limit, Request, Unit
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.store import RedisStore
from ratelimit_service.stores.store import Store
from ratelimit_service.system.clock import DAY, SECOND
from ratelimit_service.telemetry.tally import Tally
from tests.books import book
from tests.clocks import Clock
from tests.redis import Redis, start_redis
from tests.stores.redis_groups import start_cluster
from tests.stores.redis_stores import opened
from tests.verdicts import kept

BOOKS = settings().max_examples // 2
REQUESTS = 40

KEYS = ["user", "a_b", "x|y", "ö"]
VALUES = ["ada", "adam", "", "z|", "{q}", "%", "10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "2001:DB8::2"]
FITS: Sequence[Mapping[str, Any]] = [
    {},
    {"prefix": {"ipv4": 24, "ipv6": 64}},
    *({"value": value} for value in ("ada", "ad*", "*")),
    {"values": ["ada", "z|", "2001:db8::1"]},
    {"values": ["ada", "z|", "2001:db8::1"], "not": True},
    {"value": "ad*", "not": True},
    {"cidr": ["10.0.0.0/8", "2001:db8::/32"], "priority": 1},
    {"cidr": "2001:db8::/32", "prefix": {"ipv6": 64}, "label": "v6"},
]


def a_limit(random: Random, taken: set[tuple[str, str]]) -> dict[str, Any]:
    while True:
        algorithm, unit = random.choice(NAMES), random.choice(["second", "year", "2 years", "50 years"])
        if (algorithm, unit) not in taken:
            break
    taken.add((algorithm, unit))
    limit: dict[str, Any] = {
        "unit": unit,
        "requests_per_unit": random.choice([0, 1, 2, 3, 5, 8]),
        "algorithm": algorithm,
    }
    if unit == "second":
        return {**limit, "requests_per_unit": 0}
    if algorithm == "fixed_window" and unit == "year" and random.random() < 0.3:
        del limit["unit"]
        zone = random.choice(["UTC", "Europe/Berlin"])
        return {**limit, "calendar": {"unit": "year", "zone": zone}, "count_refused": random.random() < 0.5}
    options: dict[str, Sequence[Any]] = {
        "burst": [1, 2, 4] if algorithm in {"token_bucket", "leaky_bucket"} and limit["requests_per_unit"] else [],
        "parts": [2, 7, 60] if algorithm == "sub_windows" else [],
        "anchor": ["first_request"] if algorithm == "fixed_window" else [],
        "count_refused": [True, False],
        "exceed": [1, 2, "50%"],
        "block_for": ["10 years", "50 years"],
        "name": ["a", "b"],
        "replaces": [[{"name": "c"}], [{"name": "a"}], [{"name": "b"}, {"name": "c"}]],
    }
    limit |= {key: random.choice(values) for key, values in options.items() if values and random.random() < 0.3}
    return {**limit, "block_up_to": "90 years"} if "block_for" in limit and random.random() < 0.5 else limit


def _for_first(name: str, limit: dict[str, Any]) -> dict[str, Any]:
    """The limit as one of a list with `charge: first`."""
    left = {key: value for key, value in limit.items() if key not in {"count_refused", "block_for", "block_up_to"}}
    return {**left, "name": name}


def some_places(random: Random, key: str) -> dict[str, Any]:
    return {"concurrency": random.choice([0, 1, 2, 3, 5]), "hold": "100 years", "place": key}


def some_descriptors(random: Random, deeper: bool) -> list[dict[str, Any]]:
    found = []
    for key in random.sample(KEYS, random.randint(1, len(KEYS))):
        descriptor: dict[str, Any] = {"key": key, **random.choice(FITS)}
        taken: set[tuple[str, str]] = set()
        match random.randrange(5):
            case 0:
                descriptor["rate_limits"] = [a_limit(random, taken) for _ in range(random.randint(1, 3))]
                if random.random() < 0.3:
                    descriptor["charge"] = "first"
                    descriptor["rate_limits"] = [*map(_for_first, "xab", descriptor["rate_limits"])]
            case 1:
                descriptor["rate_limit"] = random.choice([{"unlimited": True}, {"deny": True}, None])
            case _:
                descriptor["rate_limit"] = a_limit(random, taken)
        if "value" not in descriptor and random.random() < 0.3:  # refused, and drawn again, where values are compared
            if "rate_limits" in descriptor:
                descriptor["rate_limits"].insert(random.randrange(2), some_places(random, key))
            else:
                descriptor["rate_limit"] = some_places(random, key)
        for flag in ("shadow_mode", "quota_mode", "detailed_metric"):
            descriptor[flag] = random.random() < 0.2
        sharing = "prefix" not in descriptor and (
            "*" in descriptor.get("value", "") or {"values", "cidr", "not"} & descriptor.keys()
        )
        descriptor["share_threshold"] = bool(sharing) and random.random() < 0.5
        descriptor.setdefault("charge", random.choice([None, "each", "together"]))
        if deeper:
            descriptor["descriptors"] = some_descriptors(random, False)
        found.append(descriptor)
    return found


def a_file(random: Random) -> str:
    """A rules file in which nothing is wrong."""
    while True:
        domain, charge = random.choice(["shop", "a|b=c~", "{ü}", "*"]), random.choice([None, "each", "together"])
        file: dict[str, Any] = {"domain": domain, "charge": charge, "descriptors": some_descriptors(random, True)}
        if random.random() < 0.3:
            file["otherwise"] = {
                "rate_limit": a_limit(random, set()),
                **{flag: random.random() < 0.3 for flag in ("shadow_mode", "detailed_metric", "share_threshold")},
            }
        if random.random() < 0.3:
            file["lookup"] = {"from": "users.csv", "key": "user", "as": "a_b", "else": random.choice([None, "ada"])}
        text = json.dumps(file)
        try:
            a_book(text)
        except RulesError:
            continue
        return text


def a_book(file: str) -> RuleBook:
    return book(file, read_data=lambda _: b"ada,adam\nz|,z|\n")


def a_request(random: Random, domain: str) -> Request:
    if domain == "*":
        domain = random.choice(["{ü}", "a|b=c~", "x" * 600, "*"])
    descriptors = []
    for _ in range(random.choice([1, 1, 2, 3, 5])):
        entries = tuple((random.choice(KEYS), random.choice(VALUES)) for _ in range(random.choice([1, 1, 2])))
        cost = random.choice([1, 1, 1, 1, 2, 3, 0, -1, -2, 5, MAX_REQUESTS])
        override = None
        if random.random() < 0.2:
            override = Limit(random.choice([0, 1, 4]), Unit.YEAR, random.choice([1, 1, 2]) * Unit.YEAR.window)
        descriptors.append(Descriptor(entries, cost, override=override))
    return Request(domain, [*descriptors, *random.choice([[], [], [], descriptors[:1]])])


class Service:
    """A limiter with these rules."""

    def __init__(self, store: Store, rules: RuleBook, **modes: Any) -> None:
        self._limiter = Limiter(store, **modes)
        self._limiter.book = rules

    async def ask(self, request: Request) -> Any:
        """What is answered, without the times."""
        plan = self._limiter.plan(request)
        if not plan.charged:
            return seen(self._limiter.decide_now(plan, kept, b""))
        answer: asyncio.Future[Verdict | RpcError] = asyncio.get_running_loop().create_future()
        self._limiter.decide_later(plan, answer.set_result)
        return seen(await answer)

    def counted(self) -> Mapping[Any, Sequence[int]]:
        """All numbers of all tallies."""
        book = self._limiter.book
        assert book is not None
        return {
            (rule.path, path): [getattr(tally, number) for number in Tally.__slots__]
            for rule in book.rules
            for path, tally in (rule.tallies.items() if rule.tallies else [((), rule.tally)])
        }


def seen(verdict: Verdict | RpcError | None) -> Any:
    assert isinstance(verdict, Verdict), verdict
    return verdict.allowed, [hit and (*_seen(hit), [_seen(each) for each in hit.beside]) for hit in verdict.hits]


def _seen(hit: Hit) -> tuple[Any, ...]:
    decision = hit.decision
    never = decision.retry_after == NEVER
    return hit.rule.path, hit.over, hit.spared, hit.remaining, decision.allowed, decision.over, never


class Kind(NamedTuple):
    """A way to have Redis."""

    url: str
    environ: dict[str, str]
    servers: Sequence[Redis]


@contextmanager
def started(folder: Path, kind: str) -> Iterator[Kind]:
    if kind == "cluster":
        with start_cluster(folder) as nodes:
            yield Kind(nodes.url, {"REDIS_TYPE": "cluster"}, nodes.redises)
        return
    with start_redis(folder / "main") as main, start_redis(folder / "second") as second:
        environ: dict[str, dict[str, str]] = {
            "single": {},
            "two servers": {"REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": str(second.socket)},
            "envoyproxy's names": {"KEY_FORMAT": "envoyproxy"},
        }
        yield Kind(str(main.socket), environ[kind], [main, second])


async def agree(store: RedisStore, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - the seed decides the rules and the requests
    file = a_file(random)
    modes = {mode: random.random() < 0.1 for mode in ("shadow_mode", "quota_mode")}
    in_memory, in_redis = (Service(of, a_book(file), **modes) for of in (MemoryStore(10_000), store))
    for _ in range(REQUESTS):
        request = a_request(random, json.loads(file)["domain"])

        assert await in_redis.ask(request) == await in_memory.ask(request), (seed, file, request)
    assert in_redis.counted() == in_memory.counted(), (seed, file)


@pytest.mark.parametrize("kind", ["single", "two servers", "envoyproxy's names", "cluster"])
def test_every_store_answers_and_counts_alike(tmp_path: Path, kind: str) -> None:
    async def story(of: Kind) -> None:
        # Without the denied cache: it answers a repeat with the decision of the first denial.
        async with opened(of.url, wait=True, STORE_DEADLINE="20s", REFUSED_MAX_COUNTERS="0", **of.environ) as store:
            for seed in range(BOOKS):
                for server in of.servers:
                    server.cli("FLUSHALL")
                await agree(store, seed)

    with started(tmp_path, kind) as of:
        uvloop.run(story(of))


def test_a_domain_that_settles_answers_and_counts_what_is_no_settle_as_one_that_does_not() -> None:
    """Under the same names of counters, and with the same states."""

    async def story(seed: int) -> None:
        random = Random(seed)  # noqa: S311 - the seed decides the rules and the requests
        file = a_file(random)
        clock = Clock(1_790_000_000 * SECOND)
        stores = [MemoryStore(10_000, clock) for _ in range(2)]
        texts = (file, json.dumps({**json.loads(file), "settle": "settled"}))
        plain, settling = (Service(store, a_book(text)) for store, text in zip(stores, texts, strict=True))
        for _ in range(REQUESTS):
            clock.advance(random.choice([0, 1, SECOND, DAY]))
            request = a_request(random, json.loads(file)["domain"])

            assert await settling.ask(request) == await plain.ask(request), (seed, file, request)
        assert settling.counted() == plain.counted()
        assert stores[1]._segments == stores[0]._segments

    for seed in range(BOOKS):
        uvloop.run(story(seed))
