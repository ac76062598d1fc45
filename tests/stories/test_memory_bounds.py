"""What requests leave in the process is bounded in bytes: each part is sent more than twice what it may keep.

The process's size is the system's word. It grows by no more than the bound, a quarter of it for what the reckoning of
a part leaves out and the allocator keeps, and 8 MiB for all else that a first load makes: buffers, code, caches.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

import grpc
import pytest

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.ratelimit import PLANS_BYTES, ShouldRateLimit
from ratelimit_service.stores.redis.denied import ENTRY_BYTES
from ratelimit_service.telemetry.tally import BYTES as TALLIES_BYTES
from tests.processes import Service, start_service
from tests.redis import start_redis
from tests.sampled import extended

MEBIBYTE: Final = 2**20
BESIDES: Final = 8 * MEBIBYTE
AT_ONCE: Final = 10
EVICTED: Final = '\nratelimit_store_evicted_counters_total{store="memory"}'
SECONDS: Final = 60

RULES: Final = """\
domain: shop
descriptors:
- {key: plain, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: log, rate_limit: {unit: year, requests_per_unit: 3000, algorithm: sliding_log}}
- {key: told, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: k, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: denied, rate_limit: {unit: year, requests_per_unit: 1, algorithm: sliding_window}}
"""


def asking(key: str, values: Iterable[str], cost: int = 1) -> bytes:
    """A request of a descriptor for each value."""
    request = RateLimitRequest(domain="shop", hits_addend=cost)
    for value in values:
        request.descriptors.add().entries.add(key=key, value=value)
    return request.SerializeToString()


def rss(pid: int) -> int:
    """The memory that the process has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grown(service: Service, requests: Iterator[bytes]) -> int:
    """How much larger the process is, at its largest, when all these have been answered."""
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        ask = channel.unary_unary(ShouldRateLimit.path, None, None)
        for number in range(200):  # what a first call makes is no part of it
            ask(asking("first", [str(number)]), timeout=SECONDS)
        before = most = rss(service.pid)
        waiting: deque[grpc.Future[bytes]] = deque()
        for number, body in enumerate(requests):
            waiting.append(ask.future(body, timeout=SECONDS))
            if len(waiting) > AT_ONCE:
                waiting.popleft().result()
            if number % 100 == 0:
                most = max(most, rss(service.pid))
        for call in waiting:
            call.result()
        return max(most, rss(service.pid)) - before


def allowed(bound: int) -> int:
    """By how much a process may grow whose part is bounded so."""
    return bound * 5 // 4 + BESIDES


@pytest.mark.slow
@pytest.mark.parametrize(("name", "requests"), [(10, 2_000), extended((1_000, 1_200))])
def test_counters_take_no_more_than_their_bytes(tmp_path: Path, name: int, requests: int) -> None:
    """Of 16 MiB in place of 512, for the time that it takes to fill them; with short names, and long ones."""
    bound, numbers = 16 * MEBIBYTE, count()
    values = ([f"{next(numbers):0{name}}" for _ in range(100)] for _ in range(requests))
    with start_service(tmp_path, RULES, {"MEMORY_MAX_BYTES": str(bound)}) as service:
        more = grown(service, (asking("plain", each) for each in values))

        assert f"{EVICTED} 0\n" not in service.metrics()
    assert more < allowed(bound)


@pytest.mark.extended
def test_logs_take_no_more_than_their_bytes(tmp_path: Path) -> None:
    """Of 10 MiB in place of 512, for the same reason: a request makes a log longer by a hundred hits, up to 3,000."""
    bound = 10 * MEBIBYTE
    with start_service(tmp_path, RULES, {"MEMORY_MAX_BYTES": str(bound)}) as service:
        more = grown(service, (asking("log", [f"{number // 30}"] * 100) for number in range(20_000)))

        assert f"{EVICTED} 0\n" not in service.metrics()
    assert more < allowed(bound)


@pytest.mark.extended
def test_plans_take_no_more_than_their_bytes(tmp_path: Path) -> None:
    """Each request comes twice, which is when it is remembered; in 500 bytes it has 60 hits."""

    def requests() -> Iterator[bytes]:
        for cost in range(1, 9_000):
            yield from [asking("k", [""] * 60, cost)] * 2

    with start_service(tmp_path, RULES) as service:
        more = grown(service, requests())

    assert more < allowed(PLANS_BYTES)


@pytest.mark.extended
def test_tallies_by_value_take_no_more_than_their_bytes(tmp_path: Path) -> None:
    """With more values told apart than by default, so that one rule fills what all have together; and few counters."""
    numbers = count()
    requests = (asking("told", [f"{next(numbers):0900}" for _ in range(100)]) for _ in range(1_500))
    environ = {"METRICS_MAX_VALUES": "1000000", "MEMORY_MAX_BYTES": str(MEBIBYTE)}
    with start_service(tmp_path, RULES, environ) as service:
        more = grown(service, requests)

    assert more < allowed(TALLIES_BYTES + MEBIBYTE)


@pytest.mark.slow
def test_denied_counters_take_no_more_than_their_bytes(tmp_path: Path) -> None:
    """Of 20,000 in place of 100,000, for the same reason. Each counter is asked twice, and the second time denied."""
    bound = 20_000 * ENTRY_BYTES
    values = [[f"{number:06}{digit:0434}" for digit in range(100)] for number in range(600)]

    def requests() -> Iterator[bytes]:
        for each in values:
            yield from [asking("denied", each)] * 2

    with start_redis(tmp_path / "redis") as redis:
        environ = {
            "REDIS_URL": f"127.0.0.1:{redis.port}",
            "REFUSED_MAX_COUNTERS": "20000",
            "STORE_DEADLINE": "60s",
        }
        with start_service(tmp_path / "service", RULES, environ) as service:
            more = grown(service, requests())
            known = [known_of(service, asking("denied", each)) for each in (values[0], values[-1])]

    assert known == [0, 100]
    assert more < allowed(bound)


def known_of(service: Service, request: bytes) -> int:
    """How many of its counters are denied without Redis."""
    name = '\nratelimit_service_rate_limit_over_limit_with_local_cache{domain="shop",key1="denied"} '

    def told() -> int:
        return int(service.metrics().partition(name)[2].partition("\n")[0] or 0)  # it is there from the first one on

    before = told()
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        channel.unary_unary(ShouldRateLimit.path, None, None)(request, timeout=SECONDS)
    return told() - before
