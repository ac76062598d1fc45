"""Encodes a Verdict as a RateLimitResponse. Hot path.

Protobuf's format is written by hand, and what is the same in all responses is encoded once: that takes a third of the
time of the generated class. A property test compares the result with that class.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.struct_pb2 import Struct

from ratelimit_service.api.explanation import encode_explanation
from ratelimit_service.api.request import decode
from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import MAX_REQUESTS, NEVER, Descriptor, Limit, Request
from ratelimit_service.rules.rule import Entries, Rule
from ratelimit_service.stores.hit import NO_LIMIT, ZERO_LIMIT, Hit
from ratelimit_service.system.clock import SECOND

# Tags of RateLimitResponse: field number, then wire type 0 (varint) or 2 (length and bytes).
_OVERALL_OK = b"\x08\x01"
_OVERALL_OVER_LIMIT = b"\x08\x02"
_STATUS = 2 << 3 | 2
_RESPONSE_HEADER = 3 << 3 | 2
_DYNAMIC_METADATA = 6 << 3 | 2
# Tags of DescriptorStatus.
_CODE_OK = b"\x08\x01"
_CODE_OVER_LIMIT = b"\x08\x02"
_CURRENT_LIMIT = 2 << 3 | 2
_LIMIT_REMAINING = 3 << 3
_DURATION_UNTIL_RESET = 4 << 3 | 2

_MOST_RULES = 10_000


def varint(number: int) -> bytes:
    """A number >= 0 in protobuf's format."""
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(tag: int, body: bytes) -> bytes:
    size = len(body)
    return (bytes((tag, size)) if size < 128 else bytes((tag,)) + varint(size)) + body


def _remaining(number: int) -> bytes:
    """The field `limit_remaining`."""
    return bytes((_LIMIT_REMAINING,)) + varint(number) if number else b""


def _reset(seconds: int) -> bytes:
    """The field `duration_until_reset`."""
    body = b"\x08" + varint(seconds) if seconds else b""
    return _field(_DURATION_UNTIL_RESET, body)


_MOST_READY: Final = 1024
"""Fields with numbers below this are encoded once, at import."""

_REMAINING: Final = tuple(map(_remaining, range(_MOST_READY)))
_RESET: Final = tuple(map(_reset, range(_MOST_READY)))
_STATUS_OF: Final = tuple(bytes((_STATUS,)) + varint(size) for size in range(_MOST_READY))
_NO_RULE: Final = _field(_STATUS, _CODE_OK)
_UNLIMITED: Final = _field(_STATUS, _CODE_OK + _remaining(MAX_REQUESTS))


class HeaderNames(NamedTuple):
    """The names of the three response headers."""

    limit: str
    remaining: str
    reset: str


Shown = Callable[[str, Entries], Entries]
"""The entries of a request for a domain as they may be shown."""


