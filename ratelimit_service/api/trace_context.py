"""The caller's trace, from the headers of a call: W3C Trace Context, or B3 of Zipkin in one header or in several.

Only its ids are kept, and whether it is sampled: `tracestate` and baggage are for calls that a service makes itself,
and this one makes none that are traced.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple


class TraceContext(NamedTuple):
    """The trace context that a caller sent."""

    trace_id: int
    """0: it says only whether it is sampled."""
    span_id: int
    sampled: bool | None
    """None: the service decides."""


CONTEXT_HEADERS: Final = frozenset(
    {b"traceparent", b"b3", b"x-b3-traceid", b"x-b3-spanid", b"x-b3-sampled", b"x-b3-flags"}
)

_TRACEPARENT: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_B3: Final = re.compile(rb"((?:[0-9a-f]{16}){1,2})-([0-9a-f]{16})(?:-([01d])(?:-[0-9a-f]{16})?)?")
_TRACE_ID: Final = re.compile(rb"(?:[0-9a-f]{16}){1,2}")
_SPAN_ID: Final = re.compile(rb"[0-9a-f]{16}")
_SAMPLED: Final = {b"1": True, b"d": True, b"true": True, b"0": False, b"false": False}


def read_context(fields: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """The context in these headers, by their names in lower case; `traceparent` first. None if none is valid."""
    found = {name: value for name, value in fields if name in CONTEXT_HEADERS}
    if not found:
        return None
    if match := _TRACEPARENT.fullmatch(found.get(b"traceparent", b"")):
        version, trace, span, flags, more = match.groups()
        if version != b"00" or more is None:
            return _context(trace, span, sampled=bool(int(flags, 16) & 1))
    if b"b3" in found:
        if match := _B3.fullmatch(found[b"b3"]):
            return _context(match[1], match[2], sampled=_SAMPLED.get(match[3]))
        sampled = _SAMPLED.get(found[b"b3"])
    else:
        sampled = True if found.get(b"x-b3-flags") == b"1" else _SAMPLED.get(found.get(b"x-b3-sampled", b""))
        trace, span = found.get(b"x-b3-traceid", b""), found.get(b"x-b3-spanid", b"")
        if _TRACE_ID.fullmatch(trace) and _SPAN_ID.fullmatch(span):
            return _context(trace, span, sampled=sampled)
    return None if sampled is None else TraceContext(0, 0, sampled)


def _context(trace: bytes, span: bytes, *, sampled: bool | None) -> TraceContext | None:
    # Both specifications: an id of zeros only is invalid.
    trace_id, span_id = int(trace, 16), int(span, 16)
    return TraceContext(trace_id, span_id, sampled) if trace_id and span_id else None
