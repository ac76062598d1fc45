"""`charge: first` in Redis: exact for all instances together; and while Redis is away."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from ratelimit_service.api.metadata import deciding_rules, rule_metadata
from ratelimit_service.errors import RpcError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.telemetry.tally import Tally
from tests.books import book
from tests.loops import run
from tests.ports import free_port
from tests.redis import Redis
from tests.shop import counted
from tests.stores.redis_stores import Proxy, opened, until

RULES = """
    domain: shop
    settle: done
    descriptors:
      - key: user
        charge: first
        rate_limits:
          - {unit: year, requests_per_unit: 20, name: plan}
          - {unit: year, requests_per_unit: 15, name: credits}
          - {unit: year, requests_per_unit: 10, name: extra, algorithm: token_bucket}
      - key: id
        charge: first
        rate_limits:
          - {unit: year, requests_per_unit: 20, name: plan, reserve: {id: id, hold: 1m}}
          - {unit: year, requests_per_unit: 15, name: credits, reserve: {id: id, hold: 1m}}
    """


async def ask(limiter: Limiter, *entries: tuple[str, str], cost: int = 1) -> Verdict:
    answer: asyncio.Future[Verdict | RpcError] = asyncio.get_running_loop().create_future()
    asked = Request("shop", [Descriptor(entries, cost, hits_addend=cost)])
    limiter.decide_later(limiter.plan(asked), answer.set_result)
    verdict = await answer
    assert isinstance(verdict, Verdict)
    return verdict


def charged_to(verdict: Verdict) -> str:
    return str(rule_metadata(deciding_rules(verdict)).get("charged_to", "refused"))


def tallies(limiter: Limiter, key: str) -> dict[str, Tally]:
    assert limiter.book is not None
    return {rule.name: rule.tally for rule in limiter.book.rules if rule.path[1] == key}


def test_of_all_instances_together_each_limit_is_charged_to_its_last_unit_and_none_above(redis: Redis) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack:
            limiters = []
            for _ in range(3):
                store = opened(f"127.0.0.1:{redis.port}", CACHE_KEY_PREFIX="first:")
                limiters.append(Limiter(await stack.enter_async_context(store)))
                limiters[-1].book = book(RULES)

            found = await asyncio.gather(*(ask(each, ("user", "ada")) for _ in range(25) for each in limiters))

            assert Counter(map(charged_to, found)) == {"plan": 20, "credits": 15, "extra": 10, "refused": 30}
            charged = [sum(tallies(each, "user")[name].within_limit for each in limiters) for name in ("plan", "extra")]
            assert charged == [20, 10]

    run(story())


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("open", ["plan", "plan", "plan"]),
        ("closed", ["refused", "refused", "refused"]),
        ("local", ["plan", "credits", "refused"]),
    ],
)
def test_without_redis_a_policy_charges_or_allows_one_of_the_list(policy: str, expected: list[str]) -> None:
    async def story() -> None:
        async with opened(f"127.0.0.1:{free_port()}", wait=False, ON_STORE_FAILURE=policy) as store:
            limiter = Limiter(store)
            limiter.book = book(
                RULES.replace("          - {unit: year, requests_per_unit: 10, name: extra", "          # ")
            )

            found = [charged_to(await ask(limiter, ("user", "ada"), cost=12)) for _ in range(3)]

            assert found == expected
            allowed = {name: getattr(tally, f"{policy}_allowed") for name, tally in tallies(limiter, "user").items()}
            assert allowed == {name: 12 * expected.count(name) for name in ("plan", "credits")}

    run(story())


def test_a_settle_that_redis_did_not_answer_is_kept_as_one_and_charged_where_it_was_reserved(redis: Redis) -> None:
    async def story() -> None:
        async with Proxy(redis.port) as proxy:
            url = f"127.0.0.1:{proxy.port}"
            async with opened(url, CACHE_KEY_PREFIX="kept first:", ON_STORE_FAILURE="local") as store:
                limiter = Limiter(store)
                limiter.book = book(RULES)
                assert [charged_to(await ask(limiter, ("id", name), cost=10)) for name in "abc"] == [
                    "plan", "plan", "credits"
                ]  # fmt: skip
                await proxy.stop()
                await until(lambda: not store.healthy, "Redis is missed")
                await ask(limiter, ("id", "c"), ("done", "1"), cost=3)
                assert len(store._pending.kept) == 1
                await proxy.__aenter__()
                await until(lambda: store._pending.kept.sent_again == 1, "it was sent again")

                looked = await ask(limiter, ("id", "c"), cost=12)
                settled = [counted(tally).get("settled", 0) for tally in tallies(limiter, "id").values()]

            assert (charged_to(looked), settled) == ("credits", [0, 3])

    run(story())
