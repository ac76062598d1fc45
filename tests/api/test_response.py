"""Answers written by hand are the ones the generated class would write."""

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from ratelimit_service.api.headers import DEFAULT_NAMES as NAMES
from ratelimit_service.api.headers import wait_seconds
from ratelimit_service.api.metadata import dynamic_metadata
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.api.wire import varint
from ratelimit_service.limiter.plan import UNLIMITED, denial
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import MAX_FIELD, MAX_REQUESTS, NEVER, Decision, Descriptor, Limit, Request, Unit
from ratelimit_service.rules.response import MAX_JITTER, SHARES, Jitter, ResponseOptions
from ratelimit_service.rules.rule import Entries, Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.telemetry.tally import Tally

ENVOYPROXY = ResponseOptions(headers=("ratelimit",))

counts = st.integers(0, MAX_FIELD) | st.integers(MAX_FIELD, MAX_REQUESTS)
limits = st.builds(
    lambda requests, unit, multiplier: Limit(requests, unit, unit.window * multiplier),
    counts,
    st.sampled_from([*Unit]),
    st.integers(1, 100),
)
waits = st.integers(1, 2**52)
decisions = st.builds(Decision, st.just(True), counts, counts, waits, st.just(0)) | st.builds(
    Decision, st.just(False), counts, counts, waits, st.just(NEVER) | waits
)


def as_they_are(_domain: str, entries: Entries) -> Entries:
    return entries


def hit(rule: Rule, decision: Decision, *, quota: bool = False) -> Hit:
    made = Hit(rule, "key", 1, tally=Tally(), quota=quota)
    made.decision = decision
    return made


def rule(limit: Limit | None, name: str = "", **more: Any) -> Rule:
    return Rule("shop", (), limit, open_algorithm("fixed_window"), name, **more)


hits = st.one_of(
    st.none(),
    st.builds(lambda: hit(rule(None), UNLIMITED)),
    st.builds(
        lambda name, shadow, quota, wait: hit(rule(None, name, deny=True, shadow=shadow), denial(1, wait), quota=quota),
        st.text(max_size=200),
        st.booleans(),
        st.booleans(),
        st.just(NEVER) | waits,
    ),
    st.builds(
        lambda limit, name, shadow, decision, quota: hit(rule(limit, name, shadow=shadow), decision, quota=quota),
        limits,
        st.text(max_size=200),
        st.booleans(),
        decisions,
        st.booleans(),
    ),
)
metadata = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


