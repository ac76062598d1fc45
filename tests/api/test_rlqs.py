"""RLQS on the wire: what an Envoy is told, by the contract and over both transports."""

from typing import Any

import grpc
import pytest

from ratelimit_service.api.generated.envoy.service.rate_limit_quota.v3.rlqs_pb2 import (
    BucketId,
    RateLimitQuotaResponse,
    RateLimitQuotaUsageReports,
)
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_strategy_pb2 import RateLimitStrategy
from ratelimit_service.api.method import Receiver
from ratelimit_service.api.rlqs import PATH, QuotaService, read_id
from ratelimit_service.errors import Status
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.limiter.quotas import DEFAULT_QUOTA_BOUNDS, MAX_STREAMS, QuotaBounds, Quotas
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.system.clock import SECOND
from tests.api.streams import Sent
from tests.books import book
from tests.clocks import Clock
from tests.loops import run
from tests.transports.servers import OpenTransport, connect, serving

RULES = """
    domain: shop
    descriptors:
      - key: plan
        value: free
        descriptors:
          - key: user
            rate_limit: {unit: minute, requests_per_unit: 1000}
      - key: user
        descriptors:
          - key: path
            value: /closed
            rate_limit: {deny: true}
          - key: path
            value: /open
            rate_limit: {unlimited: true}
      - key: second
        rate_limit: {unit: second, requests_per_unit: 1000}
      - key: bucket
        rate_limit: {unit: minute, requests_per_unit: 1000, algorithm: token_bucket}
      - key: sliding
        rate_limit: {unit: minute, requests_per_unit: 1000, algorithm: sliding_window}
      - key: watched
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 1}
    """

ADA = {"plan": "free", "user": "ada"}


class Service:
    """The service with a clock that stands still 20 seconds before the end of a minute, and one Envoy."""

    def __init__(self, bounds: QuotaBounds = DEFAULT_QUOTA_BOUNDS) -> None:
        self.clock = Clock(40 * SECOND)
        self.store = MemoryStore(1000, self.clock)
        self.limiter = Limiter(self.store)
        self.limiter.book = book(RULES)
        self.quotas = Quotas(self.limiter, read_id, clock=self.clock, bounds=bounds)
        self.service = QuotaService(self.quotas)
        self.sent = Sent()
        self.envoy = self.open(self.sent)

    def open(self, sent: Sent) -> Receiver:
        (method,) = self.service.streams()
        return method.open(sent)

    def report(self, bucket: dict[str, str], denied: int = 1, elapsed: int = 0) -> list[Any]:
        """The actions that answer a report of one bucket."""
        self.envoy.receive(report(bucket, denied, elapsed))
        messages, self.sent.messages = self.sent.messages, []
        return [action for message in messages for action in RateLimitQuotaResponse.FromString(message).bucket_action]


def report(bucket: dict[str, str], denied: int = 1, elapsed: int = 0) -> bytes:
    reports = RateLimitQuotaUsageReports(domain="shop")
    usage = reports.bucket_quota_usages.add(num_requests_denied=denied)
    usage.bucket_id.bucket.update(bucket)
    usage.time_elapsed.seconds = elapsed
    return reports.SerializeToString()


def test_a_lease_is_a_denial_and_a_bucket_without_a_refill_in_one_message() -> None:
    service = Service()

    denial, lease = service.report(ADA)

    assert denial.bucket_id == lease.bucket_id == BucketId(bucket=ADA)
    assert denial.quota_assignment_action.rate_limit_strategy.blanket_rule == RateLimitStrategy.DENY_ALL
    bucket = lease.quota_assignment_action.rate_limit_strategy.token_bucket
    assert (bucket.max_tokens, bucket.tokens_per_fill.value) == (50, 0)
    assert bucket.HasField("tokens_per_fill")
    assert bucket.fill_interval.seconds >= 1
    assert lease.quota_assignment_action.assignment_time_to_live.seconds == 19
    assert not lease.quota_assignment_action.assignment_time_to_live.nanos


def test_a_bucket_is_the_counter_of_the_descriptor_in_the_order_of_the_rules() -> None:
    service = Service()

    service.report(ADA)

    plan = service.limiter.plan(Request("shop", [Descriptor((("plan", "free"), ("user", "ada")), 950)]))
    assert service.limiter.decide_now(plan, lambda verdict, _: verdict.allowed, b"")
    plan = service.limiter.plan(Request("shop", [Descriptor((("plan", "free"), ("user", "ada")))]))
    assert not service.limiter.decide_now(plan, lambda verdict, _: verdict.allowed, b"")


