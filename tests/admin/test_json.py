"""POST /json: the same question as over gRPC, for callers that have only HTTP."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.headers import HeaderNames
from ratelimit_service.api.method import Reply
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.errors import RpcError, Status, StoreError, TooHeavyError
from ratelimit_service.rules.bans import Bans
from ratelimit_service.rules.rule import Rule
from ratelimit_service.server.admin.json_api import JsonApi, http_response, request_bytes
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryBans
from ratelimit_service.stores.store import BanStore, Done, LostServer
from ratelimit_service.telemetry.metric import Metric
from tests.admin.conftest import RULES
from tests.admin.service import START_SECONDS, Service, ask, running

ADA = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}


def test_an_allowed_request_is_answered_200_with_envoyproxys_json(service: Service) -> None:
    reply = service.post(ADA)

    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
    assert reply.text == (
        '{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":3,"unit":"MINUTE"},'
        '"limitRemaining":2,"durationUntilReset":"60s"}]}'
    )


def test_a_refused_request_is_answered_429_with_the_same_json(service: Service) -> None:
    for _ in range(3):
        service.post(ADA)

    reply = service.post(ADA)

    assert reply.status == 429
    assert reply.text == (
        '{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"requestsPerUnit":3,'
        '"unit":"MINUTE"},"durationUntilReset":"60s"}]}'
    )


def test_a_refused_request_has_a_retry_after_when_all_that_refuse_would_allow_it(tmp_path: Path) -> None:
    rules = """\
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 1}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: blocked, rate_limit: {unit: hour, requests_per_unit: 0}}
"""
    user, path, blocked = ({"entries": [{"key": key, "value": "x"}]} for key in ("user", "path", "blocked"))

    def told(service: Service, *descriptors: Any) -> tuple[int, str | None]:
        reply = service.post({"domain": "shop", "descriptors": descriptors})
        return reply.status, reply.headers["Retry-After"]

    with running(tmp_path, rules) as service:
        assert told(service, user, path) == (200, None)
        assert told(service, user) == (429, "1")
        assert told(service, user, path) == (429, "3600")
        assert told(service, user, blocked) == (429, None)


def test_names_are_understood_as_in_the_proto_file_too(service: Service) -> None:
    service.post(ADA | {"hits_addend": 2})

    assert '"limitRemaining":0' not in service.post(ADA | {"hitsAddend": 1}).text
    assert service.post(ADA).status == 429


def test_what_no_rule_limits_is_allowed(service: Service) -> None:
    reply = service.post({"domain": "nowhere", "descriptors": [{"entries": [{"key": "a"}]}]})

    assert (reply.status, reply.text) == (200, '{"overallCode":"OK","statuses":[{"code":"OK"}]}')


def test_headers_and_metadata_are_written_as_envoyproxy_writes_them(tmp_path: Path) -> None:
    rules = """\
domain: shop
headers: [ratelimit]
descriptors:
  - key: user
    metadata: {tier: 1, ratio: 1.5, names: [é, null]}
    rate_limit: {unit: minute, requests_per_unit: 3}
