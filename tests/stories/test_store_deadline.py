"""The deadline is the caller's: what Redis may take for a call, with the settings that a user gets."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.ratelimit import ShouldRateLimit
from tests.processes import Service, ask, start_service
from tests.redis import Redis, start_redis

RULES = """
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000000}}
"""
BODY = '{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}'
LONG = 50.0
"""Seconds that a patient caller grants: more than a busy machine takes."""


@contextmanager
def started(folder: Path, **environ: str) -> Iterator[tuple[Redis, Service]]:
    with start_redis(folder / "redis") as redis:
        settings = {"REDIS_URL": f"127.0.0.1:{redis.port}", **environ}
        with start_service(folder / "service", RULES, settings) as service:
            series = 'ratelimit_store_healthy{store="redis"} 1'
            service.wait_until(lambda: series in service.metrics(), "Redis is connected")
            yield redis, service


class Caller:
    """One connection."""

    def __init__(self, service: Service) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}")
        grpc.channel_ready_future(self._channel).result(LONG)
        serialize = RateLimitRequest.SerializeToString
        self._call: Any = self._channel.unary_unary(ShouldRateLimit.path, serialize, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def begin(self, seconds: float | None) -> "grpc.Future[bytes]":
        """A call that grants so much."""
        entry = RateLimitDescriptor.Entry(key="user", value="ada")
        question = RateLimitRequest(domain="shop", descriptors=[RateLimitDescriptor(entries=[entry])])
        call: grpc.Future[bytes] = self._call.future(question, timeout=seconds)
        return call


def metric(service: Service, name: str) -> float:
    """The value of a series; 0 when it is not there."""
    found = [line.rpartition(" ")[2] for line in service.metrics().splitlines() if line.rpartition(" ")[0] == name]
    return float(found[0]) if found else 0.0


@pytest.mark.usefixtures("transport")
def test_what_is_granted_is_what_redis_may_take(tmp_path: Path) -> None:
    with started(tmp_path) as (_, service), Caller(service) as caller:
        caller.begin(LONG).result()
        ask(service.http_port, "/json", method="POST", body=BODY)

        assert metric(service, 'ratelimit_store_deadline_seconds{bound="default"}') == 1.0
        assert 'bound="most"' not in service.metrics()
        assert metric(service, "ratelimit_store_granted_seconds_count") == 2
        assert metric(service, 'ratelimit_store_granted_seconds_bucket{le="0.5"}') == 0
        assert metric(service, 'ratelimit_store_granted_seconds_bucket{le="1.0"}') == 1


def test_a_deadline_that_is_set_is_the_most_for_any_caller(tmp_path: Path) -> None:
    with started(tmp_path, STORE_DEADLINE="10s") as (_, service), Caller(service) as caller:
        caller.begin(LONG).result()
        ask(service.http_port, "/json", method="POST", body=BODY)

        assert metric(service, 'ratelimit_store_deadline_seconds{bound="most"}') == 10.0
        assert metric(service, "ratelimit_store_granted_seconds_sum") == 20.0


def test_with_workers_deadlines_are_added_up(tmp_path: Path) -> None:
    with started(tmp_path, WORKERS="2") as (_, service), Caller(service) as caller:
        caller.begin(LONG).result()
        assert ask(service.http_port, "/json", method="POST", body=BODY).status == 200

        service.wait_until(lambda: metric(service, "ratelimit_store_granted_seconds_count") == 2, "both are counted")
        assert metric(service, 'ratelimit_store_deadline_seconds{bound="default"}') == 1.0
        assert metric(service, "ratelimit_store_late_answers_total") == 0


def test_a_service_that_is_stopped_again_and_again_answers_nothing_by_policy(tmp_path: Path) -> None:
    """As a CPU limit does it: for 40 ms of each 50 it does not run."""
    with started(tmp_path) as (redis, service), Caller(service) as caller:
        calls = []
        for _ in range(100):
            calls += [caller.begin(LONG) for _ in range(5)]
            service.send(signal.SIGSTOP)
            time.sleep(0.04)
            service.send(signal.SIGCONT)
            time.sleep(0.01)
        for call in calls:
            assert call.result()

        assert "ratelimit_store_errors_total{" not in service.metrics()
        assert "store lost" not in service.log
        assert redis.cli("CLIENT", "LIST").count(" addr=127.0.0.1:") == 1


def test_a_caller_that_grants_little_is_answered_by_policy_while_one_that_grants_much_waits(tmp_path: Path) -> None:
    with started(tmp_path, ON_STORE_FAILURE="open") as (redis, service), Caller(service) as caller:
        redis.send(signal.SIGSTOP)
        patient, hasty = caller.begin(LONG), caller.begin(1)
        assert hasty.result()
        redis.send(signal.SIGCONT)
        assert patient.result()

        assert metric(service, 'ratelimit_store_errors_total{store="redis",cause="timeout"}') == 1
