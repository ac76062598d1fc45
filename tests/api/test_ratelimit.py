"""Requests as bytes: every field is understood, and what is wrong with one is said without charging anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.api.answer import Answer
from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit
from ratelimit_service.api.ratelimit import ShouldRateLimit, decode
from ratelimit_service.clock import HOUR, MINUTE
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.limiter import Limiter
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.stores.memory import MemoryStore
from tests.books import book
from tests.clocks import Clock


def descriptor(*entries: tuple[str, str]) -> RateLimitDescriptor:
    return RateLimitDescriptor(entries=[RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries])


def encoded(*descriptors: RateLimitDescriptor, domain: str = "shop", hits_addend: int = 0) -> bytes:
    return RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits_addend).SerializeToString()


def method() -> tuple[ShouldRateLimit, Limiter]:
    limiter = Limiter(MemoryStore(100, Clock()))
    limiter.book = book("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 1}}]")
    return ShouldRateLimit(limiter, Answer()), limiter


def test_every_field_of_a_request_is_understood() -> None:
    plain = descriptor(("user", "ada"), ("path", ""))
    dear = descriptor(("user", "ada"))
    dear.hits_addend.value = 7
    look = descriptor(("user", "ada"))
    look.hits_addend.value = 0
    refund = descriptor(("user", "ada"))
    refund.hits_addend.value = 2
    refund.is_negative_hits = True
    own = descriptor(("user", "ada"))
    own.limit.requests_per_unit = 9
    own.limit.unit = RateLimitUnit.HOUR

    assert decode(encoded(plain, dear, look, refund, own, hits_addend=5)) == Request(
        "shop",
        [
            Descriptor((("user", "ada"), ("path", "")), 5),
            Descriptor((("user", "ada"),), 7, 7),
            Descriptor((("user", "ada"),), 0, 0),
            Descriptor((("user", "ada"),), -2, 2),
            Descriptor((("user", "ada"),), 5, None, Limit(9, Unit.HOUR, HOUR)),
        ],
        5,
    )


def test_a_request_that_names_no_cost_costs_one() -> None:
    assert [found.cost for found in decode(encoded(descriptor(("user", "ada")))).descriptors] == [1]


def test_an_override_may_span_several_units() -> None:
    own = descriptor(("user", "ada"))
    own.limit.requests_per_unit = 1
    own.limit.unit = RateLimitUnit.MINUTE
    own.limit.unit_multiplier.value = 5

    assert decode(encoded(own)).descriptors[0].override == Limit(1, Unit.MINUTE, 5 * MINUTE)


def costing(cost: int) -> RateLimitDescriptor:
    made = descriptor(("user", "ada"))
    made.hits_addend.value = cost
    return made


def overriding(unit: int, multiplier: int | None = None) -> RateLimitDescriptor:
    made = descriptor(("user", "ada"))
    made.limit.unit = unit  # type: ignore[assignment]  # any number can come over the wire
    if multiplier is not None:
        made.limit.unit_multiplier.value = multiplier
    return made


UNITS = "SECOND (1), MINUTE (2), HOUR (3), DAY (4), MONTH (5), YEAR (6), WEEK (7)"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (encoded(descriptor(("user", "ada")), domain=""), "rate limit domain must not be empty"),
        (encoded(), "rate limit descriptor list must not be empty"),
        (
            encoded(descriptor(("user", "ada")), costing(2**32)),
            "descriptors[1].hits_addend is 4294967296, the most is 4294967295",
        ),
        (
            encoded(costing(2**64 - 1)),
            "descriptors[0].hits_addend is 18446744073709551615, the most is 4294967295",
        ),
        (encoded(overriding(0)), f"descriptors[0].limit.unit is 0, not one of {UNITS}"),
        (encoded(overriding(99)), f"descriptors[0].limit.unit is 99, not one of {UNITS}"),
        (encoded(overriding(1, 0)), "descriptors[0].limit.unit_multiplier is 0, too few or too many"),
        (encoded(overriding(6, 2**32 - 1)), "descriptors[0].limit.unit_multiplier is 4294967295, too few or too many"),
        (
            encoded(*[descriptor(("user", "ada"))] * 1001),
            "the request has 1001 descriptors, the most is 1000",
        ),
        (
            encoded(descriptor(*[("user", "ada")] * 1001)),
            "descriptors[0] has 1001 entries, the most is 1000",
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_said(body: bytes, message: str) -> None:
    tested, limiter = method()
    answers: list[bytes | RpcError] = []

    tested.call(body, answers.append)

    (error,) = answers
    assert isinstance(error, RpcError)
    assert (error.status, error.message) == (Status.INVALID_ARGUMENT, message)
    assert limiter.store.counters == 0
    assert limiter.totals.service_errors == 1


@pytest.mark.parametrize(
    "body",
    [
        encoded(descriptor(("user", "ada")))[:-1],
        b"\x0a\x04sh\xffp\x12\x00",
        b"\xff" * 100,
        b"\x12" * 1000,
    ],
    ids=["truncated", "not utf-8", "no tag", "nested"],
)
def test_what_is_no_request_is_refused_as_such(body: bytes) -> None:
    with pytest.raises(RpcError, match="the message is not a RateLimitRequest") as caught:
        decode(body)

    assert caught.value.status is Status.INVALID_ARGUMENT


@given(st.binary())
def test_any_bytes_are_a_request_or_an_invalid_argument(body: bytes) -> None:
    tested, _ = method()
    answers: list[bytes | RpcError] = []

    tested.call(body, answers.append)

    (answer,) = answers
    assert isinstance(answer, bytes) or answer.status is Status.INVALID_ARGUMENT


def test_binary_and_huge_values_are_counted_like_any_other() -> None:
    tested, limiter = method()
    answers: list[bytes | RpcError] = []

    for value in ("\x00\x01|=~%", "x" * 1_000_000, "x" * 1_000_000):
        tested.call(encoded(descriptor(("user", value))), answers.append)

    codes = [RateLimitResponse.FromString(answer).overall_code for answer in answers if isinstance(answer, bytes)]
    assert codes == [RateLimitResponse.OK, RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT]
    assert limiter.store.counters == 2


def test_calls_are_counted_and_timed() -> None:
    tested, _ = method()

    tested.call(encoded(descriptor(("user", "ada"))), lambda _: None)
    tested.call(b"", lambda _: None)

    assert tested.calls == 2
    assert tested.latency.calls == 2
