"""A client made of other people's stubs alone: prints what each answer says, field by field, as JSON.

Runs in a process of its own, with xds-protos on its path: its descriptors and ours have the same names.
"""

# mypy: disable-error-code="import-not-found"

import json
import sys
from typing import Any

import grpc
from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from envoy.service.ratelimit.v3.rls_pb2_grpc import RateLimitServiceStub
from envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit
from google.protobuf.json_format import MessageToDict


def descriptor(*entries: tuple[str, str], hits: int | None = None, limit: tuple[int, int] | None = None) -> Any:
    made = RateLimitDescriptor(entries=[RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries])
    if hits is not None:
        made.hits_addend.value = hits
    if limit is not None:
        made.limit.requests_per_unit, made.limit.unit = limit
    return made


REQUESTS = {
    "two descriptors": RateLimitRequest(
        domain="shop", descriptors=[descriptor(("user", "ada")), descriptor(("nobody", "x"))], hits_addend=3
    ),
    "own cost": RateLimitRequest(domain="shop", descriptors=[descriptor(("user", "ada"), hits=5)], hits_addend=3),
    "look": RateLimitRequest(domain="shop", descriptors=[descriptor(("user", "ada"), hits=0)]),
    "override": RateLimitRequest(domain="shop", descriptors=[descriptor(("x", "y"), limit=(7, RateLimitUnit.YEAR))]),
    "unlimited": RateLimitRequest(domain="shop", descriptors=[descriptor(("free", ""))]),
    "over": RateLimitRequest(domain="shop", descriptors=[descriptor(("user", "ada"), hits=3)]),
}


def plain(answer: RateLimitResponse) -> Any:
    said = MessageToDict(answer, preserving_proto_field_name=True)
    for status in said["statuses"]:
        if "duration_until_reset" in status:
            # It depends on the time of day; that it is whole seconds, and some, does not.
            seconds = status["duration_until_reset"].removesuffix("s")
            status["duration_until_reset"] = seconds.isdecimal() and int(seconds) > 0
    for header in said.get("response_headers_to_add", ()):
        if header["key"] == "RateLimit-Reset":
            header["value"] = header["value"].isdecimal()
    return said


with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = RateLimitServiceStub(channel)
    print(json.dumps({name: plain(stub.ShouldRateLimit(request, timeout=60)) for name, request in REQUESTS.items()}))
