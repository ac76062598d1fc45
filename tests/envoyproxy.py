"""The real envoyproxy/ratelimit, built by Go, as a process that ends with the test."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests import peers
from tests.ports import free_port
from tests.processes import Process, ask


class Envoyproxy(Process):
    """It at work."""

    def __init__(self, folder: Path, rules: Path, environ: Mapping[str, str]) -> None:
        folder.mkdir()
        self.http_port, self.grpc_port = free_port(), free_port()
        settings = {
            "RUNTIME_ROOT": str(rules.parent),
            "RUNTIME_SUBDIRECTORY": ".",
            "RUNTIME_APPDIRECTORY": rules.name,
            "RUNTIME_WATCH_ROOT": "false",
            "HOST": "127.0.0.1",
            "PORT": str(self.http_port),
            "GRPC_HOST": "127.0.0.1",
            "GRPC_PORT": str(self.grpc_port),
            "DEBUG_HOST": "127.0.0.1",
            "DEBUG_PORT": str(free_port()),
            "USE_STATSD": "false",
        }
        super().__init__([str(peers.envoyproxy())], folder, {**settings, **environ})


@contextmanager
def start_envoyproxy(folder: Path, rules: Path, environ: Mapping[str, str]) -> Iterator[Envoyproxy]:
    """Once it is well; `rules` is the folder of its files, one below another."""
    with Envoyproxy(folder, rules, environ) as envoyproxy:
        envoyproxy.wait_until(lambda: ask(envoyproxy.http_port, "/healthcheck").status == 200, "envoyproxy is healthy")
        yield envoyproxy
