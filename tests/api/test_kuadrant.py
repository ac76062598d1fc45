"""Kuadrant's RateLimitService: what its calls charge, and what they say of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import pytest
from google.protobuf.duration_pb2 import Duration

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit
from ratelimit_service.api.generated.kuadrant.service.ratelimit.v1.kuadrantrls_pb2 import (
    CommitRequest,
    CommitResponse,
    ReserveRequest,
    ReserveResponse,
)
from ratelimit_service.api.kuadrant import kuadrant
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.store import Store
from ratelimit_service.system.clock import MINUTE, SECOND
from tests.api.requests import descriptor
from tests.books import book
from tests.loops import run
from tests.redis import Redis
from tests.shop import Shop, entries_of
from tests.stores.redis_stores import opened
from tests.transports.servers import OpenTransport, ask, connect, failure, serving

SERVICE = "/kuadrant.service.ratelimit.v1.RateLimitService"
OK, OVER_LIMIT = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT

RULES = """\
domain: shop
settle: settled
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
    descriptors:
      - key: request_id
        rate_limits:
          - {unit: year, requests_per_unit: 1000, reserve: {id: request_id, hold: 5 minutes, estimate: 40}}
          - {unit: day, requests_per_unit: 10000, name: daily, reserve: {id: request_id, hold: 5 minutes}}
  - key: team
    descriptors:
      - key: request_id
        rate_limits:
          - {unit: year, requests_per_unit: 1000, reserve: {id: request_id, hold: 5 minutes}}
          - {concurrency: 2, hold: 5 minutes, place: request_id}
  - key: request_id
    descriptors:
      - key: model
        rate_limit: {unit: year, requests_per_unit: 5000, algorithm: token_bucket, reserve: {id: request_id, hold: 1m}}
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: bot
    rate_limit: {deny: true}
  - key: staff
    rate_limit: {unlimited: true}
  - key: path
    regex: .*evil.*
    rate_limit: {deny: true}
"""
PLAIN = "{domain: plain, descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 10}}]}"


class Gateway:
    """Calls as Kuadrant's, of descriptors without ids, on counters in memory."""

    def __init__(self) -> None:
        self.shop = Shop(RULES, now=1_790_000_000 * SECOND)
        self.shop.limiter.book = book(RULES, PLAIN)
        self.methods = {method.path: method for method in kuadrant(self.shop.limiter, ResponseEncoder())}

    def call(self, name: str, body: bytes) -> bytes:
        answers: list[bytes | RpcError] = []
        self.methods[f"{SERVICE}/{name}"].call(body, answers.append)
        (answer,) = answers
        if isinstance(answer, RpcError):
            raise answer
        return answer

    def check(self, *texts: str, domain: str = "shop", hits_addend: int = 7) -> RateLimitResponse:
        body = RateLimitRequest(domain=domain, descriptors=of(texts), hits_addend=hits_addend).SerializeToString()
        return RateLimitResponse.FromString(self.call("CheckRateLimit", body))

    def left(self, *texts: str) -> list[int]:
        return [status.limit_remaining for status in self.check(*texts).statuses]

    def report(self, *texts: str, hits_addend: int, domain: str = "shop") -> RateLimitResponse:
        body = RateLimitRequest(domain=domain, descriptors=of(texts), hits_addend=hits_addend).SerializeToString()
        return RateLimitResponse.FromString(self.call("Report", body))

    def reserve(self, *texts: str, amount: int, ttl: int | None = None, domain: str = "shop") -> ReserveResponse:
        until = None if ttl is None else Duration(seconds=ttl)
        asked = ReserveRequest(domain=domain, descriptors=of(texts), amount=amount, ttl=until)
        return ReserveResponse.FromString(self.call("Reserve", asked.SerializeToString()))

    def commit(self, *texts: str, reservation_id: str, amount: int, domain: str = "shop") -> bool:
        asked = CommitRequest(
            domain=domain, descriptors=of(texts), reservation_id=reservation_id, actual_amount=amount
        ).SerializeToString()
        return CommitResponse.FromString(self.call("Commit", asked)).reservation_released


