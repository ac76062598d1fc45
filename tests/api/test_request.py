"""Bytes to requests: every field is understood, and reading by hand finds what the generated class finds."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimit_service.api import request
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit
from ratelimit_service.api.request import ANY, RequestLimits, decode
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.system.clock import HOUR, MINUTE
from tests.api.requests import descriptor, encoded


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


@pytest.mark.parametrize("sent", [2**50 + 1, 2**53, 2**63, 2**64 - 1])
@pytest.mark.parametrize(("refund", "cost"), [(False, 2**50), (True, -(2**50))])
def test_a_larger_cost_than_can_be_counted_is_the_largest_one(sent: int, refund: bool, cost: int) -> None:
    asked = descriptor(("user", "ada"))
    asked.hits_addend.value = sent
    asked.is_negative_hits = refund

    assert decode(encoded(asked)).descriptors == [Descriptor((("user", "ada"),), cost, sent)]


def test_a_request_that_names_no_cost_costs_one() -> None:
    assert [found.cost for found in decode(encoded(descriptor(("user", "ada")))).descriptors] == [1]


def test_an_override_may_span_several_units() -> None:
    own = descriptor(("user", "ada"))
    own.limit.requests_per_unit = 1
    own.limit.unit = RateLimitUnit.MINUTE
    own.limit.unit_multiplier.value = 5

    assert decode(encoded(own)).descriptors[0].override == Limit(1, Unit.MINUTE, 5 * MINUTE)


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


words = st.text(max_size=10) | st.text(min_size=60, max_size=140)
plain = st.builds(
    lambda domain, descriptors: encoded(*(descriptor(*entries) for entries in descriptors), domain=domain),
    words,
    st.lists(st.lists(st.tuples(words, words), max_size=3), max_size=3),
)


def read_by_class(body: bytes, limits: RequestLimits = ANY) -> Request | str:
    try:
        return request._decode_any(body, limits)
    except RpcError as error:
        return error.message


def read(body: bytes, limits: RequestLimits = ANY) -> Request | str:
    try:
        return decode(body, limits)
    except RpcError as error:
        return error.message


@given(plain)
@example(encoded(descriptor(("user", "ada"), ("path", "/a")), descriptor(("ip", "::1"))))
def test_a_plain_request_is_read_by_hand_as_by_the_generated_class(body: bytes) -> None:
    assert read(body) == read_by_class(body)


@given(plain, st.builds(RequestLimits, st.integers(1, 3), st.integers(1, 5), st.sampled_from([5, 100])))
def test_a_request_is_held_to_the_same_limits_however_it_is_read(body: bytes, limits: RequestLimits) -> None:
    assert read(body, limits) == read_by_class(body, limits)


@given(plain, st.integers(0), st.binary(max_size=3), st.integers(0, 3))
def test_a_request_with_any_bytes_changed_is_read_by_hand_as_by_the_generated_class(
    body: bytes, at: int, inserted: bytes, dropped: int
) -> None:
    at %= len(body) + 1
    changed = body[:at] + inserted + body[at + dropped :]

    assert read(changed) == read_by_class(changed)


def test_what_envoy_asks_most_is_read_by_hand() -> None:
    asked = Request("shop", [Descriptor((("user", "ada"), ("path", "/a"))), Descriptor((("ip", "::1"),))])

    body = encoded(descriptor(("user", "ada"), ("path", "/a")), descriptor(("ip", "::1")))

    assert request._decode_plain(body) == asked
