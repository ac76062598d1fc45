"""Any bytes are answered once, with an answer or a documented error, in bounded work; memory and Redis decide alike, and both decoders read alike.

A case is a byte of how (small limits, JSON, each request twice, headers and metadata, the reasons asked for) and
requests, set apart by SEPARATOR, each after a byte that says how much later it comes. The same case always does the same.
"""  # noqa: E501 - the invariant stands in one line

import gc
from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Any, Final

from redis import Redis as Client

from ratelimit_service.api import request as reading
from ratelimit_service.api.explanation import EXPLAIN, decode_explanation
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.request import DEFAULT, RequestLimits, decode
from ratelimit_service.api.response import ResponseEncoder
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Request
from ratelimit_service.rules.response import HEADERS, Jitter, ResponseOptions
from ratelimit_service.server.admin.json_api import request_bytes
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis.script import BatchScript
from ratelimit_service.stores.store import Done, LostServer
from ratelimit_service.system.clock import SECOND
from tests.books import book
from tests.clocks import Clock
from tests.parts import parts_of

SEPARATOR: Final = b"\0\xff\0"
_MAX_REQUESTS: Final = 6
_START: Final = 1_790_000_000_000_000
_SMALL: Final = RequestLimits(descriptors=3, entries=5, value_length=20)
_SMALL_HITS: Final = 4
_SHARE: Final = 12_345
"""Of the jitter: both stores must answer the same."""

RULES: Final = """
domain: a
charge: together
descriptors:
  - {key: f, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: w, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_window}}
  - {key: s, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sub_windows, parts: 1000}}
  - {key: l, rate_limit: {unit: minute, requests_per_unit: 65535, algorithm: sliding_log}}
  - {key: t, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket, burst: 9, exceed: 2}}
  - {key: k, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: leaky_bucket, count_refused: true}}
"""
MORE_RULES: Final = """
domain: b
descriptors:
  - key: f
    rate_limits:
      - {unit: second, requests_per_unit: 1}
      - {unit: hour, requests_per_unit: 5, algorithm: sliding_log}
      - {unit: minute, requests_per_unit: 2, algorithm: sub_windows}
  - {key: f, value: "x*", share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 2, name: n}}
  - key: k
    detailed_metric: true
    metadata: {a: [1, {b: c}]}
    rate_limit: {unit: minute, requests_per_unit: 2, replaces: [{name: n}]}
    descriptors:
      - {key: v, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
      - {key: w, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
      - {key: u, rate_limit: {unlimited: true}}
      - {key: z, rate_limit: {unit: week, requests_per_unit: 0}}
"""
_BOOK: Final = book(RULES, MORE_RULES)
_BOOK_WITH_HEADERS: Final = book(
    RULES,
    MORE_RULES,
    response=ResponseOptions(HEADERS, True, Jitter(percent=10), problem_body=True, rule_metadata=True),
)


CALL: Final = "local call = redis.call\n"
CALL_WITHOUT_EXPIRY: Final = """
local function call(command, ...)
  if command == 'SET' then
    local key, value = ...
    return redis.call('SET', key, value)
  elseif command ~= 'PEXPIRE' then
    return redis.call(command, ...)
  end
end
"""
"""Keys would expire by the time of Redis, which goes on while the clock of a case stands still."""


class ScriptStore:
    """Runs our script in a Redis, one request after the other, at the moment of a clock that is told."""

    name = "redis"
    healthy = True
    counters = evicted = 0
    errors: Final[dict[str, int]] = {}
    lost: Final[Sequence[LostServer]] = ()
    warnings = ()

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._script = BatchScript("", clock)
        assert CALL in self._script.text
        self._text = self._script.text.replace(CALL, CALL_WITHOUT_EXPIRY)
        self.charge: Callable[[Sequence[Hit]], bool] = self._charge

    def _charge(self, hits: Sequence[Hit]) -> bool:
        keys, arguments, runs = self._script.encode(parts_of(hits))
        self._script.decode(self._client.eval(self._text, len(keys), *keys, *arguments), runs)
        return True

    def hit(self, hits: Sequence[Hit], done: Done, timeout: int | None = None) -> None:
        del timeout
        self._charge(hits)
        done(None)

    def sweep(self) -> None:
        """Redis does."""

    async def close(self) -> None:
        """Nothing to close."""

    def metrics(self) -> Sequence[Any]:
        """None."""
        return ()


class Harness:
    """Tries cases; `max_milliseconds` of processor time is what a call may take, if that is measured."""

    def __init__(self, client: Client, max_milliseconds: float | None = None) -> None:
        self._client = client
        self._most = max_milliseconds

    def try_case(self, case: bytes) -> None:
        """AssertionError, or whatever else is raised, is a find."""
        if len(case) < 2:
            return
        how, rest = case[0], case[1:]
        limits = _SMALL if how & 1 else DEFAULT
        clock = Clock(_START)
        self._client.flushall()
        methods = [
            ShouldRateLimit(
                _limiter(store, small=bool(how & 1), headers=bool(how & 8)),
                ResponseEncoder(dynamic_metadata=bool(how & 8), draw=lambda: _SHARE),
                limits,
            )
            for store in (MemoryStore(1000, clock), ScriptStore(self._client, clock))
        ]
        for part in rest.split(SEPARATOR)[:_MAX_REQUESTS]:
            clock.advance(part[0] * SECOND // 7 if part else 0)
            body = part[1:]
            if how & 2:
                try:
                    body = request_bytes(body)
                except RpcError as error:
                    if error.status is not Status.INVALID_ARGUMENT:
                        raise
                    continue
            if how & 16:
                body += EXPLAIN
            _compare_decoders(body, limits)
            for _ in range(2 if how & 4 else 1):
                of_memory, of_redis = [self._call(method, body) for method in methods]
                assert of_memory == of_redis, "Redis decides otherwise"

    def _call(self, method: ShouldRateLimit, body: bytes) -> bytes | str:
        replies: list[bytes | RpcError] = []
        gc.disable()  # to collect what the fuzzer keeps is no work of the call
        began = thread_time_ns()
        method.call(body, replies.append)
        took = (thread_time_ns() - began) / 1e6
        gc.enable()
        assert self._most is None or took < self._most, f"a call took {took} ms"
        (reply,) = replies
        if isinstance(reply, RpcError):
            assert reply.status is Status.INVALID_ARGUMENT
            return reply.message
        answer, request = RateLimitResponse.FromString(reply), decode(body)
        assert len(answer.statuses) == len(request.descriptors)
        assert len(decode_explanation(reply).descriptors) == (len(request.descriptors) if request.explain else 0)
        return reply


def _limiter(store: Any, *, small: bool, headers: bool) -> Limiter:
    limiter = Limiter(store, max_hits=_SMALL_HITS) if small else Limiter(store)
    limiter.book = _BOOK_WITH_HEADERS if headers else _BOOK
    return limiter


def _compare_decoders(body: bytes, limits: RequestLimits) -> None:
    by_hand = _read(reading.decode, body, limits)
    assert by_hand == _read(reading._decode_any, body, limits), "the decoders read otherwise"


def _read(read: Callable[[bytes, RequestLimits], Request], body: bytes, limits: RequestLimits) -> Request | str:
    try:
        return read(body, limits)
    except RpcError as error:
        return error.message
