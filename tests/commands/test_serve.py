"""`ratelimit serve`: what it says to whoever starts it by hand."""

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import ROOT, Service, start_service
from tests.redis import start_redis
from tests.transports.certificates import authority, issue

RULES = "domain: shop\ndescriptors: [{key: login, rate_limit: {unit: year, requests_per_unit: 5}}]\n"


def hints(service: Service) -> list[str]:
    """Where to ask over gRPC and HTTP, and where the page is."""
    service.wait_until(lambda: "The page is" in service.log, "hints are given")
    return re.findall(r"(?<= call )\S+|(?<=curl -i )\S+|(?<=The page is )[^\s#]+", service.log)


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


def with_tls(folder: Path) -> dict[str, str]:
    """The settings of a service that speaks TLS."""
    return issue(authority(folder), "server", "DNS:localhost").environ


def test_hints_have_no_call_that_tls_would_refuse(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES, with_tls(tmp_path), ["--hints"]) as service:
        assert hints(service) == [f"127.0.0.1:{service.http_port}/json", f"http://127.0.0.1:{service.debug_port}/"]


def test_hints_of_several_workers_have_their_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    with start_redis(tmp_path / "redis") as redis:
        environ = {
            "GRPC_UDS": str(path),
            "WORKERS": "2",
            "REDIS_URL": f"127.0.0.1:{redis.port}",
            "STORE_DEADLINE": "10s",
            "TRANSPORT": "http2",
        }
        with start_service(tmp_path / "service", RULES, environ, ["--hints"]) as service:
            [target, *_] = hints(service)
            command = [sys.executable, "-m", "ratelimit_service", "call", target, "shop", "login=ada"]
            answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert target == f"unix:{path}"
    assert answer.stdout.startswith("OK\n"), answer.stderr


@contextmanager
def files(soft: int) -> Iterator[None]:
    """How many files programs may have that are started meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_it_takes_all_the_files_that_it_may_have(tmp_path: Path) -> None:
    """Shells and containers begin with 1,024, often, and ten thousand connections are ten thousand files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with files(512), start_service(tmp_path, RULES, {"GRPC_MAX_CONNECTIONS": str(hard)}) as service:
        assert float(service.metrics().partition("\nprocess_max_fds ")[2].split()[0]) == hard
        assert f"GRPC_MAX_CONNECTIONS: {hard} gRPC and 500 HTTP connections take {hard + 600} files" in service.log
