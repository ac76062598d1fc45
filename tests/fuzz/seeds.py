"""Cases of requests to begin with: each option of the harness, each field of a request, each algorithm."""

import json
from collections.abc import Iterator

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_unit_pb2 import MINUTE
from tests.fuzz.requests import SEPARATOR


def seeds() -> Iterator[bytes]:
    """All of them."""
    requests = list(_requests())
    for how in (0, 1, 4, 8, 16, 29):
        for request in requests:
            yield bytes([how]) + SEPARATOR.join(b"\x05" + request for _ in range(3))
    for request in requests:
        yield b"\x00" + SEPARATOR.join(b"\x02" + each for each in (request, *requests[:3]))
    text = {
        "domain": "b",
        "hitsAddend": 2,
        "descriptors": [{"entries": [{"key": "f", "value": "xy"}], "limit": {"unit": "DAY", "requestsPerUnit": 2}}],
    }
    yield b"\x02\x00" + json.dumps(text).encode()
    yield b"\x02\x00" + b'{"domain": "a", "domain": "b"}'


def _requests() -> Iterator[bytes]:
    for key in "fwsltk":
        yield _request("a", [(key, "x")], [("f", "y")])
        yield _request("a", [(key, "x")], cost=3)
        yield _request("a", [(key, "x")], cost=2, refund=True)
    yield _request("a", [("l", "x")], cost=60_000)
    yield _request("b", [("f", "q")], [("f", "xyz")], [("k", "1")])
    yield _request("b", [("k", "|=~%"), ("v", "\u202e")], [("k", "1"), ("w", "2")], [("k", "1"), ("u", "")])
    yield _request("b", [("k", "1"), ("z", "2")])
    yield _request("b", [("f", "1")], override=True)
    yield _request("b", [("f", "v" * 600)], [("no", "rule")])
    yield _request("c", [("f", "1")], cost=0)
    yield b""


def _request(
    domain: str,
    *descriptors: list[tuple[str, str]],
    cost: int | None = None,
    refund: bool = False,
    override: bool = False,
) -> bytes:
    request = RateLimitRequest(domain=domain)
    for entries in descriptors:
        descriptor = request.descriptors.add(is_negative_hits=refund)
        for key, value in entries:
            descriptor.entries.add(key=key, value=value)
        if cost is not None:
            descriptor.hits_addend.value = cost
        if override:
            descriptor.limit.requests_per_unit, descriptor.limit.unit = 2, MINUTE
            descriptor.limit.unit_multiplier.value = 3
    return request.SerializeToString()
