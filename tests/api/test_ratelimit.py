"""Calls from bytes to bytes: what is wrong with one charges nothing, and the same bytes are planned once."""

import gc
import tracemalloc
from collections.abc import Sequence

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit
from ratelimit_service.api.ratelimit import MAX_CACHED_SIZE, MAX_SEEN, PLANS_BYTES, ShouldRateLimit
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.stores.memory import MemoryStore
from tests.api.requests import descriptor, encoded
from tests.books import book
from tests.clocks import Clock


def method(plans_bytes: int = PLANS_BYTES) -> tuple[ShouldRateLimit, Limiter]:
    limiter = Limiter(MemoryStore(100, Clock()))
    limiter.book = book("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 1}}]")
    return ShouldRateLimit(limiter, ResponseEncoder(), plans_bytes=plans_bytes), limiter


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


def bringing(requests: int) -> RateLimitDescriptor:
    """With a limit of so many."""
    made = overriding(RateLimitUnit.DAY)
    made.limit.requests_per_unit = requests
    return made


UNITS = "SECOND (1), MINUTE (2), HOUR (3), DAY (4), MONTH (5), YEAR (6), WEEK (7)"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (encoded(descriptor(("user", "ada")), domain=""), "rate limit domain must not be empty"),
        (encoded(), "rate limit descriptor list must not be empty"),
        (encoded(overriding(0)), f"descriptors[0].limit.unit is 0, not one of {UNITS}"),
        (encoded(overriding(99)), f"descriptors[0].limit.unit is 99, not one of {UNITS}"),
        (encoded(overriding(1, 0)), "descriptors[0].limit.unit_multiplier is 0, out of range"),
        (encoded(overriding(6, 2**32 - 1)), "descriptors[0].limit.unit_multiplier is 4294967295, out of range"),
        (
            encoded(*[descriptor(("user", "ada"))] * 257),
            "the request has 257 descriptors, the maximum is 256 (REQUEST_MAX_DESCRIPTORS)",
        ),
        (
            encoded(descriptor(*[("user", "ada")] * 1537)),
            "the descriptors have 1537 entries, the maximum is 1536 (REQUEST_MAX_ENTRIES)",
        ),
        (
            encoded(*[descriptor(*[("user", "ada")] * 6)] * 255, descriptor(*[("user", "ada")] * 7)),
            "the descriptors have 1537 entries, the maximum is 1536 (REQUEST_MAX_ENTRIES)",
        ),
        (
            encoded(descriptor(("user", "x" * 65_537))),
            "descriptors[0] has a key or value of 65537 characters, the maximum is 65536 (REQUEST_MAX_VALUE_LENGTH)",
        ),
        (
            encoded(descriptor(("user", "ada")), descriptor(("é" * 65_537, ""))),
            "descriptors[1] has a key or value of 65537 characters, the maximum is 65536 (REQUEST_MAX_VALUE_LENGTH)",
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


def test_all_that_a_request_may_have_is_answered() -> None:
    """Envoy Gateway has policies of 256 rules."""
    tested, _ = method()
    asked = [bringing(1 + index) for index in range(256)]
    for index, each in enumerate(asked):
        each.entries[0].value = f"v{index}"
        for _ in range(5):
            each.entries.add(key="more", value="x")
    answers: list[bytes | RpcError] = []

    tested.call(encoded(*asked), answers.append)

    (answer,) = answers
    assert isinstance(answer, bytes)
    found = RateLimitResponse.FromString(answer)
    assert [status.current_limit.requests_per_unit for status in found.statuses] == [*range(1, 257)]
    assert found.overall_code == RateLimitResponse.OK


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

    for value in ("\x00\x01|=~%", "x" * 60_000, "x" * 60_000):
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


def test_the_same_bytes_are_decided_anew_each_time() -> None:
    tested, _ = method()
    body = encoded(descriptor(("user", "ada")))

    assert codes(tested, [body] * 4) == ["OK", "OVER_LIMIT", "OVER_LIMIT", "OVER_LIMIT"]


def test_bytes_that_were_seen_before_are_decided_by_the_rules_of_today() -> None:
    tested, limiter = method()
    body = encoded(descriptor(("user", "ada")))
    before = codes(tested, [body, body, body])
    limiter.book = book("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 9}}]")

    after = codes(tested, [body, body])

    assert before == ["OK", "OVER_LIMIT", "OVER_LIMIT"]
    assert after == ["OK", "OK"]


def test_what_is_asked_once_is_not_remembered() -> None:
    tested, _ = method()

    for number in range(MAX_SEEN + 10):
        tested.call(encoded(descriptor(("other", str(number)))), lambda _: None)

    assert not tested._plans
    assert len(tested._seen) <= MAX_SEEN


def call_twice(tested: ShouldRateLimit, body: bytes) -> None:
    for _ in range(2):
        tested.call(body, lambda _: None)


def test_what_is_asked_again_is_remembered_unless_it_is_long_or_has_a_limit_of_its_own() -> None:
    tested, _ = method()

    for body in (encoded(descriptor(("user", "x" * MAX_CACHED_SIZE))), encoded(overriding(1)), encoded(costing(2))):
        call_twice(tested, body)

    assert list(tested._plans) == [encoded(costing(2))]


@pytest.mark.parametrize("key", ["user", "other"])
@pytest.mark.parametrize("count", [1, 8, 100])
def test_plans_take_no_more_bytes_than_they_may(key: str, count: int) -> None:
    """Whether rules fit or not, however many descriptors a request has; within a fourth, and the oldest go first."""
    most = 2 * 1024 * 1024
    tested, _ = method(plans_bytes=most)
    bodies = [encoded(*[descriptor((key, f"{number:x}"))] * count) for number in range(6_000 // count + 250)]
    remembered = [body for body in bodies if len(body) <= MAX_CACHED_SIZE]
    for body in bodies:
        tested.call(body, lambda _: None)
    gc.collect()
    tracemalloc.start()
    try:
        for body in remembered:
            tested.call(bytes(bytearray(body)), lambda _: None)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken < 1.25 * most
    assert list(tested._plans) == remembered[len(remembered) - len(tested._plans) :]


def test_plans_of_old_rules_are_dropped_a_few_at_a_time() -> None:
    tested, limiter = method()
    for number in range(2_000):
        call_twice(tested, encoded(descriptor(("user", str(number)))))
    limiter.book = limiter.book

    left = []
    for _ in range(5):
        tested.sweep()
        left.append(len(tested._plans))

    assert left == [1500, 1000, 500, 0, 0]
    assert tested._cache_bytes == 0


def test_a_plan_that_is_made_anew_is_no_longer_among_the_oldest() -> None:
    tested, limiter = method()
    first, second = (encoded(descriptor(("user", name))) for name in ("ada", "bob"))
    call_twice(tested, first)
    call_twice(tested, second)
    limiter.book = limiter.book

    tested.call(first, lambda _: None)
    tested.sweep()

    assert list(tested._plans) == [first]


def test_dynamic_metadata_tells_what_was_asked() -> None:
    _, limiter = method()
    answers: list[bytes | RpcError] = []

    ShouldRateLimit(limiter, ResponseEncoder(dynamic_metadata=True)).call(
        encoded(descriptor(("user", "a"))), answers.append
    )

    (answer,) = answers
    assert isinstance(answer, bytes)
    described = MessageToDict(RateLimitResponse.FromString(answer).dynamic_metadata)
    assert described == {"domain": "shop", "descriptors": [{"entries": ["user=a"]}]}


def codes(tested: ShouldRateLimit, bodies: Sequence[bytes]) -> list[str]:
    answers: list[bytes | RpcError] = []
    for body in bodies:
        tested.call(body, answers.append)
    found = [RateLimitResponse.FromString(answer) for answer in answers if isinstance(answer, bytes)]
    return [RateLimitResponse.Code.Name(answer.overall_code) for answer in found]
