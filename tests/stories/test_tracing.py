"""Spans of calls, as a collector of OpenTelemetry gets them."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ratelimit_service.api.generated.envoy.service.ratelimit.v3 import rls_pb2
from tests.processes import ROOT, Service, start_service
from tests.redis import start_redis
from tests.stories.otlp import Collector, start_collector
from tests.workers.pool import PATH, start_pool

RULES: Final = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
PARENT: Final = "b7ad6b7169203331"
SAMPLED: Final = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


def settings(port: int, protocol: str = "http", **more: str) -> dict[str, str]:
    return {
        "TRACING_ENABLED": "true",
        "TRACING_EXPORTER_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_BSP_SCHEDULE_DELAY": "20",  # milliseconds
        "GRPC_ENABLE_FORK_SUPPORT": "false",
        **more,
    }


@contextmanager
def calling(service: Service) -> Iterator["Caller"]:
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        yield Caller(channel)


class Caller:
    """A client on one connection."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._call = channel.unary_unary(
            PATH, rls_pb2.RateLimitRequest.SerializeToString, rls_pb2.RateLimitResponse.FromString
        )

    def ask(self, headers: Mapping[str, str], user: str = "secret-of-ada", domain: str = "shop") -> int:
        """The code of the answer."""
        request = rls_pb2.RateLimitRequest(domain=domain)
        request.descriptors.add().entries.add(key="user", value=user)
        request.descriptors.add().entries.add(key="other", value=user)
        response = self._call(request, timeout=30, metadata=tuple(headers.items()))
        return int(response.overall_code)


def attributes(span: Span) -> dict[str, str | int]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def wait_for(service: Service, collector: Collector, count: int) -> list[Span]:
    service.wait_until(lambda: len(collector.spans) >= count, f"{count} spans are exported")
    return collector.spans


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_sampled_call_is_a_span_below_its_callers_and_says_no_values(tmp_path: Path, protocol: str) -> None:
    with start_collector(protocol) as collector:
        environ = settings(collector.port, protocol, TRACING_SERVICE_NAMESPACE="edge", TRACING_SERVICE_INSTANCE_ID="i7")
        with start_service(tmp_path, RULES, environ) as service, calling(service) as caller:
            assert [caller.ask(SAMPLED), caller.ask(SAMPLED)] == [1, 2]
            first, second = wait_for(service, collector, 2)

    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    assert first.name == "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    assert first.kind == Span.SPAN_KIND_SERVER
    assert first.start_time_unix_nano < first.end_time_unix_nano
    assert attributes(first) == {
        "rpc.system": "grpc",
        "rpc.service": "envoy.service.ratelimit.v3.RateLimitService",
        "rpc.method": "ShouldRateLimit",
        "rpc.grpc.status_code": 0,
        "ratelimit.domain": "shop",
        "ratelimit.descriptors": 2,
        "ratelimit.code": "OK",
    }
    assert attributes(second)["ratelimit.code"] == "OVER_LIMIT"
    assert second.span_id != first.span_id
    assert not any(b"secret-of-ada" in body for body in collector.bodies)
    expected = {"service.name": "RateLimit", "service.namespace": "edge", "service.instance.id": "i7"}
    assert collector.resource.items() >= expected.items()


@pytest.mark.usefixtures("transport")
def test_the_caller_decides_on_sampling_and_the_rate_where_it_does_not(tmp_path: Path) -> None:
    b3 = {"x-b3-traceid": TRACE[16:], "x-b3-spanid": PARENT, "x-b3-sampled": "1"}
    with start_collector("http") as collector:
        environ = settings(collector.port, TRACING_SAMPLING_RATE="0")
        with start_service(tmp_path, RULES, environ) as service, calling(service) as caller:
            for headers in ({}, {"traceparent": f"00-{TRACE}-{PARENT}-00"}, {"b3": "0"}, {"traceparent": "nonsense"}):
                caller.ask(headers)
            for number in range(1, 4):  # a client whose headers are looked up by their fields
                caller.ask({"traceparent": f"00-{TRACE}-{number:016x}-01"})
            caller.ask({"b3": f"{TRACE}-{PARENT}-1"})
            caller.ask(b3)
            assert service.stop() == 0

    parents = [span.parent_span_id.hex() for span in collector.spans]
    assert parents == [f"{1:016x}", f"{2:016x}", f"{3:016x}", PARENT, PARENT]
    assert [span.trace_id.hex() for span in collector.spans] == [TRACE] * 4 + ["0" * 16 + TRACE[16:]]


