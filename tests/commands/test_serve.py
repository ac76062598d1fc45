"""`ratelimit serve`: what it says to whoever starts it by hand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, Service, start_service
from tests.redis import start_redis
from tests.transports.certificates import authority

RULES = "domain: shop\ndescriptors: [{key: login, rate_limit: {unit: year, requests_per_unit: 5}}]\n"


def hints(service: Service) -> list[str]:
    """Where to ask over gRPC and HTTP, and where the page is."""
    service.wait_until(lambda: "The page is" in service.log, "hints are given")
    return re.findall(r"(?<= call )\S+|(?<=curl -i )\S+|(?<=The page is )\S+", service.log)


@pytest.mark.parametrize(
    ("listening", "host"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "localhost"), ("::", "localhost")],  # noqa: S104 - as by default
)
def test_hints_have_the_ports_that_were_got(listening: str, host: str, tmp_path: Path) -> None:
    environ = {"HOST": listening, "DEBUG_HOST": listening, "GRPC_HOST": listening}
    with start_service(tmp_path, RULES, environ, ["--hints"]) as service:
        assert hints(service) == [
            f"{host}:{service.grpc_port}",
            f"{host}:{service.http_port}/json",
            f"http://{host}:{service.debug_port}/",
        ]


def test_hints_have_no_call_that_tls_would_refuse(tmp_path: Path) -> None:
    issued = authority(tmp_path)
    environ = {
        "GRPC_SERVER_USE_TLS": "true",
        "GRPC_SERVER_TLS_CERT": str(issued.cert),
        "GRPC_SERVER_TLS_KEY": str(issued.key),
    }
    with start_service(tmp_path, RULES, environ, ["--hints"]) as service:
        assert hints(service) == [f"127.0.0.1:{service.http_port}/json", f"http://127.0.0.1:{service.debug_port}/"]


def test_hints_of_several_workers_have_their_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    with start_redis(tmp_path / "redis") as redis:
        environ = {"GRPC_UDS": str(path), "WORKERS": "2", "REDIS_URL": f"127.0.0.1:{redis.port}", "TRANSPORT": "http2"}
        with start_service(tmp_path / "service", RULES, environ, ["--hints"]) as service:
            [target, *_] = hints(service)
            command = [sys.executable, "-m", "ratelimit_service", "call", target, "shop", "login=ada"]
            answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert target == f"unix:{path}"
    assert answer.stdout.startswith("OK\n"), answer.stderr
