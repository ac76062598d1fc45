"""What callers say of their traces, by W3C Trace Context and B3."""

import pytest

from ratelimit_service.api.trace_context import TraceContext, read_context

TRACE = b"0af7651916cd43dd8448eb211c80319c"
SPAN = b"b7ad6b7169203331"
IDS = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({"traceparent": b"00-%s-%s-01" % (TRACE, SPAN)}, TraceContext(*IDS, True)),
        ({"traceparent": b"00-%s-%s-00" % (TRACE, SPAN)}, TraceContext(*IDS, False)),
        ({"traceparent": b"00-%s-%s-03" % (TRACE, SPAN)}, TraceContext(*IDS, True)),
        ({"traceparent": b"01-%s-%s-01-more" % (TRACE, SPAN)}, TraceContext(*IDS, True)),
        ({"traceparent": b"00-%s-%s-01-more" % (TRACE, SPAN)}, None),
        ({"traceparent": b"ff-%s-%s-01" % (TRACE, SPAN)}, None),
        ({"traceparent": b"00-%s-%s-01" % (b"0" * 32, SPAN)}, None),
        ({"traceparent": b"00-%s-%s-01" % (TRACE, b"0" * 16)}, None),
        ({"traceparent": b"00-%s-%s-01" % (TRACE.upper(), SPAN)}, None),
        ({"traceparent": b"9" * 10_000}, None),
        ({"traceparent": b"nonsense", "b3": b"%s-%s-1" % (TRACE, SPAN)}, TraceContext(*IDS, True)),
        ({"b3": b"%s-%s" % (TRACE, SPAN)}, TraceContext(*IDS, None)),
        ({"b3": b"%s-%s-0-%s" % (TRACE, SPAN, SPAN)}, TraceContext(*IDS, False)),
        ({"b3": b"%s-%s-d" % (TRACE[16:], SPAN)}, TraceContext(0x8448EB211C80319C, IDS[1], True)),
        ({"b3": b"0"}, TraceContext(0, 0, False)),
        ({"b3": b"d"}, TraceContext(0, 0, True)),
        ({"b3": b"%s-%s-2" % (TRACE, SPAN)}, None),
        ({"x-b3-traceid": TRACE, "x-b3-spanid": SPAN, "x-b3-sampled": b"0"}, TraceContext(*IDS, False)),
        ({"x-b3-traceid": TRACE, "x-b3-spanid": SPAN}, TraceContext(*IDS, None)),
        ({"x-b3-traceid": TRACE, "x-b3-spanid": SPAN, "x-b3-flags": b"1"}, TraceContext(*IDS, True)),
        ({"x-b3-traceid": TRACE}, None),
        ({"x-b3-sampled": b"true"}, TraceContext(0, 0, True)),
        ({":path": b"/", "x-request-id": b"1"}, None),
    ],
)
def test_a_context_is_what_the_headers_say(fields: dict[str, bytes], context: TraceContext | None) -> None:
    assert read_context((name.encode(), value) for name, value in fields.items()) == context