def expected(verdict: Verdict) -> RateLimitResponse:
    message = RateLimitResponse(overall_code=RateLimitResponse.OK if verdict.allowed else RateLimitResponse.OVER_LIMIT)
    for found in verdict.hits:
        status = message.statuses.add(code=RateLimitResponse.OK)
        if found is None:
            continue
        limit = found.rule.limit
        if found.rule.deny:
            status.code = RateLimitResponse.OVER_LIMIT if found.over else RateLimitResponse.OK
            status.current_limit.name = found.rule.name
            status.current_limit.SetInParent()
            if found.decision.retry_after != NEVER:
                status.duration_until_reset.seconds = -(-found.decision.retry_after // 1_000_000)
            continue
        if limit is None:
            status.limit_remaining = MAX_FIELD
            continue
        if found.over:
            status.code = RateLimitResponse.OVER_LIMIT
        status.current_limit.requests_per_unit = min(limit.requests, MAX_FIELD)
        status.current_limit.unit = RateLimitResponse.RateLimit.Unit.Value(limit.unit.name)
        status.current_limit.name = found.rule.name
        if limit.window != limit.unit.window:
            status.current_limit.unit_multiplier.value = limit.window // limit.unit.window
        status.limit_remaining = min(found.decision.remaining, MAX_FIELD)
        if not found.over or found.decision.retry_after == NEVER:
            status.duration_until_reset.seconds = -(-found.decision.reset_after // 1_000_000)
        else:
            status.duration_until_reset.seconds = -(-found.decision.retry_after // 1_000_000)
    tightest = verdict.tightest()
    if verdict.response is not None and tightest is not None:
        for name, value in (
            (NAMES.limit, 0 if tightest.rule.limit is None else tightest.rule.limit.requests),
            (NAMES.remaining, tightest.decision.remaining),
            (NAMES.reset, -(-tightest.decision.reset_after // 1_000_000)),
        ):
            if name == NAMES.reset and tightest.rule.deny and tightest.decision.retry_after == NEVER:
                continue
            message.response_headers_to_add.add(key=name, value=str(value))
    return message


@given(st.booleans(), st.lists(hits, max_size=5), st.sampled_from([None, ENVOYPROXY]))
def test_an_answer_is_the_one_the_generated_class_writes(
    allowed: bool, found: list[Hit | None], options: ResponseOptions | None
) -> None:
    verdict = Verdict(allowed, found, response=options)

    message = RateLimitResponse.FromString(ResponseEncoder().encode(verdict, b""))

    assert message == expected(verdict)


@given(
    limits, decisions, st.builds(Jitter, st.integers(0, 100), st.integers(0, MAX_JITTER)), st.integers(0, SHARES - 1)
)
def test_a_status_waits_as_long_as_headers_say(limit: Limit, decision: Decision, jitter: Jitter, share: int) -> None:
    options = ResponseOptions(retry_after_jitter=jitter)
    found = hit(rule(limit), decision)
    verdict = Verdict(decision.allowed, [found], response=options)

    [status] = RateLimitResponse.FromString(ResponseEncoder(draw=lambda: share).encode(verdict, b"")).statuses

    assert status.duration_until_reset.seconds == wait_seconds(found, options, share)


@given(st.integers(0, 2**64 - 1))
def test_a_varint_is_protobufs(number: int) -> None:
    message = RateLimitResponse()
    message.statuses.add().duration_until_reset.seconds = number >> 1

    assert message.SerializeToString().endswith(varint(number >> 1) if number > 1 else b"")


def test_headers_tell_of_the_tightest_limit_in_their_order() -> None:
    limit = Limit(10, Unit.MINUTE, Unit.MINUTE.window)
    verdict = Verdict(True, [hit(rule(limit), Decision(True, 3, 0, 57_000_001, 0))], response=ENVOYPROXY)

    message = RateLimitResponse.FromString(ResponseEncoder().encode(verdict, b""))

    assert [(header.key, header.value) for header in message.response_headers_to_add] == [
        ("RateLimit-Limit", "10"),
        ("RateLimit-Remaining", "3"),
        ("RateLimit-Reset", "58"),
    ]


def test_a_limit_above_32_bits_is_their_largest_number_in_its_status_and_itself_in_headers() -> None:
    limit = Limit(10**13, Unit.MONTH, Unit.MONTH.window)
    found = hit(rule(limit, "cents"), Decision(True, 10**13 - 7, 0, 1_000_000, 0))
    verdict = Verdict(True, [found], response=ResponseOptions(headers=("ratelimit", "x_ratelimit", "ietf")))

    message = RateLimitResponse.FromString(ResponseEncoder().encode(verdict, b""))

    (status,) = message.statuses
    assert (status.current_limit.requests_per_unit, status.limit_remaining) == (4_294_967_295, 4_294_967_295)
    assert [header.value for header in message.response_headers_to_add] == [
        "10000000000000",
        "9999999999993",
        "1",
        '10000000000000, 10000000000000;w=2592000;name="cents"',
        "9999999999993",
        "1",
        '"cents";q=10000000000000;w=2592000',
        '"cents";r=9999999999993;t=1',
    ]


def test_what_may_exceed_a_limit_is_promised_to_nobody() -> None:
    limit = Limit(10, Unit.MINUTE, Unit.MINUTE.window, exceed=2)
    hits = [hit(rule(limit), Decision(True, remaining, 0, 0, 0)) for remaining in (12, 3, 2, 1)]

    message = RateLimitResponse.FromString(ResponseEncoder().encode(Verdict(True, hits, response=ENVOYPROXY), b""))

    assert [status.limit_remaining for status in message.statuses] == [10, 1, 0, 0]
    assert message.response_headers_to_add[1].value == "0"


@pytest.mark.parametrize(
    ("decision", "seconds"),
    [
        (Decision(False, 0, 1, 10_000_000, 900_000), 1),
        (Decision(False, 0, 1, 10_000_000, NEVER), 10),
        (Decision(True, 3, 0, 10_000_000, 0), 10),
    ],
)
def test_a_refused_hit_is_told_when_it_would_be_allowed_and_an_allowed_one_when_all_is_back(
    decision: Decision, seconds: int
) -> None:
    found = [hit(rule(Limit(10, Unit.MINUTE, Unit.MINUTE.window)), decision)]
    verdict = Verdict(decision.allowed, found, response=ENVOYPROXY)

    message = RateLimitResponse.FromString(ResponseEncoder().encode(verdict, b""))

    assert message.statuses[0].duration_until_reset.seconds == seconds
    assert message.response_headers_to_add[2].value == "10"


@pytest.mark.parametrize(("reset", "seconds"), [(9_500_000, [10]), (0, [])])
def test_a_limit_of_0_tells_when_its_window_ends_and_a_bucket_of_0_tells_no_time(
    reset: int, seconds: list[int]
) -> None:
    """As envoyproxy/ratelimit, which has windows alone."""
    decision = Decision(False, 0, 1, reset, NEVER)
    verdict = Verdict(False, [hit(rule(Limit(0, Unit.MINUTE, Unit.MINUTE.window)), decision)])

    (status,) = RateLimitResponse.FromString(ResponseEncoder().encode(verdict, b"")).statuses

    assert [status.duration_until_reset.seconds] * status.HasField("duration_until_reset") == seconds


def test_a_window_of_several_units_is_answered_as_so_many_of_them() -> None:
    limit = Limit(10, Unit.MINUTE, 5 * Unit.MINUTE.window)
    verdict = Verdict(True, [hit(rule(limit), Decision(True, 3, 0, 299_000_001, 0))])

    (status,) = RateLimitResponse.FromString(ResponseEncoder().encode(verdict, b"")).statuses

    assert status.current_limit.unit == RateLimitResponse.RateLimit.MINUTE
    assert (status.current_limit.requests_per_unit, status.current_limit.unit_multiplier.value) == (10, 5)
    assert status.duration_until_reset.seconds == 300


NOTHING = Request("shop", [])


def described(verdict: Verdict, request: Request = NOTHING) -> Any:
    return MessageToDict(dynamic_metadata(verdict, request, as_they_are))


def test_dynamic_metadata_tells_what_was_asked() -> None:
    request = Request(
        "shop",
        [
            Descriptor((("user", "ada"), ("path", "")), 5),
            Descriptor((("ip", "::1"),), 0, 0, Limit(7, Unit.HOUR, Unit.HOUR.window)),
        ],
        5,
    )

    assert described(Verdict(True, [None, None]), request) == {
        "domain": "shop",
        "descriptors": [
            {"entries": ["user=ada", "path="]},
            {"entries": ["ip=::1"], "limit": "requests_per_unit:7 unit:HOUR", "hitsAddend": 0.0},
        ],
        "hitsAddend": 5.0,
    }


def test_dynamic_metadata_merges_that_of_rules_with_room_and_the_first_word_counts() -> None:
    limit = Limit(1, Unit.DAY, Unit.DAY.window)
    room = Decision(True, 1, 0, 0, 0)
    full = Decision(False, 0, 1, 0, 0)
    rules = [
        (rule(limit, metadata={"name": "first", "nested": {"a": 1.0}, "list": [1.0]}), room),
        (rule(limit, metadata={"name": "refused", "more": True}), full),
        (rule(limit, metadata={"name": "third", "nested": {"a": 2.0, "b": 2.0}, "list": [2.0]}), room),
        (rule(None, metadata={"unlimited": True}), UNLIMITED),
    ]
    verdict = Verdict(True, [hit(*pair, quota=True) for pair in rules])

    merged = described(verdict)["metadata"]

    assert merged == {"name": "first", "nested": {"a": 1.0, "b": 2.0}, "list": [1.0]}
    assert rules[0][0].metadata == {"name": "first", "nested": {"a": 1.0}, "list": [1.0]}


@given(metadata, metadata)
def test_any_metadata_of_rules_can_be_sent(first: dict[str, Any], second: dict[str, Any]) -> None:
    limit = Limit(1, Unit.DAY, Unit.DAY.window)
    room = Decision(True, 1, 0, 0, 0)
    verdict = Verdict(True, [hit(rule(limit, metadata=found), room) for found in (first, second)])

    assert dynamic_metadata(verdict, NOTHING, as_they_are)["domain"] == "shop"