class ResponseEncoder:
    """Encodes verdicts; `headers` adds response headers, `dynamic_metadata` adds metadata for Envoy's filters.

    The metadata have the entries of the request as `shown` returns them.
    """

    def __init__(
        self,
        *,
        headers: HeaderNames | None = None,
        dynamic_metadata: bool = False,
        shown: Shown = lambda _, entries: entries,
    ) -> None:
        self._headers = headers
        self._shown = shown
        self._dynamic_metadata = dynamic_metadata
        self._starts: dict[Rule, tuple[bytes, bytes]] = {}

    def encode(self, verdict: Verdict, body: bytes) -> bytes:
        """The response to the request in `body`."""
        parts = [_OVERALL_OK if verdict.allowed else _OVERALL_OVER_LIMIT]
        starts = self._starts
        for hit in verdict.hits:
            if hit is None:
                parts.append(_NO_RULE)
                continue
            rule = hit.rule
            limit = rule.limit
            if limit is None:
                parts.append(self._denied(hit) if rule.deny else _UNLIMITED)
                continue
            decision = hit.decision
            start = starts.get(rule) or self._start(rule, limit)
            remaining = decision.remaining
            if limit.exceed:
                remaining = hit.remaining
            ok = decision.allowed or rule.shadow
            # A table lookup takes 0.1 µs less for each number than encoding it.
            status = start[ok] + (_REMAINING[remaining] if remaining < _MOST_READY else _remaining(remaining))
            if ok or limit.requests:
                # Envoy writes it into the Retry-After of a denied request.
                wait = decision.reset_after if ok or decision.retry_after == NEVER else decision.retry_after
                seconds = -(-wait // SECOND)
                status += _RESET[seconds] if seconds < _MOST_READY else _reset(seconds)
            size = len(status)
            parts += (_STATUS_OF[size] if size < _MOST_READY else bytes((_STATUS,)) + varint(size), status)
        if self._headers is not None:
            hit = verdict.tightest()
            if hit is not None:
                parts += _response_headers(self._headers, hit)
        if self._dynamic_metadata:
            metadata = dynamic_metadata(verdict, decode(body), self._shown)
            parts.append(_field(_DYNAMIC_METADATA, metadata.SerializeToString(deterministic=True)))
        if verdict.unmatched is not None:
            parts.append(encode_explanation(verdict.hits, verdict.unmatched))
        return b"".join(parts)

    def _denied(self, hit: Hit) -> bytes:
        """The status of a hit on a rule that denies always."""
        rule, decision = hit.rule, hit.decision
        start = self._starts.get(rule) or self._start(rule, hit.limit)
        status = start[decision.allowed or rule.shadow]
        if decision.retry_after > 0:
            status += _reset(-(-decision.retry_after // SECOND))
        return _field(_STATUS, status)

    def _start(self, rule: Rule, limit: Limit) -> tuple[bytes, bytes]:
        """The begin of every status of the rule: when it is over its limit, and when it is not."""
        if len(self._starts) >= _MOST_RULES:  # each limit sent with a request is a rule of its own
            self._starts.clear()
        body = b"" if limit is ZERO_LIMIT else b"\x10" + varint(limit.unit)
        if limit.requests:
            body = b"\x08" + varint(limit.requests) + body
        if rule.name:
            body += _field(3 << 3 | 2, rule.name.encode())
        if limit.window != limit.unit.window:
            body += _field(4 << 3 | 2, b"\x08" + varint(limit.window // limit.unit.window))
        current_limit = _field(_CURRENT_LIMIT, body)
        start = self._starts[rule] = _CODE_OVER_LIMIT + current_limit, _CODE_OK + current_limit
        return start


def reset_seconds(hit: Hit) -> int:
    """Whole seconds until the counter is reset, rounded up as in upstream."""
    return -(-hit.decision.reset_after // SECOND)


def _response_headers(names: HeaderNames, hit: Hit) -> Iterable[bytes]:
    values = (hit.limit.requests, hit.remaining, reset_seconds(hit))
    for name, value in zip(names, values, strict=True):
        header = _field(1 << 3 | 2, name.encode()) + _field(2 << 3 | 2, b"%d" % value)
        yield _field(_RESPONSE_HEADER, header)


def dynamic_metadata(verdict: Verdict, request: Request, shown: Shown) -> Struct:
    """The request, and the `metadata` of the rules that were not over their limit."""
    described: dict[str, Any] = {
        "domain": request.domain,
        "descriptors": [
            _describe(descriptor, shown(request.domain, descriptor.entries)) for descriptor in request.descriptors
        ],
    }
    if request.hits_addend:
        described["hitsAddend"] = request.hits_addend
    metadata: dict[str, Any] = {}
    for hit in verdict.hits:
        if hit is not None and hit.limit is not NO_LIMIT and hit.rule.metadata and not hit.over:
            _merge(metadata, hit.rule.metadata)
    if metadata:
        described["metadata"] = metadata
    message = Struct()
    message.update(described)
    return message


def _describe(descriptor: Descriptor, shown: Entries) -> dict[str, Any]:
    described: dict[str, Any] = {"entries": [f"{key}={value}" for key, value in shown]}
    limit = descriptor.override
    if limit is not None:
        requests = f"requests_per_unit:{limit.requests} " if limit.requests else ""
        described["limit"] = f"{requests}unit:{limit.unit.name}"
    if descriptor.hits_addend is not None:
        described["hitsAddend"] = descriptor.hits_addend
    return described


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add keys that are missing, in nested maps too. `more` belongs to a rule and is not changed."""
    for key, value in more.items():
        if isinstance(value, Mapping):
            mine = into.setdefault(key, {})
            if isinstance(mine, dict):
                _merge(mine, value)
        else:
            into.setdefault(key, value)
