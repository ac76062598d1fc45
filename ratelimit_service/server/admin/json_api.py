"""`POST /json`: ShouldRateLimit for clients without gRPC.

The JSON body is converted to the bytes of a gRPC request, and the bytes of the response to JSON, so HTTP and gRPC share
one code path.
"""

import asyncio
import json
import re
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
from ratelimit_service.server.admin.answers import replied
from ratelimit_service.server.admin.json_text import read_json
from ratelimit_service.server.series import CONTROL

_BODY_SECONDS = 10
"""Seconds for the whole body to arrive, however slowly it is sent."""
_RESPONSE_SECONDS = 10
"""Seconds for the store; every store gives up earlier."""

_SMALL = 1024
"""Bytes. A larger body is converted in a thread, so that calls go on: that takes milliseconds, for 1 MiB up to 1 s."""

_MAX_WAITING: Final = 64
"""Conversions in the queue of the thread, up to 20 ms each."""

_MAX_MESSAGE_LENGTH = 1000
"""Characters; a message about a body can quote much of it."""

HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
"""Headers of every text but those of `/json` and `/explain`: it is not stored, and its type is not guessed."""

_HTTP_STATUS: Final = {
    Status.INVALID_ARGUMENT: 400,
    Status.NOT_FOUND: 404,
    Status.UNAVAILABLE: 503,
    Status.DEADLINE_EXCEEDED: 503,
}

_QUOTED: Final = re.compile(
    r"(?<=no field named )\".*\"(?= at )|(?<=enum value ).*(?= for enum )|(?<=base 10: ).*|(?<=integer: ).*(?= at )"
    r"|(?<=integer string: ).*(?= at )|(?<= which is ).*(?= at )|(?<=to parse )[\[{].*(?= field: unhashable)"
)
"""The parts of json_format's messages that quote the body: what stands in a wrong place may be a secret value."""

_OF_THE_BODY: Final = frozenset({"connection", "content-length", "content-type", "transfer-encoding"})
"""Response headers that are not sent with JSON: that of the problem body, and those that would break the reply."""

_T = TypeVar("_T")


class BytesMethod(Protocol):
    """The method that `/json` or `/explain` calls: ShouldRateLimit, an explainer, or those of the workers."""

    def call(self, body: bytes, reply: Reply) -> object:
        """Handle the RateLimitRequest in `body`; `reply` is called once with the response, or an RpcError."""


HttpResponse = tuple[int, Mapping[str, str], str]
"""Status, headers and text."""


class JsonApi:
    """Converts a RateLimitRequest from JSON, calls the method, and responds with what `read` makes of its response."""

    def __init__(
        self, method: BytesMethod, read: Callable[[bytes], HttpResponse], *, max_bytes: int, max_objects: int
    ) -> None:
        self._method = method
        self._request_bytes = partial(request_bytes, max_objects=max_objects)
        self._read = read
        self._max_bytes = max_bytes
        # One thread: several together would take the interpreter from the event loop.
        self._thread = ThreadPoolExecutor(1, "json")
        self._waiting = 0

    async def handle(self, request: web.Request) -> web.Response:
        """Respond 200 (allowed) or 429 (over limit); 400, 408, 413, 415 or 503 with one line of text that says why."""
        body = await read_body(request, self._max_bytes, " (HTTP_MAX_BODY_SIZE)")
        if isinstance(body, web.Response):
            return body
        if self._waiting >= _MAX_WAITING and len(body) > _SMALL:
            return refusal(503, "too many large requests at once: try again, or use gRPC")
        try:
            message = await self._convert(self._request_bytes, body)
            response = await call_method(self._method, message)
        except (RpcError, TimeoutError) as error:
            return refusal_for(error)
        status, headers, text = await self._convert(self._read, response)
        return web.Response(status=status, headers=headers, text=text, content_type="application/json")

    async def _convert(self, convert: Callable[[bytes], _T], given: bytes) -> _T:
        if len(given) <= _SMALL:
            return convert(given)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, convert, given)
        finally:
            self._waiting -= 1


