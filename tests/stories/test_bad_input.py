"""Whatever a client sends over a real connection, it gets a status that says what was wrong, and nobody is harmed."""

from collections.abc import Callable, Iterator

import grpc
import pytest

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from tests.processes import Service, start_service

pytestmark = pytest.mark.usefixtures("transport")

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1000000}}]\n"

Ask = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[Service]:
    with start_service(tmp_path_factory.mktemp("service"), RULES, {"TRANSPORT": transport}) as started:
        yield started


@pytest.fixture
def ask(service: Service) -> Iterator[Ask]:
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        method = channel.unary_unary(ShouldRateLimit.path, bytes, bytes)
        yield lambda body: method(body, timeout=60)


def request(value: str = "ada", **fields: object) -> RateLimitRequest:
    entry = RateLimitDescriptor.Entry(key="user", value=value)
    return RateLimitRequest(domain="shop", descriptors=[RateLimitDescriptor(entries=[entry], **fields)])  # type: ignore[arg-type]  # whatever a test hands over


def remaining(ask: Ask) -> int:
    """What is left of the one counter, without charging it."""
    look = request()
    look.descriptors[0].hits_addend.value = 0
    return RateLimitResponse.FromString(ask(look.SerializeToString())).statuses[0].limit_remaining


def costing(cost: int) -> bytes:
    made = request()
    made.descriptors[0].hits_addend.value = cost
    return made.SerializeToString()


BAD = {
    "empty message": (b"", "INVALID_ARGUMENT", "rate limit domain must not be empty"),
    "empty domain": (
        RateLimitRequest(descriptors=request().descriptors).SerializeToString(),
        "INVALID_ARGUMENT",
        "rate limit domain must not be empty",
    ),
    "no descriptors": (
        RateLimitRequest(domain="shop").SerializeToString(),
        "INVALID_ARGUMENT",
        "rate limit descriptor list must not be empty",
    ),
    "unknown unit": (
        request(limit=RateLimitDescriptor.RateLimitOverride(requests_per_unit=1)).SerializeToString(),
        "INVALID_ARGUMENT",
        "descriptors[0].limit.unit is 0, not one of",
    ),
    "truncated": (request().SerializeToString()[:-1], "INVALID_ARGUMENT", "the message is not a RateLimitRequest"),
    "invalid UTF-8": (b"\x0a\x02\xff\xfe", "INVALID_ARGUMENT", "the message is not a RateLimitRequest"),
    "nested": (b"\x12\x80\x80\x40" * 10_000, "INVALID_ARGUMENT", "the message is not a RateLimitRequest"),
    "too many descriptors": (
        RateLimitRequest(domain="shop", descriptors=[RateLimitDescriptor()] * 50_000).SerializeToString(),
        "INVALID_ARGUMENT",
        "the request has 50000 descriptors, the maximum is 256 (REQUEST_MAX_DESCRIPTORS)",
    ),
    "too long": (
        request("x" * 70_000).SerializeToString(),
        "INVALID_ARGUMENT",
        "descriptors[0] has a key or value of 70000 characters, the maximum is 65536 (REQUEST_MAX_VALUE_LENGTH)",
    ),
    "too large": (request("x" * 5_000_000).SerializeToString(), "RESOURCE_EXHAUSTED", ""),
}


@pytest.mark.parametrize(("body", "code", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_gets_a_status_and_charges_nothing(ask: Ask, body: bytes, code: str, message: str) -> None:
    before = remaining(ask)

    with pytest.raises(grpc.RpcError) as caught:
        ask(body)

    assert caught.value.code().name == code
    assert str(caught.value.details()).startswith(message)
    assert remaining(ask) == before


@pytest.mark.parametrize("value", ["", "\x00", "\u202e\U0001f600", "x" * 60_000, "|" * 60_000, "|=~%", "a\nb"])
def test_strange_values_are_values(ask: Ask, value: str) -> None:
    answer = RateLimitResponse.FromString(ask(request(value).SerializeToString()))

    assert answer.statuses[0].limit_remaining == 999_999
