"""Callers of a limit with a queue: those that wait, that have no time for it, that go away, and that outlive a service.

The limit is for all instances, whose counter is in Redis. Nothing is answered too early; how late, a busy machine says.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import pytest

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from tests.processes import Service, eventually, start_service
from tests.redis import start_redis

PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
OK, OVER_LIMIT = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT
RULES = """
domain: shop
headers: [ratelimit]
descriptors:
  - key: backend
    rate_limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 10, queue: {max_delay: 60s}}
  - key: slow
    rate_limit: {algorithm: leaky_bucket, unit: minute, requests_per_unit: 2, queue: {max_delay: 60s}}
"""


class Caller:
    """A client of some instances, asked in turn."""

    def __init__(self, *channels: grpc.Channel) -> None:
        self._methods = [channel.unary_unary(PATH, None, RateLimitResponse.FromString) for channel in channels]
        self._next = 0

    def ask(self, key: str, timeout: float = 60) -> Any:
        """The future of a response."""
        request = RateLimitRequest(domain="shop")
        request.descriptors.add().entries.add(key=key, value="x")
        self._next += 1
        return self._methods[self._next % len(self._methods)].future(request.SerializeToString(), timeout)


@contextmanager
def started(
    folder: Path, instances: int = 1, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[Caller, list[Service]]]:
    """Instances on one Redis, and a client of them."""
    with ExitStack() as stack:
        redis = stack.enter_context(start_redis(folder / "redis"))
        settings = {"REDIS_URL": f"127.0.0.1:{redis.port}", "STORE_DEADLINE": "10s", **(environ or {})}
        services = [
            stack.enter_context(start_service(folder / f"{number}", RULES, settings)) for number in range(instances)
        ]
        channels = [grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") for service in services]
        for channel in channels:
            stack.enter_context(channel)
        yield Caller(*channels), services


def metric(services: list[Service], name: str) -> int:
    return sum(
        int(found) for service in services for found in re.findall(rf"^{name} (\d+)$", service.metrics(), re.MULTILINE)
    )


def delay(response: RateLimitResponse) -> int:
    """Milliseconds, as its header says."""
    found = {header.key: header.value for header in response.response_headers_to_add}
    return int(found.get("RateLimit-Delay", 0))


@pytest.mark.parametrize("environ", [{}, {"TRANSPORT": "grpcio"}, {"WORKERS": "2"}], ids=["http2", "grpcio", "workers"])
def test_two_instances_let_out_ten_a_second_together(tmp_path: Path, environ: dict[str, str]) -> None:
    with started(tmp_path, 2, environ) as (caller, services):
        begin = monotonic()
        waiting = [caller.ask("backend") for _ in range(8)]
        responses = [each.result() for each in waiting]

        assert monotonic() - begin >= 0.7
        assert [response.overall_code for response in responses] == [OK] * 8
        delays = sorted(map(delay, responses))
        assert delays[0] == 0
        assert delays[-1] >= 300  # 700, less what the calls took to come
        assert metric(services, "ratelimit_queue_requests") == 0
        assert metric(services, "ratelimit_queue_wait_seconds_count") >= 4


def test_a_caller_without_the_time_to_wait_is_refused_at_once_and_not_late(tmp_path: Path) -> None:
    with started(tmp_path) as (caller, services):
        codes = [caller.ask("slow", 20).result().overall_code for _ in range(2)]

        assert codes == [OK, OVER_LIMIT]
        assert metric(services, "ratelimit_queue_expired_total") == 1


def test_a_caller_that_goes_away_waits_no_more(tmp_path: Path) -> None:
    with started(tmp_path) as (caller, services):
        caller.ask("slow").result()
        first, behind = caller.ask("slow", 90), caller.ask("slow", 90)
        eventually(lambda: metric(services, "ratelimit_queue_requests") == 2, "both wait")
        first.cancel()
        eventually(lambda: metric(services, "ratelimit_queue_requests") == 1, "one waits")

        assert metric(services, "ratelimit_queue_abandoned_total") == 1
        assert not behind.done()


def test_a_service_that_stops_lets_those_that_wait_have_their_turns_and_refuses_the_rest(tmp_path: Path) -> None:
    with started(tmp_path, environ={"DRAIN_TIMEOUT": "2s"}) as (caller, services):
        caller.ask("slow").result()
        caller.ask("backend").result()
        waiting, soon = caller.ask("slow"), caller.ask("backend")
        eventually(lambda: metric(services, "ratelimit_queue_requests") >= 1, "it waits")

        assert services[0].stop() == 0

        assert soon.result().overall_code == OK
        assert waiting.result().overall_code == OVER_LIMIT