@pytest.mark.parametrize(
    ("bucket", "rule"),
    [
        ({"user": "ada", "path": "/open"}, RateLimitStrategy.ALLOW_ALL),
        ({"user": "ada", "path": "/closed"}, RateLimitStrategy.DENY_ALL),
        ({"unknown": "x"}, RateLimitStrategy.ALLOW_ALL),
        ({"watched": "x"}, RateLimitStrategy.ALLOW_ALL),
    ],
)
def test_what_no_counter_decides_is_a_blanket_rule(bucket: dict[str, str], rule: int) -> None:
    (action,) = Service().report(bucket)

    assert action.quota_assignment_action.rate_limit_strategy.blanket_rule == rule
    assert action.quota_assignment_action.assignment_time_to_live.seconds == 3600


@pytest.mark.parametrize("key", ["second", "bucket"])
def test_a_rule_that_cannot_be_assigned_gets_no_assignment(key: str, caplog: pytest.LogCaptureFixture) -> None:
    service = Service()

    assert service.report({key: "x"}) == []
    assert service.quotas.refused == 1
    assert "gives no quotas to Envoys" in caplog.text


def test_a_sliding_window_is_assigned_too() -> None:
    assert len(Service().report({"sliding": "x"})) == 2


def test_near_the_end_of_a_window_nothing_is_assigned_and_nothing_stays_charged() -> None:
    service = Service()
    service.clock.advance(19 * SECOND)

    assert service.report(ADA) == []
    assert service.store.counters == 0


def test_a_limit_that_is_used_up_denies_until_its_window_ends() -> None:
    service = Service()
    service.report(ADA)
    other = Sent()
    service.envoy, service.sent = service.open(other), other
    for seconds in range(1, 5):
        service.clock.advance(SECOND)
        service.report(ADA, 100_000, seconds)
    service.envoy, service.sent = service.open(third := Sent()), third

    (action,) = service.report(ADA, 100, 1)[-1:]

    assert action.quota_assignment_action.rate_limit_strategy.blanket_rule == RateLimitStrategy.DENY_ALL


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\xff"])
def test_a_message_that_is_none_ends_the_stream(message: bytes) -> None:
    service = Service()

    service.envoy.receive(message)

    assert service.sent.error is not None
    assert service.sent.error.status is Status.INVALID_ARGUMENT


def test_streams_are_bounded_and_one_that_ends_makes_room() -> None:
    service = Service()
    calls = [service.open(Sent()) for _ in range(MAX_STREAMS - 1)]

    service.open(refused := Sent())
    calls[0].closed()
    service.open(accepted := Sent())

    assert refused.error is not None
    assert refused.error.status is Status.RESOURCE_EXHAUSTED
    assert not accepted.finished


@pytest.mark.parametrize(("bounds", "kept"), [(QuotaBounds(buckets=10), 5), (QuotaBounds(id_bytes=400), 9)])
def test_buckets_of_a_stream_are_bounded_by_half_of_what_is_free(bounds: QuotaBounds, kept: int) -> None:
    service = Service(bounds)

    for number in range(20):
        service.report({"unknown": f"{number:05}"})
    other = Sent()
    envoy = service.open(other)
    for number in range(20):
        envoy.receive(report({"unknown": f"{number:05}"}))

    assert len(service.sent.messages) == 0
    assert service.quotas.buckets - len(other.messages) == kept
    service.envoy.closed()
    envoy.closed()
    assert service.quotas.buckets == 0


def test_a_flood_of_reports_ends_its_stream_alone() -> None:
    service = Service()
    reports = RateLimitQuotaUsageReports(domain="shop")
    for number in range(5000):
        reports.bucket_quota_usages.add().bucket_id.bucket.update({"unknown": f"{number}"})
    message = reports.SerializeToString()

    for _ in range(4):
        service.envoy.receive(message)

    assert service.sent.error is not None
    assert service.sent.error.status is Status.RESOURCE_EXHAUSTED
    service.envoy.closed()
    assert service.quotas.buckets == 0


def test_the_stop_ends_all_streams_and_later_ones() -> None:
    service = Service()

    service.service.finish()
    service.open(late := Sent())

    assert service.sent.error is not None
    assert late.error is not None
    assert service.sent.error.status is late.error.status is Status.UNAVAILABLE


def test_an_envoy_is_answered_over_the_wire(transport: OpenTransport) -> None:
    async def story() -> RateLimitQuotaResponse:
        service = Service()
        async with serving(transport, [], service.service.streams()) as (_, address), connect(address) as channel:
            talk: Any = channel.stream_stream(PATH, None, RateLimitQuotaResponse.FromString)
            call = talk()
            await call.write(report(ADA))
            answer: RateLimitQuotaResponse = await call.read()
            service.service.finish()
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            return answer

    assert len(run(story()).bucket_action) == 2
