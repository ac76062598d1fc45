"""Servers that are attacked: our own, envoyproxy/ratelimit, any other program, or one that runs already."""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from attack.catalogue import Attack, Need, Target
from attack.frames import SHOULD_RATE_LIMIT, request, user
from attack.proc import pin
from tests.envoyproxy import start_envoyproxy
from tests.ports import free_port
from tests.processes import ROOT, Process, Service, eventually
from tests.redis import start_redis
from tests.transports.certificates import Issued

PEER_RULES = """\
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}
"""
RULES = f"""\
{PEER_RULES}\
  - {{key: detailed, detailed_metric: true, rate_limit: {{unit: year, requests_per_unit: 4000000000}}}}
  - {{key: few, rate_limit: {{unit: year, requests_per_unit: 5}}}}
  - key: queue
    rate_limit: {{algorithm: leaky_bucket, unit: second, requests_per_unit: 2, queue: {{max_delay: 30s}}}}
  - {{key: log, rate_limit: {{unit: year, requests_per_unit: 65000, algorithm: sliding_log}}}}
"""
PATTERNS = (
    """\
domain: patterns
descriptors:
  - {key: slow, regex: "(?i).*(select|insert|update|delete|union).{0,400}(from|into|where).*", rate_limit: {deny: true}}
"""
    + "".join(
        f"""\
  - {{key: expression, regex: ".*evil{at}[0-9]+x.*", rate_limit: {{deny: true}}}}
"""
        for at in range(100)
    )
    + "".join(
        f"""\
  - {{key: agent, value: "*bot{at}x*", rate_limit: {{deny: true}}}}
"""
        for at in range(2000)
    )
)
"""Rules of which each has to look at all of a value."""
PLAIN = request(user(b"healthy")).hex()
"""The healthy client's request."""

_PORTS = {
    **dict.fromkeys(("HOST", "DEBUG_HOST", "GRPC_HOST"), "127.0.0.1"),
    **dict.fromkeys(("PORT", "DEBUG_PORT", "GRPC_PORT"), "0"),
}
"""Three free ports of the loopback interface."""


@dataclass(frozen=True)
class Ours:
    """Our own service with its default settings, a fresh one for each attack, with what the attack needs."""

    redis: bool
    settings: Mapping[str, str]
    name: str = "ours"
    has: ClassVar = frozenset(Need)

    @contextmanager
    def start(self, attack: Attack) -> Iterator[Target]:
        """Ours at work, pinned to its core."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="attack-")))
            rules = folder / "rules"
            rules.mkdir()
            (rules / "rules.yaml").write_text(RULES)
            (rules / "patterns.yaml").write_text(PATTERNS)
            settings = {**_PORTS, "RULES_PATH": str(rules), "PYTHONPATH": str(ROOT)}
            if Need.WORKERS in attack.needs:
                settings["WORKERS"] = "2"
            settings |= {**_tls(folder, attack), **attack.settings, **self.settings}
            if self.redis or attack.needs & {Need.REDIS, Need.WORKERS}:
                settings |= _redis(stack, folder)
            command = [sys.executable, "-m", "ratelimit_service", "serve"]
            if attack.files:
                command = ["sh", "-c", f'ulimit -n {attack.files}; exec "$@"', "sh", *command]
            service = stack.enter_context(Service(command, folder, settings, "service.log"))
            service.wait_until(lambda: service.listening and service.healthy, "listens and is healthy")
            pin(service.pid, server=True)
            yield Target(
                host="127.0.0.1",
                port=service.grpc_port,
                path=SHOULD_RATE_LIMIT,
                request=PLAIN,
                pid=service.pid,
                http_port=service.http_port,
                debug_port=service.debug_port,
                tls=Need.TLS in attack.needs,
                rules=str(rules),
                log=str(folder / "service.log"),
            )


@dataclass(frozen=True)
class Envoyproxy:
    """envoyproxy/ratelimit with a Redis and its default settings, a fresh one for each attack."""

    name: str = "envoyproxy/ratelimit"
    has: ClassVar = frozenset({Need.RATE_LIMITS, Need.HTTP, Need.REDIS, Need.TLS})

    @contextmanager
    def start(self, attack: Attack) -> Iterator[Target]:
        """It at work, pinned to its core."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="attack-")))
            rules = folder / "root" / "config"
            rules.mkdir(parents=True)
            (rules / "rules.yaml").write_text(PEER_RULES)
            settings = {**_redis(stack, folder), **_tls(folder, attack), "GOMAXPROCS": "1", "LOG_LEVEL": "error"}
            # Statistics as in use: without this it writes a line of its log for each call.
            settings |= {"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": f"127.0.0.1:{free_port()}"}
            envoyproxy = stack.enter_context(start_envoyproxy(folder / "envoyproxy", rules, settings))
            pin(envoyproxy.pid, server=True)
            yield Target(
                host="127.0.0.1",
                port=envoyproxy.grpc_port,
                path=SHOULD_RATE_LIMIT,
                request=PLAIN,
                pid=envoyproxy.pid,
                http_port=envoyproxy.http_port,
                tls=Need.TLS in attack.needs,
            )


@dataclass(frozen=True)
class Program:
    """Any program, started afresh for each attack by a command in which {port} stands for that of gRPC."""

    name: str
    command: str
    path: str
    request: str

    @property
    def has(self) -> frozenset[Need]:
        """Requests of attacks mean something to a peer that takes Envoy's."""
        return frozenset({Need.RATE_LIMITS} if self.path == SHOULD_RATE_LIMIT else ())

    @contextmanager
    def start(self, attack: Attack) -> Iterator[Target]:
        """It at work, pinned to its core."""
        port = free_port()
        command = shlex.split(self.command.replace("{port}", str(port)))
        with TemporaryDirectory(prefix="attack-") as folder, Process(command, Path(folder), os.environ) as process:
            process.wait_until(lambda: _listens("127.0.0.1", port), "listens")
            pin(process.pid, server=True)
            yield Target("127.0.0.1", port, self.path, self.request, process.pid)


@dataclass(frozen=True)
class Running:
    """A server that runs already, the same one for all attacks."""

    name: str
    target: Target

    @property
    def has(self) -> frozenset[Need]:
        """What was said of it."""
        own = {Need.RATE_LIMITS} if self.target.path == SHOULD_RATE_LIMIT else set()
        return frozenset(own | ({Need.HTTP} if self.target.http_port else set()))

    @contextmanager
    def start(self, attack: Attack) -> Iterator[Target]:
        """As it is."""
        eventually(lambda: _listens(self.target.host, self.target.port), f"{self.name} takes connections", 5)
        yield self.target


Server = Ours | Envoyproxy | Program | Running


def _listens(host: str, port: int) -> bool:
    with socket.create_connection((host, port), 5):
        return True


def _redis(stack: ExitStack, folder: Path) -> dict[str, str]:
    redis = stack.enter_context(start_redis(folder / "redis"))
    pin(redis.pid, server=False)
    return {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{redis.port}"}


def _tls(folder: Path, attack: Attack) -> dict[str, str]:
    """TLS for an attack on it, with a key of RSA: dear to sign with, and what most certificates have."""
    if Need.TLS not in attack.needs:
        return {}
    issued = Issued(folder / "tls.pem", folder / "tls.key")
    made = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(issued.key), "-out", str(issued.cert), "-days", "2"]
    command = ["openssl", "req", "-x509", *made, "-subj", "/CN=localhost"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return issued.environ | {"ADMIN_TLS_CERT": str(issued.cert), "ADMIN_TLS_KEY": str(issued.key)}
