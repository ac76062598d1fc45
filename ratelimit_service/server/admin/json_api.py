"""`POST /json`: ShouldRateLimit for callers without gRPC.

The body becomes the bytes of a gRPC call and the answer's bytes become JSON, so that both ways in are one.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from aiohttp import web
from google.protobuf import json_format

from ratelimit_service.api.explanation import EXPLAIN, decode_explanation
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.method import Reply
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.server.series import CONTROL

_BODY_SECONDS = 10
"""For the whole body to arrive, however slowly it is sent."""
_ANSWER_SECONDS = 10
"""For the store; longer than any store is given."""

_SMALL = 1024
"""Bytes. More are converted in a thread: they take milliseconds, a megabyte up to a second, and calls must not wait."""

_MOST_WAITING: Final = 64
"""Conversions that wait for the thread, up to 20 ms each."""

_LONGEST_MESSAGE = 1000
"""Characters; what is wrong with a body can quote much of it."""

_HTTP_STATUS: Final = {Status.INVALID_ARGUMENT: 400, Status.UNAVAILABLE: 503, Status.DEADLINE_EXCEEDED: 503}

_T = TypeVar("_T")


class Called(Protocol):
    """A method, as far as it is needed here."""

    def call(self, body: bytes, reply: Reply) -> object:
        """Answer the request in `body`."""


HttpAnswer = tuple[int, Mapping[str, str], str]
"""Status, headers and text."""


class JsonApi:
    """Answers a RateLimitRequest as JSON by the method; `read` makes an HTTP answer of the bytes of its answer."""

    def __init__(
        self, method: Called, read: Callable[[bytes], HttpAnswer], *, most_bytes: int, most_objects: int
    ) -> None:
        self._method = method
        self._request_bytes = partial(request_bytes, most_objects=most_objects)
        self._read = read
        self._most_bytes = most_bytes
        # One thread: several would take the interpreter from the loop together.
        self._thread = ThreadPoolExecutor(1, "json")
        self._waiting = 0

    async def handle(self, request: web.Request) -> web.Response:
        """200 allowed, 429 over limit; 400, 413, 415 or 503 and a line of text that says why there is no answer."""
        if "Content-Encoding" in request.headers:
            return refusal(415, "the body must not be compressed")
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            return refusal(408, f"the body did not arrive within {_BODY_SECONDS} s")
        except web.RequestPayloadError:
            return refusal(400, "the body's chunks are not as HTTP/1.1 has them")
        except web.HTTPRequestEntityTooLarge:
            return refusal(413, f"the body is larger than {self._most_bytes} bytes (HTTP_MAX_BODY_SIZE)")
        if self._waiting >= _MOST_WAITING and len(body) > _SMALL:
            return refusal(503, "too many large requests at once: ask again, or by gRPC")
        try:
            asked = await self._convert(self._request_bytes, body)
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._call(asked)
        except RpcError as error:
            return refusal(_HTTP_STATUS.get(error.status, 500), error.message)
        except TimeoutError:
            return refusal(503, f"the store did not answer within {_ANSWER_SECONDS} s")
        status, headers, text = await self._convert(self._read, answer)
        return web.Response(status=status, headers=headers, text=text, content_type="application/json")

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False)

    async def _convert(self, convert: Callable[[bytes], _T], given: bytes) -> _T:
        if len(given) <= _SMALL:
            return convert(given)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, convert, given)
        finally:
            self._waiting -= 1

    async def _call(self, body: bytes) -> bytes:
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def reply(answer: bytes | RpcError) -> None:
            if answered.done():  # given up
                return
            if isinstance(answer, RpcError):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)

        self._method.call(body, reply)
        return await answered


def refusal(status: int, message: str) -> web.Response:
    """Why there is no answer."""
    return web.Response(status=status, text=f"{printable(message)}\n")


def request_bytes(body: bytes, most_objects: int = 1301) -> bytes:
    """The message that the JSON in `body` stands for; RpcError says what is wrong with it.

    To make a message of an object takes 10 µs, so there is a bound on their number.
    """
    # json_format takes an empty list or string for a message without fields.
    if not body.lstrip(b" \t\r\n").startswith(b"{"):
        raise _invalid("it is not a JSON object")
    try:
        found = json.loads(body.decode(), object_pairs_hook=_Objects(most_objects).make)
    except json_format.ParseError as error:
        raise _invalid(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _invalid(f"Failed to load JSON: {error}") from error
    try:
        message = json_format.ParseDict(found, RateLimitRequest())
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise _invalid(" ".join(str(error).split())) from error
    encoded: bytes = message.SerializeToString()
    return encoded + EXPLAIN


def printable(text: str) -> str:
    """The text with control characters of requests as JSON's escapes, in JSON too: there they are within strings."""
    return CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text)


class _Objects:
    """Makes the objects of a body while it is read, and ends the reading of one that has too many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0

    def make(self, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """The object with these members; ParseError when there are too many objects, or a member stands twice."""
        self._count += 1
        if self._count > self._most:
            settings = "REQUEST_MAX_DESCRIPTORS, REQUEST_MAX_ENTRIES"
            raise json_format.ParseError(f"it has more than {self._most} objects ({settings})")
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise json_format.ParseError(f"Failed to load JSON: duplicate key {twice}")
        return found


def _invalid(wrong: str) -> RpcError:
    if len(wrong) > _LONGEST_MESSAGE:
        wrong = f"{wrong[:_LONGEST_MESSAGE]}…"
    return RpcError(Status.INVALID_ARGUMENT, f"the body is not a RateLimitRequest: {wrong}")


def http_answer(answer: bytes) -> HttpAnswer:
    """The answer's HTTP status, its headers, and its text as upstream writes it: proto3's JSON without spaces."""
    message = RateLimitResponse.FromString(answer)
    fields = json_format.MessageToDict(message)
    if message.HasField("dynamic_metadata"):
        fields["dynamicMetadata"] = _plain(fields["dynamicMetadata"])
    status, headers = 200, dict[str, str]()
    if message.overall_code == RateLimitResponse.OVER_LIMIT:
        status = 429
        headers |= _retry_after(message)
    # Several descriptors may have had several policies.
    policies = {
        f"{descriptor.policy} ({descriptor.reason})": None
        for descriptor in decode_explanation(answer).descriptors
        if descriptor.policy
    }
    if policies:
        headers["X-RateLimit-By-Policy"] = ", ".join(policies)
    return status, headers, printable(json.dumps(fields, separators=(",", ":"), ensure_ascii=False))


def _retry_after(message: RateLimitResponse) -> Mapping[str, str]:
    """When all that refused would allow it; nothing where some limit, such as 0, never will."""
    refused = [status for status in message.statuses if status.code == RateLimitResponse.OVER_LIMIT]
    if not all(status.HasField("duration_until_reset") for status in refused):
        return {}
    return {"Retry-After": str(max(status.duration_until_reset.seconds for status in refused))}


def _plain(value: Any) -> Any:
    """A Struct as upstream writes it: names in order, and whole numbers, which are floats in it, without `.0`."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in sorted(value.items())}
        case list():
            return [_plain(item) for item in value]
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
    return value
