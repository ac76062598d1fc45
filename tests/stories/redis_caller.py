"""One of many callers at once: `python redis_caller.py PORT CALLS KEY:COST …` prints how many of each were allowed.

All its calls of one kind are under way together. It waits for a line on its input before it begins.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

from ratelimit_service.api.generated.envoy.service.ratelimit.v3 import rls_pb2

PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def main(port: str, calls: str, *kinds: str) -> None:
    """Calls, and counts."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, ThreadPoolExecutor(16) as pool:
        ask = channel.unary_unary(
            PATH,
            request_serializer=rls_pb2.RateLimitRequest.SerializeToString,
            response_deserializer=rls_pb2.RateLimitResponse.FromString,
        )
        grpc.channel_ready_future(channel).result(timeout=60)
        print("ready", flush=True)
        sys.stdin.readline()
        allowed = {}
        for kind in kinds:
            key, _, cost = kind.partition(":")
            request = rls_pb2.RateLimitRequest(domain="shop", hits_addend=int(cost))
            request.descriptors.add().entries.add(key=key, value=cost)
            answers = pool.map(lambda _, request=request: ask(request, timeout=60), range(int(calls)))
            allowed[kind] = sum(answer.overall_code == rls_pb2.RateLimitResponse.OK for answer in answers)
        print(json.dumps(allowed), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
