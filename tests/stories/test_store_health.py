"""What health says while Redis is away: nothing, unless it was told to."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.peers import grpc_peers
from tests.ports import free_port
from tests.processes import ROOT, Service, ask, start_service
from tests.redis import start_redis

pytestmark = pytest.mark.usefixtures("transport")

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 100}}]\n"
PATIENT = {"STORE_DEADLINE": "10s"}
"""A busy machine must not look like a Redis that is away."""
NEEDED = {"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION": "true", **PATIENT}


def asked(service: Service) -> tuple[int, str]:
    """What /healthcheck says, and gRPC's Check to grpcio's own client."""
    return ask(service.http_port, "/healthcheck").status, _said_to(service, "check").communicate(timeout=60)[0].strip()


def _said_to(service: Service, verb: str) -> "subprocess.Popen[str]":
    client = ROOT / "tests" / "api" / "health_client.py"
    command = [sys.executable, str(client), f"127.0.0.1:{service.grpc_port}", verb, "ratelimit"]
    return subprocess.Popen(command, env={"PYTHONPATH": str(grpc_peers())}, stdout=subprocess.PIPE, text=True)


@contextmanager
def watching(service: Service) -> Iterator["subprocess.Popen[str]"]:
    """A client that is told of each change, a line each."""
    with _said_to(service, "watch") as client:
        try:
            yield client
        finally:
            client.kill()


def test_health_follows_redis_where_that_is_asked_for(tmp_path: Path) -> None:
    port = free_port()
    environ = {"REDIS_URL": f"127.0.0.1:{port}", **NEEDED}
    with (
        start_service(tmp_path / "service", RULES, environ, wait_until_healthy=False) as service,
        watching(service) as client,
    ):
        assert client.stdout is not None
        told = [client.stdout.readline()]
        assert asked(service) == (500, "NOT_SERVING")
        for folder in ("first", "second"):
            with start_redis(tmp_path / folder, port=port) as redis:
                service.wait_until(lambda: service.healthy, "Redis was found")
                told.append(client.stdout.readline())
                assert asked(service) == (200, "SERVING")
                redis.kill()
                service.wait_until(lambda: not service.healthy, "Redis is missed")
                told.append(client.stdout.readline())
                assert asked(service) == (500, "NOT_SERVING")

    assert told == ["NOT_SERVING\n", "SERVING\n", "NOT_SERVING\n", "SERVING\n", "NOT_SERVING\n"]


def test_the_redis_for_rules_per_second_is_needed_too(tmp_path: Path) -> None:
    with start_redis(tmp_path / "main") as main, start_redis(tmp_path / "fast") as fast:
        urls = {"REDIS_URL": f"127.0.0.1:{main.port}", "REDIS_PERSECOND_URL": f"127.0.0.1:{fast.port}"}
        with start_service(tmp_path / "service", RULES, {**urls, **NEEDED, "REDIS_PERSECOND": "true"}) as service:
            fast.kill()

            service.wait_until(lambda: not service.healthy, "the other one is missed")


def test_health_does_not_mind_otherwise(tmp_path: Path) -> None:
    with (
        start_redis(tmp_path / "redis") as redis,
        start_service(tmp_path / "service", RULES, {"REDIS_URL": f"127.0.0.1:{redis.port}", **PATIENT}) as service,
    ):
        redis.kill()
        service.wait_until(lambda: "store lost" in service.log, "Redis is missed")

        assert asked(service) == (200, "SERVING")


def test_counters_in_memory_are_always_there(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES, NEEDED) as service:
        assert asked(service) == (200, "SERVING")