"""
    answer = ResponseEncoder(HeaderNames("L", "R", "S"), dynamic_metadata=True)

    with running(tmp_path, rules, answer=answer) as service:
        reply = service.post(ADA | {"hitsAddend": 2})

    assert json.loads(reply.text)["responseHeadersToAdd"] == [
        {"key": "L", "value": "3"},
        {"key": "R", "value": "1"},
        {"key": "S", "value": "60"},
    ]
    assert [reply.headers[name] for name in ("L", "R", "S")] == ["3", "1", "60"]
    assert reply.text[reply.text.index('"dynamicMetadata"') :] == (
        '"dynamicMetadata":{"descriptors":[{"entries":["user=ada"]}],"domain":"shop","hitsAddend":2,'
        '"metadata":{"names":["é",null],"ratio":1.5,"tier":1}}}'
    )


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"", "it is not a JSON object"),
        (b"[]", "it is not a JSON object"),
        (b'"text"', "it is not a JSON object"),
        (b"{", "Failed to load JSON"),
        (b"\xff{}", "it is not a JSON object"),
        (b'{"domain": "\xff"}', "'utf-8' codec can't decode byte 0xff"),
        (b'{"domain": "a", "domain": "b"}', "duplicate key"),
        (b'{"domain": 1}', "Failed to parse domain field"),
        (b'{"colour": 1}', 'has no field named … at "RateLimitRequest". Available Fields'),
        (
            b'{"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}',
            "Invalid enum value … for enum type envoy.type.v3.Rate",
        ),
        (b'{"hitsAddend": -1}', "Value out of range: -1"),
        (b'{"hitsAddend": ' + b"9" * 5000 + b"}", "4300 digits"),
        (b'{"descriptors":' * 5_000, "it is nested too deeply"),
        (b'{"descriptors":' + b"[" * 50_000, "it is nested too deeply"),
        (b'{"\\ud800": 1}', "it has a character that cannot be written as UTF-8"),
        (b"{}", "rate limit domain must not be empty"),
        (b'{"domain": "shop"}', "rate limit descriptor list must not be empty"),
        (b'{"domain": "shop", "descriptors": [{"limit": {"unit": 99}}]}', "descriptors[0].limit.unit is 99"),
    ],
)
def test_a_wrong_body_is_answered_400_with_what_is_wrong(service: Service, body: bytes, wrong: str) -> None:
    reply = service.post(body)

    assert reply.status == 400
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert wrong in reply.text
    assert len(reply.text) < 1200


HALF = "\ud800"
"""Of a pair of surrogates: JSON can write it, and UTF-8 cannot."""


@pytest.mark.parametrize(
    "body",
    [
        {HALF: 1},
        {"domain": HALF},
        {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": HALF}]}]},
        {"domain": "shop", "descriptors": [{"entries": [{"key": "user", HALF: "x"}]}]},
        {"domain": "shop", "descriptors": [{"limit": {"unit": HALF, "requestsPerUnit": 1}}]},
        {"domain": "shop", "entries": [{"key": "user", "value": HALF}], "for": "1h", "why": "x"},
    ],
)
def test_a_text_that_utf_8_does_not_have_is_refused_wherever_it_stands(service: Service, body: Any) -> None:
    sent = json.dumps(body).encode()
    asked = [("POST", "/explain"), ("POST", "/bans"), ("DELETE", "/bans"), ("POST", "/counters/reset")]
    at, token = service.debug[0], service.bearer
    replies = [service.post(sent), *(ask(at, verb, path, body=sent, headers=token) for verb, path in asked)]

    assert [reply.status for reply in replies] == [400] * 5
    assert all("a character that cannot be written as UTF-8" in reply.text for reply in replies)


SECRET = "sk_live_4711"
WHOLE = {
    "domain": "shop",
    "hitsAddend": 1,
    "descriptors": [
        {
            "entries": [{"key": "user", "value": "ada"}],
            "limit": {"unit": "SECOND", "requestsPerUnit": 5, "unitMultiplier": 2},
            "hitsAddend": 1,
            "isNegativeHits": True,
        }
    ],
}


def replacements(whole: Any, by: Any) -> Iterator[Any]:
    """The same JSON with this in place of each of its parts."""
    yield by
    for name in whole if isinstance(whole, dict) else range(len(whole)) if isinstance(whole, list) else ():
        for part in replacements(whole[name], by):
            changed = whole.copy()
            changed[name] = part
            yield changed


@pytest.mark.parametrize(
    "wrong",
    [
        *(SECRET, [SECRET], [[SECRET]], {SECRET: 1}, {"value": SECRET}, [{SECRET: SECRET}], {"@type": SECRET}),
        *(f"\0{SECRET}", f'"{SECRET}"', f"'{SECRET}'", f"a at {SECRET}", f'x" at "{SECRET}', [1, SECRET]),
    ],
)
def test_no_error_quotes_what_stands_in_a_wrong_place(wrong: Any) -> None:
    errors = []
    for body in replacements(WHOLE, wrong):
        try:
            request_bytes(json.dumps(body).encode())
        except RpcError as error:
            errors.append(error.message)

    assert len(errors) > 10
    assert [error for error in errors if SECRET in error] == []


def test_a_name_that_occurs_twice_is_not_quoted() -> None:
    with pytest.raises(RpcError) as caught:
        request_bytes(f'{{"{SECRET}": 1, "{SECRET}": 2}}'.encode())

    assert SECRET not in caught.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: (
        st.lists(inside)
        | st.dictionaries(
            st.sampled_from(["domain", "descriptors", "entries", "key", "value", "limit", "unit", "hitsAddend"]), inside
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["domain", "descriptors", "hitsAddend", "x"]), JSON).map(json.dumps) | st.text())
def test_any_body_is_a_message_or_an_error_that_says_why_not(text: str) -> None:
    try:
        RateLimitRequest.FromString(request_bytes(text.encode()))
    except RpcError as error:
        assert error.message.startswith("the body is not a RateLimitRequest: ")  # noqa: PT017  # either will do


def test_large_numbers_of_the_answer_are_numbers() -> None:
    message = RateLimitResponse(overall_code=RateLimitResponse.OK)
    message.statuses.add(code=RateLimitResponse.OK, limit_remaining=4294967295)

    assert http_response(message.SerializeToString()) == (
        200,
        {},
        '{"overallCode":"OK","statuses":[{"code":"OK","limitRemaining":4294967295}]}',
    )


def test_a_body_above_the_bound_is_answered_413(tmp_path: Path) -> None:
    with running(tmp_path, RULES, http_max_body_size="100") as service:
        reply = service.post(b"{" + b" " * 100)

    assert (reply.status, reply.text) == (413, "the body is larger than 100 bytes (HTTP_MAX_BODY_SIZE)\n")


def test_a_compressed_body_is_not_unpacked(service: Service) -> None:
    reply = ask(service.http[0], "POST", "/json", body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})

    assert (reply.status, reply.text) == (415, "the body must not be compressed\n")


@pytest.mark.parametrize("verb", ["GET", "PUT", "DELETE"])
def test_any_verb_but_post_is_answered_405(service: Service, verb: str) -> None:
    reply = ask(service.http[0], verb, "/json")

    assert (reply.status, reply.headers["Allow"]) == (405, "POST")


def test_a_large_body_is_answered_as_a_small_one_is(service: Service) -> None:
    descriptor = {"entries": [{"key": "nothing", "value": "x" * 900}]}

    reply = service.post({"domain": "shop", "descriptors": [descriptor] * 100})

    assert reply.status == 200
    assert len(json.loads(reply.text)["statuses"]) == 100


def test_without_rules_the_answer_is_503(tmp_path: Path) -> None:
    with running(tmp_path, "domain: [") as service:
        reply = service.post(ADA)

    assert (reply.status, reply.text) == (503, "no rate limit configuration loaded\n")


class StandIn:
    """A store that is asked, and does with `done` what the test wants."""

    charge = None
    name = "stand-in"
    healthy = False
    counters = 0
    evicted = 0
    lost: Sequence[LostServer] = ()
    warnings = ()

    def __init__(self, then: Callable[[Done], object]) -> None:
        self.then = then

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> None:
        self.then(done)

    def use(self, rules: Iterable[Rule]) -> None:
        """Nothing is to be prepared."""

    def keep_bans(self, bans: Bans) -> BanStore:
        """In memory."""
        return MemoryBans(bans)

    async def reset(self, hits: Sequence[Hit]) -> int:
        """It has none."""
        return 0

    def metrics(self) -> Sequence[Metric]:
        """None."""
        return ()

    def sweep(self) -> None:
        """Nothing to sweep."""

    async def close(self) -> None:
        """Nothing to close."""


def test_a_store_that_fails_is_answered_503(tmp_path: Path) -> None:
    store = StandIn(lambda done: done(StoreError("redis at 10.0.0.1:6379: connection refused")))

    with running(tmp_path, RULES, store=store) as service:
        reply = service.post(ADA)

    assert (reply.status, reply.text) == (503, "redis at 10.0.0.1:6379: connection refused\n")


def test_a_request_that_is_too_heavy_for_the_store_is_answered_400(tmp_path: Path) -> None:
    store = StandIn(lambda done: done(TooHeavyError("501 limits are to be charged together")))

    with running(tmp_path, RULES, store=store) as service:
        reply = service.post(ADA)

    assert (reply.status, reply.text) == (400, "501 limits are to be charged together\n")


class Refusing:
    """Refuses every call, so that what comes of a body is told without an answer."""

    def call(self, body: bytes, reply: Reply) -> None:
        """As Called says."""
        reply(RpcError(Status.INVALID_ARGUMENT, "it was called"))


def test_large_bodies_that_come_at_once_wait_for_the_thread_up_to_a_bound_and_small_ones_never() -> None:
    def request(body: bytes) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        payload = StreamReader(BaseProtocol(loop), 2**16, loop=loop)
        payload.feed_data(body)
        payload.feed_eof()
        return make_mocked_request("POST", "/json", payload=payload)

    async def at_once(*bodies: bytes) -> Counter[tuple[int, str]]:
        api = JsonApi(Refusing(), http_response, max_bytes=2**17, max_objects=1000)
        answers = await asyncio.gather(*(api.handle(cast("web.Request", request(body))) for body in bodies))
        return Counter((answer.status, answer.text or "") for answer in answers)

    small = json.dumps(ADA).encode()
    large = small + b" " * 2000
    called, refused = (400, "it was called\n"), (503, "too many large requests at once: try again, or use gRPC\n")

    assert asyncio.run(at_once(*[large] * 80, *[small] * 20)) == {called: 64 + 20, refused: 16}


def test_a_call_in_flight_is_finished_when_the_service_stops(tmp_path: Path) -> None:
    asked: list[Done] = []
    arrived = threading.Event()

    def keep(done: Done) -> None:
        asked.append(done)
        arrived.set()

    replies: list[Any] = []
    with running(tmp_path, RULES, store=StandIn(keep)) as service:
        caller = threading.Thread(target=lambda: replies.append(service.post(ADA)))
        caller.start()
        assert arrived.wait(START_SECONDS)
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        service.loop.call_soon_threadsafe(asked[0], StoreError("too late"))
        stopping.join(START_SECONDS)
        caller.join(START_SECONDS)

    assert [reply.status for reply in replies] == [503]
    assert [reply.text for reply in replies] == ["too late\n"]
