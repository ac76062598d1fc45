"""Counters as requests make them: through a limiter and a RedisStore."""

import asyncio
from typing import NamedTuple

from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Limit, Request
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.stores.hit import Hit
from tests.stores.redis_stores import opened


class Charge(NamedTuple):
    """One request with one descriptor."""

    domain: str
    entries: tuple[tuple[str, str], ...]
    cost: int = 1
    override: Limit | None = None


def descriptor(text: str) -> tuple[tuple[str, str], ...]:
    """`user=ada path=/cart` as entries."""
    pairs = (word.partition("=") for word in text.split())
    return tuple((key, value) for key, _, value in pairs)


async def charge_all(book: RuleBook, url: object, charges: list[Charge], **settings: str) -> list[Hit]:
    """What a service with these settings answers to these requests, one after the other; the tightest of each."""
    async with opened(url, wait=True, **settings) as store:
        limiter = Limiter(store)
        limiter.book = book
        hits: list[Hit] = []
        for charge in charges:
            answer: asyncio.Future[Verdict | RpcError] = asyncio.get_running_loop().create_future()
            asked = Descriptor(charge.entries, charge.cost, override=charge.override)
            limiter.decide_later(limiter.plan(Request(charge.domain, [asked])), answer.set_result)
            verdict = await answer
            assert isinstance(verdict, Verdict), verdict
            hits += [hit for hit in verdict.hits if hit is not None]
        return hits