def of(texts: tuple[str, ...]) -> list[RateLimitDescriptor]:
    return [descriptor(*entries_of(text)) for text in texts]


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def test_a_reservation_is_charged_and_what_was_not_used_goes_back_when_it_is_committed(gateway: Gateway) -> None:
    reserved = gateway.reserve("user=ada", amount=300)
    assert (reserved.code, len(reserved.reservation_id)) == (OK, 32)
    assert gateway.left("user=ada") == [700]

    assert gateway.commit("user=ada", reservation_id=reserved.reservation_id, amount=100)

    assert gateway.left("user=ada") == [900]


def test_an_overrun_is_charged_too(gateway: Gateway) -> None:
    reserved = gateway.reserve("user=ada", amount=300)

    assert gateway.commit("user=ada", reservation_id=reserved.reservation_id, amount=850)

    assert gateway.left("user=ada") == [150]


def test_ids_are_new_each_time(gateway: Gateway) -> None:
    ids = {gateway.reserve("user=ada", amount=1).reservation_id, gateway.reserve("user=ada", amount=1).reservation_id}

    assert len(ids) == 2
    assert gateway.left("user=ada") == [998]


def test_a_reservation_that_does_not_fit_has_no_id_and_leaves_nothing(gateway: Gateway) -> None:
    gateway.report("user=ada", hits_addend=900)

    assert gateway.reserve("user=ada", amount=101) == ReserveResponse(code=OVER_LIMIT)

    assert gateway.left("user=ada") == [100]


def test_all_descriptors_reserve_or_none(gateway: Gateway) -> None:
    gateway.report("user=ada", hits_addend=900)

    refused = gateway.reserve("model=big", "user=ada", amount=101)
    also_refused = gateway.reserve("model=big", "bot=x", amount=101)

    assert refused == also_refused == ReserveResponse(code=OVER_LIMIT)
    assert gateway.left("model=big", "user=ada") == [5000, 100]


def test_descriptors_that_reserve_together_are_settled_by_one_id(gateway: Gateway) -> None:
    reserved = gateway.reserve("model=big", "user=ada", amount=400)
    assert gateway.left("model=big", "user=ada") == [4600, 600]

    assert gateway.commit("model=big", "user=ada", reservation_id=reserved.reservation_id, amount=10)

    assert gateway.left("model=big", "user=ada") == [4990, 990]


@pytest.mark.parametrize("reservation_id", ["", "0" * 32, "nobody's"])
def test_without_a_reservation_all_of_it_is_charged(gateway: Gateway, reservation_id: str) -> None:
    assert not gateway.commit("user=ada", reservation_id=reservation_id, amount=100)

    assert gateway.left("user=ada") == [900]


def test_each_commit_without_an_id_is_charged(gateway: Gateway) -> None:
    for _ in range(2):
        gateway.commit("user=ada", reservation_id="", amount=100)

    assert gateway.left("user=ada") == [800]


def test_an_id_that_nobody_has_committed_stays_charged_and_is_unknown_after_its_hold(gateway: Gateway) -> None:
    reserved = gateway.reserve("user=ada", amount=300)
    gateway.shop.clock.now += 5 * MINUTE
    assert gateway.left("user=ada") == [700]

    assert not gateway.commit("user=ada", reservation_id=reserved.reservation_id, amount=100)

    assert gateway.left("user=ada") == [600]


@pytest.mark.parametrize("ttl", [0, 1, 10**9, -1])
def test_an_id_is_good_for_the_hold_of_the_rule_whatever_its_ttl(gateway: Gateway, ttl: int) -> None:
    early, late = (gateway.reserve("user=ada", amount=300, ttl=ttl).reservation_id for _ in range(2))
    gateway.shop.clock.now += 5 * MINUTE - 1
    assert gateway.commit("user=ada", reservation_id=early, amount=100)
    gateway.shop.clock.now += 1

    assert not gateway.commit("user=ada", reservation_id=late, amount=100)


