"""Several instances with one Redis: what an operator promises to users, from process to process."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.ratelimit import ShouldRateLimit
from tests.processes import START_SECONDS, Service, ask, start_service
from tests.redis import start_redis
from tests.stories.callers import call

pytestmark = pytest.mark.usefixtures("transport")

RULES = """
domain: shop
descriptors:
  - {key: few, rate_limit: {unit: year, requests_per_unit: 7}}
  - {key: many, rate_limit: {unit: year, requests_per_unit: 400}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 300, algorithm: token_bucket}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 100, algorithm: sliding_log}}
  - {key: estimate, rate_limit: {unit: year, requests_per_unit: 100, algorithm: sliding_window}}
  - {key: parts, rate_limit: {unit: year, requests_per_unit: 200, algorithm: sub_windows}}
  - {key: leak, rate_limit: {unit: year, requests_per_unit: 300, algorithm: leaky_bucket}}
"""

ASK = '{"domain": "shop", "descriptors": [{"entries": [{"key": "few", "value": "ada"}]}]}'


def status(service: Service) -> int:
    """The HTTP status of one request."""
    return ask(service.http_port, "/json", method="POST", body=ASK).status


@pytest.mark.slow
def test_three_services_with_four_callers_each_admit_exactly_the_limit(tmp_path: Path) -> None:
    kinds = (
        *("few:1", "many:1", "many:3", "bucket:1", "bucket:7", "log:1", "log:3"),
        *("estimate:1", "estimate:3", "parts:1", "parts:7", "leak:1", "leak:7"),
    )
    with ExitStack() as stack:
        redis = stack.enter_context(start_redis(tmp_path / "redis"))
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}", "STORE_DEADLINE": "10s"}
        services = [stack.enter_context(start_service(tmp_path / str(n), RULES, environ)) for n in range(3)]
        ports = [service.grpc_port for service in services] * 4
        allowed = stack.enter_context(call(ports, 45, kinds)).allowed()

    assert allowed == {
        "few:1": 7,
        "many:1": 400,
        "many:3": 133,
        "bucket:1": 300,
        "bucket:7": 42,
        "log:1": 100,
        "log:3": 33,
        "estimate:1": 100,
        "estimate:3": 33,
        "parts:1": 200,
        "parts:7": 28,
        "leak:1": 300,
        "leak:7": 42,
    }


def test_a_service_counts_in_redis_and_another_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with start_redis(tmp_path / "redis") as redis:
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}", "STORE_DEADLINE": "10s"}
        with start_service(tmp_path / "one", RULES, environ) as one:
            first = [status(one) for _ in range(5)]
            assert "counters in redis" in one.log
        with start_service(tmp_path / "other", RULES, environ) as other:
            second = [status(other) for _ in range(5)]

    assert first == [200] * 5
    assert second == [200, 200, 429, 429, 429]


def test_it_starts_without_redis_answers_by_policy_and_says_so(tmp_path: Path) -> None:
    with start_redis(tmp_path / "redis") as redis:
        port = redis.port
    environ = {"REDIS_URL": f"127.0.0.1:{port}", "REDIS_AUTH": "hunter2", "STORE_DEADLINE": "10s"}
    with start_service(tmp_path / "closed", RULES, {**environ, "ON_STORE_FAILURE": "closed"}) as service:
        assert status(service) == 429
        assert "store lost: Redis at 127.0.0.1" in service.log
        metrics = service.metrics()
        assert 'ratelimit_store_errors_total{store="redis",cause="refused"} 1' in metrics
        assert 'ratelimit_store_healthy{store="redis"} 0' in metrics
        with start_redis(tmp_path / "again", "--requirepass", "hunter2", port=port):
            service.wait_until(lambda: "store regained" in service.log, "it finds Redis")
            assert status(service) == 200
        assert "hunter2" not in service.log
    with start_service(tmp_path / "error", RULES, environ) as service:
        assert status(service) == 503
        # New rules need no Redis.
        service.write_rules(RULES.replace("few", "fewer"))
        service.wait_until(lambda: service.log.count("rules loaded") == 2, "the rules are loaded again")


def test_a_call_whose_deadline_passes_before_it_is_sent_is_not_charged(tmp_path: Path) -> None:
    """Two calls are under way to a Redis that hangs, so those that follow wait.

    The deadlines are long: a call that grants less time than Redis has been silent for is not sent at all.
    """
    with ExitStack() as stack:
        redis = stack.enter_context(start_redis(tmp_path / "redis"))
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}"}
        service = stack.enter_context(start_service(tmp_path / "service", RULES, environ))
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}"))
        begin: Any = channel.unary_unary(ShouldRateLimit.path, RateLimitRequest.SerializeToString, None)
        calls = []

        def ask_for(user: str, seconds: float = START_SECONDS) -> None:
            descriptor = RateLimitDescriptor(entries=[RateLimitDescriptor.Entry(key="few", value=user)])
            calls.append(begin.future(RateLimitRequest(domain="shop", descriptors=[descriptor]), timeout=seconds))
            taken = f'ratelimit_service_total_requests{{grpc_method="ShouldRateLimit"}} {len(calls)}\n'
            service.wait_until(lambda: taken in service.metrics(), "the call is taken")

        connected = 'ratelimit_store_healthy{store="redis"} 1\n'
        service.wait_until(lambda: connected in service.metrics(), "it has a connection that Redis may keep waiting")
        ask_for("before")
        calls[0].result()  # and what a start asks for, which has a second, is answered
        redis.send(signal.SIGSTOP)
        ask_for("on its way, first")
        ask_for("on its way, second", 5)
        ask_for("waits")
        ask_for("waits too short", 5)
        codes = [calls[number].code() for number in (2, 4)]
        service.wait_until(lambda: "\nratelimit_grpc_streams 2\n" in service.metrics(), "the service knows it too")
        redis.send(signal.SIGCONT)
        codes += [calls[number].code() for number in (1, 3)]
        counters = redis.cli("KEYS", "*")

    # A busy machine's client may see its deadline before the service's answer, which comes 50 ms earlier.
    assert {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED}.issuperset(codes[:2])
    assert codes[2:] == [StatusCode.OK, StatusCode.OK]
    assert [user for user in ("first", "second", "waits", "too short") if user in counters] == [
        "first",
        "second",
        "waits",
    ]


def test_it_stops_in_time_while_redis_hangs(tmp_path: Path) -> None:
    with start_redis(tmp_path / "redis") as redis:
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}", "ON_STORE_FAILURE": "open", "STORE_DEADLINE": "1s"}
        with start_service(tmp_path / "service", RULES, environ) as service:
            assert status(service) == 200
            assert 'ratelimit_store_answer_seconds_count{store="redis"} 1' in service.metrics()
            redis.send(signal.SIGSTOP)
            assert status(service) == 200
            assert 'ratelimit_store_answer_seconds_count{store="redis"} 2' in service.metrics()
            assert 'ratelimit_store_answer_seconds_bucket{store="redis",le="0.5"} 2' not in service.metrics()
            assert service.stop() == 0
            assert "Traceback" not in service.log
        redis.send(signal.SIGCONT)