@pytest.mark.usefixtures("transport")
def test_a_call_without_a_context_begins_a_trace(tmp_path: Path) -> None:
    with (
        start_collector("http") as collector,
        start_service(tmp_path, RULES, settings(collector.port)) as service,
        calling(service) as caller,
    ):
        caller.ask({})
        caller.ask({"b3": "1"})
        one, other = wait_for(service, collector, 2)

    assert one.parent_span_id == other.parent_span_id == b""
    assert one.trace_id != other.trace_id


@pytest.mark.usefixtures("transport")
def test_the_wait_for_the_store_is_a_child_and_an_error_is_marked(tmp_path: Path) -> None:
    with start_collector("http") as collector, start_redis(tmp_path / "redis") as redis:
        environ = settings(collector.port, REDIS_URL=f"127.0.0.1:{redis.port}", STORE_DEADLINE="10s")
        with start_service(tmp_path / "s", RULES, environ) as service, calling(service) as caller:
            service.wait_until(lambda: "ratelimit_redis_connections 0" not in service.metrics(), "Redis is connected")
            caller.ask(SAMPLED)
            call, wait = wait_for(service, collector, 2)
            with pytest.raises(grpc.RpcError):
                caller.ask(SAMPLED, domain="")
            failed = wait_for(service, collector, 3)[2]

    assert call.parent_span_id.hex() == PARENT
    assert (wait.name, wait.kind) == ("store", Span.SPAN_KIND_CLIENT)
    assert (wait.trace_id.hex(), wait.parent_span_id) == (TRACE, call.span_id)
    assert attributes(wait) == {"ratelimit.hits": 1}
    assert call.start_time_unix_nano <= wait.start_time_unix_nano < wait.end_time_unix_nano <= call.end_time_unix_nano
    assert (failed.status.code, failed.status.message) == (Status.STATUS_CODE_ERROR, "INVALID_ARGUMENT")
    assert attributes(failed)["rpc.grpc.status_code"] == 3


def test_each_worker_exports_its_spans(tmp_path: Path) -> None:
    with start_collector("http") as collector:
        environ = settings(collector.port)
        with start_pool(tmp_path, 2, environ) as pool:
            with calling(pool.service) as one, calling(pool.service) as other:
                one.ask(SAMPLED)
                other.ask(SAMPLED)
            calls = [span for span in wait_for(pool.service, collector, 4) if span.name != "store"]

    assert [span.parent_span_id.hex() for span in calls] == [PARENT, PARENT]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_collector_that_is_down_harms_no_call(tmp_path: Path, protocol: str) -> None:
    with start_collector("http") as collector:
        port = collector.port
    environ = settings(port, protocol, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    with start_service(tmp_path, RULES, environ) as service, calling(service) as caller:
        codes = [caller.ask(SAMPLED) for _ in range(200)]
        service.wait_until(lambda: "opentelemetry" in service.log or "xport" in service.log, "the export has failed")
        codes.append(caller.ask(SAMPLED))

        assert codes == [1] + [2] * 200
        assert service.stop() == 0


def test_without_the_packages_the_start_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").touch()  # it hides the one that is installed
    environ = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "TRACING_ENABLED": "true", "RULES_PATH": str(ROOT / "config")}
    command = [sys.executable, "-m", "ratelimit_service", "serve"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert ended.returncode == 1
    assert (
        "TRACING_ENABLED needs the packages of OpenTelemetry: pip install 'ratelimit-service[tracing]'" in ended.stderr
    )


def test_a_service_that_does_not_trace_loads_nothing_of_opentelemetry() -> None:
    code = (
        "import sys; from ratelimit_service.settings import Settings;"
        "from ratelimit_service.server.engine import Engine;"
        "Engine(Settings()); print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)

    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