def test_an_id_that_is_committed_twice_is_charged_once(gateway: Gateway) -> None:
    reserved = gateway.reserve("user=ada", amount=300)

    answers = [gateway.commit("user=ada", reservation_id=reserved.reservation_id, amount=100) for _ in range(2)]

    assert answers == [True, False]
    assert gateway.left("user=ada") == [900]


def test_a_commit_of_nothing_gives_all_of_it_back(gateway: Gateway) -> None:
    """As Kuadrant's gateways send it when the answer has failed."""
    reserved = gateway.reserve("user=ada", amount=300)

    assert gateway.commit("user=ada", reservation_id=reserved.reservation_id, amount=0)

    assert gateway.left("user=ada") == [1000]


def test_an_amount_of_0_reserves_nothing_and_is_refused_where_nothing_is_left(gateway: Gateway) -> None:
    """RFC 0021: so a policy turns reservations off."""
    assert gateway.reserve("user=ada", amount=0).code == OK
    gateway.report("user=ada", hits_addend=1001)

    assert gateway.reserve("user=ada", amount=0) == ReserveResponse(code=OVER_LIMIT)


@pytest.mark.parametrize("amount", [501, 2**50 + 1, 2**64 - 1])
def test_an_amount_above_the_most_that_a_request_reserves_is_cut(gateway: Gateway, amount: int) -> None:
    assert gateway.reserve("user=ada", amount=amount).code == OK

    assert gateway.left("user=ada") == [500]


def test_a_cost_above_all_limits_is_charged_and_nothing_is_left(gateway: Gateway) -> None:
    reserved = gateway.reserve("user=ada", amount=1)
    assert gateway.commit("user=ada", reservation_id=reserved.reservation_id, amount=2**64 - 1)

    assert gateway.check("user=ada").overall_code == OVER_LIMIT


def test_a_place_is_given_back_by_the_commit(gateway: Gateway) -> None:
    first, second = (gateway.reserve("team=red", amount=1) for _ in range(2))
    assert gateway.reserve("team=red", amount=1).code == OVER_LIMIT
    gateway.commit("team=red", reservation_id=first.reservation_id, amount=1)

    third = gateway.reserve("team=red", amount=1)

    assert (second.code, third.code) == (OK, OK)
    assert gateway.reserve("team=red", amount=1).code == OVER_LIMIT


def test_a_look_charges_nothing_whatever_it_says_it_costs(gateway: Gateway) -> None:
    costly = descriptor(("user", "ada"))
    costly.hits_addend.value = 50
    refund = descriptor(("ip", "10.0.0.1"))
    refund.is_negative_hits = True
    body = RateLimitRequest(domain="shop", descriptors=[costly, refund], hits_addend=900).SerializeToString()

    first, second = (RateLimitResponse.FromString(gateway.call("CheckRateLimit", body)) for _ in range(2))

    assert (first, first.overall_code) == (second, OK)
    assert [status.limit_remaining for status in first.statuses] == [1000, 100]


def test_a_look_is_refused_when_more_than_the_limit_is_used(gateway: Gateway) -> None:
    codes = []
    for _ in range(2):
        assert gateway.report("ip=x", hits_addend=100) == RateLimitResponse(overall_code=OK)
        codes.append(gateway.check("ip=x").overall_code)

    assert codes == [OK, OVER_LIMIT]


def test_a_report_without_a_number_costs_1(gateway: Gateway) -> None:
    gateway.report("ip=x", hits_addend=0)

    assert gateway.left("ip=x") == [99]


def test_a_look_settles_nothing_even_with_the_mark_of_a_settle(gateway: Gateway) -> None:
    reserved = gateway.reserve("user=ada", amount=300)

    gateway.check(f"user=ada request_id={reserved.reservation_id} settled=1")

    assert gateway.left("user=ada") == [700]