async def read_body(request: web.Request, max_bytes: int, setting: str = "") -> bytes | web.Response:
    """The body; or the response that says why it cannot be had. `setting` is what the bound can be changed by."""
    if "Content-Encoding" in request.headers:
        return refusal(415, "the body must not be compressed")
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = await request.read()
        if len(body) <= max_bytes:
            return body
    except TimeoutError:
        return refusal(408, f"the body did not arrive within {_BODY_SECONDS} s")
    except web.RequestPayloadError:
        return refusal(400, "the body's chunked encoding is invalid")
    except web.HTTPRequestEntityTooLarge:
        pass
    return refusal(413, f"the body is larger than {max_bytes} bytes{setting}")


async def call_method(method: BytesMethod, body: bytes) -> bytes:
    """The response of the method. Raises RpcError, and TimeoutError when it takes too long."""
    async with asyncio.timeout(_RESPONSE_SECONDS):
        return await replied(partial(method.call, body))


def refusal(status: int, message: str) -> web.Response:
    """A response of one line that says why."""
    return web.Response(status=status, text=f"{escape_control(message)}\n")


def refusal_for(error: RpcError | TimeoutError) -> web.Response:
    """The response where `call_method` raises this, or the request cannot be made."""
    if isinstance(error, RpcError):
        return refusal(_HTTP_STATUS.get(error.status, 500), error.message)
    return refusal(503, f"the store did not answer within {_RESPONSE_SECONDS} s")


def request_bytes(body: bytes, max_objects: int = 2305) -> bytes:
    """Convert JSON to the bytes of a RateLimitRequest; RpcError if it is wrong.

    Each JSON object takes 10 µs to convert, so their number is limited.
    """
    count = 0

    def make(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal count
        count += 1
        if count > max_objects:
            settings = "REQUEST_MAX_DESCRIPTORS, REQUEST_MAX_ENTRIES"
            raise json_format.ParseError(f"it has more than {max_objects} objects ({settings})")
        found = dict(pairs)
        if len(found) < len(pairs):
            raise json_format.ParseError("Failed to load JSON: duplicate key")
        return found

    # json_format converts an empty list or string to a message without fields.
    if not body.lstrip(b" \t\r\n").startswith(b"{"):
        raise _invalid("it is not a JSON object")
    try:
        found = read_json(body, make)
    except json_format.ParseError as error:
        raise _invalid(str(error)) from error
    except ValueError as error:
        raise _invalid(f"Failed to load JSON: {error}") from error
    try:
        message = json_format.ParseDict(found, RateLimitRequest())
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise _invalid(_QUOTED.sub("…", " ".join(str(error).split()))) from error
    encoded: bytes = message.SerializeToString()
    return encoded + EXPLAIN


def escape_control(text: str) -> str:
    """Escape control characters as JSON does; in JSON they only occur within strings."""
    return CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _invalid(wrong: str) -> RpcError:
    if len(wrong) > _MAX_MESSAGE_LENGTH:
        wrong = f"{wrong[:_MAX_MESSAGE_LENGTH]}…"
    return RpcError(Status.INVALID_ARGUMENT, f"the body is not a RateLimitRequest: {wrong}")


def http_response(response: bytes) -> HttpResponse:
    """Convert a RateLimitResponse to HTTP: the text is proto3's JSON without spaces, as envoyproxy writes it."""
    message = RateLimitResponse.FromString(response)
    fields = json_format.MessageToDict(message)
    if message.HasField("dynamic_metadata"):
        fields["dynamicMetadata"] = _plain(fields["dynamicMetadata"])
    explanation = decode_explanation(response)
    headers = {
        header.key: header.value for header in message.response_headers_to_add if header.key.lower() not in _OF_THE_BODY
    }
    status = 429 if message.overall_code == RateLimitResponse.OVER_LIMIT else 200
    if explanation.retry_after:
        headers["Retry-After"] = str(explanation.retry_after)
    # Each descriptor may have another policy.
    policies = {
        f"{descriptor.policy} ({descriptor.reason})": None
        for descriptor in explanation.descriptors
        if descriptor.policy
    }
    if policies:
        headers["X-RateLimit-By-Policy"] = ", ".join(policies)
    return status, headers, escape_control(json.dumps(fields, separators=(",", ":"), ensure_ascii=False))


def explained_response(response: bytes) -> HttpResponse:
    """Convert an explanation to HTTP."""
    return 200, {}, escape_control(response.decode())


def _plain(value: Any) -> Any:
    """A Struct as envoyproxy writes it: sorted names, and whole numbers, floats in a Struct, without `.0`."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in sorted(value.items())}
        case list():
            return [_plain(item) for item in value]
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
    return value