def test_of_descriptors_neither_a_limit_nor_a_cost_of_their_own_is_read(gateway: Gateway) -> None:
    own = descriptor(("user", "ada"))
    own.limit.requests_per_unit, own.limit.unit = 1, RateLimitUnit.DAY
    own.hits_addend.value, own.is_negative_hits = 7, True

    gateway.call("Reserve", ReserveRequest(domain="shop", descriptors=[own], amount=300).SerializeToString())

    assert gateway.left("user=ada") == [700]


def test_a_value_too_long_for_a_regex_is_refused(gateway: Gateway) -> None:
    assert gateway.reserve(f"path=/{'a' * 10_000}", amount=1) == ReserveResponse(code=OVER_LIMIT)


def test_who_sends_an_id_in_the_descriptor_gets_another_one_all_the_same(gateway: Gateway) -> None:
    reserved = gateway.reserve("user=ada request_id=mine", amount=300)
    again = gateway.reserve("user=ada request_id=mine", amount=300)
    assert gateway.left("user=ada") == [400]

    assert gateway.commit("user=ada request_id=x", reservation_id=reserved.reservation_id, amount=0)
    assert gateway.commit("user=ada", reservation_id=again.reservation_id, amount=0)

    assert gateway.left("user=ada") == [1000]


def test_envoys_calls_and_these_share_the_counters(gateway: Gateway) -> None:
    gateway.reserve("user=ada", amount=300)

    gateway.shop.ask("user=ada request_id=7")  # the estimate

    assert gateway.left("user=ada") == [660]


def test_what_nothing_limits_is_allowed(gateway: Gateway) -> None:
    for text, domain in (("staff=x", "shop"), ("other=x", "shop"), ("user=ada", "elsewhere")):
        reserved = gateway.reserve(text, amount=300, domain=domain)
        assert (reserved.code, len(reserved.reservation_id)) == (OK, 32)
        assert not gateway.commit(text, reservation_id=reserved.reservation_id, amount=1, domain=domain)
        assert gateway.report(text, hits_addend=1, domain=domain).overall_code == OK


def failed(call: Callable[[], object]) -> tuple[Status, str]:
    with pytest.raises(RpcError) as raised:
        call()
    return raised.value.status, raised.value.message


def test_a_limit_without_reserve_is_named(gateway: Gateway) -> None:
    status, message = failed(lambda: gateway.reserve("user=ada", "ip=x", amount=10))

    assert status is Status.FAILED_PRECONDITION
    assert message == (
        "the limit shop.ip at 1.yaml:22:5 has no reserve: write reserve: {id: KEY, hold: 5 minutes} below a descriptor "
        "of that key"
    )
    assert gateway.left("user=ada", "ip=x") == [1000, 100]


def test_a_domain_without_settle_is_looked_at_and_no_more(gateway: Gateway) -> None:
    assert gateway.check("user=ada", domain="plain").overall_code == OK

    for call in (
        lambda: gateway.reserve("user=ada", amount=10, domain="plain"),
        lambda: gateway.commit("user=ada", reservation_id="", amount=10, domain="plain"),
        lambda: gateway.report("user=ada", hits_addend=10, domain="plain"),
    ):
        message = 'domain "plain" has no settle: write settle: settled at the top of its file'
        assert failed(call) == (Status.FAILED_PRECONDITION, message)


@pytest.mark.parametrize("name", ["CheckRateLimit", "Report", "Reserve", "Commit"])
def test_what_is_wrong_with_a_call_is_said(gateway: Gateway, name: str) -> None:
    user, many = RateLimitRequest(descriptors=of(("user=ada",))), of(("user=ada",) * 257)
    long = RateLimitRequest(domain="shop", descriptors=[descriptor(("user", "x" * 65_537))])

    for body, problem in (
        (b"\xff", "the message is not a "),
        (user.SerializeToString(), "rate limit domain must not be empty"),
        (RateLimitRequest(domain="shop").SerializeToString(), "rate limit descriptor list must not be empty"),
        (
            RateLimitRequest(domain="shop", descriptors=many).SerializeToString(),
            "the request has 257 descriptors, the maximum is 256 (REQUEST_MAX_DESCRIPTORS)",
        ),
        (long.SerializeToString(), "descriptors[0] has a key or value of 65537 characters, the maximum is 65536"),
    ):
        status, message = failed(partial(gateway.call, name, body))
        assert (status, message[: len(problem)]) == (Status.INVALID_ARGUMENT, problem)
    assert gateway.shop.limiter.totals.service_errors == 5


def test_before_there_are_rules_calls_are_unavailable(gateway: Gateway) -> None:
    gateway.shop.limiter.book = None

    assert failed(lambda: gateway.reserve("user=ada", amount=1))[0] is Status.UNAVAILABLE


def test_rules_that_have_changed_are_read(gateway: Gateway) -> None:
    gateway.reserve("user=ada", amount=1)
    gateway.shop.limiter.book = book(RULES.replace("request_id", "call"))

    assert gateway.reserve("user=eve", amount=200).code == OK
    assert gateway.left("user=eve") == [800]


OpenStore = Callable[[Redis], AbstractAsyncContextManager[Store]]


@asynccontextmanager
async def memory(_: Redis) -> AsyncIterator[Store]:
    yield MemoryStore(100)


@asynccontextmanager
async def in_redis(redis: Redis) -> AsyncIterator[Store]:
    async with opened(f"127.0.0.1:{redis.port}") as store:
        yield store


@pytest.mark.parametrize("store", [memory, in_redis])
def test_clients_call_it_over_both_transports(
    transport: OpenTransport, redis: Redis, store: OpenStore, request: pytest.FixtureRequest
) -> None:
    both = [descriptor((key, request.node.name)) for key in ("model", "user")]

    async def story() -> list[object]:
        async with store(redis) as opened_store:
            limiter = Limiter(opened_store)
            limiter.book = book(RULES)
            async with (
                serving(transport, kuadrant(limiter, ResponseEncoder())) as (_, address),
                connect(address) as channel,
            ):
                asked = ReserveRequest(domain="shop", descriptors=both, amount=300).SerializeToString()
                reserved = ReserveResponse.FromString(await ask(channel, f"{SERVICE}/Reserve", asked))
                found: list[object] = [reserved.code]
                for reservation_id in (reserved.reservation_id, reserved.reservation_id, ""):
                    commit = CommitRequest(
                        domain="shop", descriptors=both, reservation_id=reservation_id, actual_amount=100
                    )
                    answer = await ask(channel, f"{SERVICE}/Commit", commit.SerializeToString())
                    found.append(CommitResponse.FromString(answer).reservation_released)
                report = RateLimitRequest(domain="shop", descriptors=both[1:], hits_addend=500).SerializeToString()
                await ask(channel, f"{SERVICE}/Report", report)
                refused = ReserveRequest(domain="shop", descriptors=both, amount=301).SerializeToString()
                found.append(ReserveResponse.FromString(await ask(channel, f"{SERVICE}/Reserve", refused)))
                look = RateLimitRequest(domain="shop", descriptors=both).SerializeToString()
                looked = RateLimitResponse.FromString(await ask(channel, f"{SERVICE}/CheckRateLimit", look))
                found.append([status.limit_remaining for status in looked.statuses])
                plain = ReserveRequest(domain="shop", descriptors=[descriptor(("ip", "x"))]).SerializeToString()
                code, _ = await failure(channel, f"{SERVICE}/Reserve", plain)
                return [*found, code.name]

    assert run(story()) == [
        *(OK, True, False, False),
        ReserveResponse(code=OVER_LIMIT),
        [4800, 300],
        "FAILED_PRECONDITION",
    ]
