"""deploy/compose.yaml without containers: what it says, run natively on this machine.

Compose's own library reads the file, so what it refuses or resolves is as for `docker compose`. A container becomes a
process: its image is a program, its command and environment are the process's, and a volume is a file below a folder of
its own. A port of a container is a free one of 127.0.0.1, and wherever a command, an environment or a configuration
names a container and a port, there stands that one. So who names what does not listen there reaches nothing.

What differs besides: deadlines, which are for a busy machine, and Grafana, which cannot be had without its image.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeVar

import yaml

from tests import peers
from tests.deploy.known import understood
from tests.envoy.proxy import Envoy
from tests.ports import free_port
from tests.processes import ROOT, Process, Service, ask
from tests.prometheus import Prometheus

DEPLOY: Final = ROOT / "deploy"
DOCKERFILE: Final = ROOT / "Dockerfile"
NOT_NATIVE: Final = frozenset({"grafana"})
"""No package of Debian, PyPI or npm has it, and Go's proxy has no version of it."""

_Kind = TypeVar("_Kind", bound=Process)
_ALL_ADDRESSES: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # nothing is bound there: it is looked for
_PATIENCE: Final = {"timeout": "60s", "connect_timeout": "60s", "scrape_interval": "1s", "evaluation_interval": "1s"}
"""Envoy's deadlines: a busy machine is no outage. Prometheus's intervals: to wait for five seconds shows no more."""


@cache
def compose() -> Mapping[str, Any]:
    """The services of the compose file, as `docker compose config` writes it."""
    command = [str(peers.compose_config()), "-format", "json", "compose.yaml"]
    read = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, timeout=60, check=False)
    assert read.returncode == 0, read.stderr
    services: dict[str, Any] = json.loads(read.stdout)["services"]
    return services


def load(name: str) -> Any:
    """A file of deploy/."""
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def of_image(instruction: str) -> list[str]:
    """The words of an instruction of our Dockerfile."""
    (words,) = re.findall(rf"^{instruction} .*?(\[.*\])$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    found: list[str] = json.loads(words)
    return found


class Deployment:
    """The containers as processes; `more` is environment of the service that compose does not give it."""

    def __init__(self, folder: Path, more: Mapping[str, str]) -> None:
        self._folder = folder
        self._more = more
        self._ports: dict[tuple[str, int], int] = {}
        self._names = re.compile(rf"(?<![\w.-])({'|'.join(sorted(compose(), key=len, reverse=True))}):(\d+)\b")
        self._started = ExitStack()
        self._running: dict[str, Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._started.close()

    def up(self, *names: str) -> None:
        """Start these containers and those they depend on, each when those are as healthy as it says."""
        for name in names:
            for needed, how in compose()[name].get("depends_on", {}).items():
                if needed not in self._running:
                    self.up(needed)
                if how["condition"] == "service_healthy":
                    self._running[needed].wait_until(partial(self._healthy, needed), f"{needed} is healthy")
            if name not in self._running:
                self.start(name)

    def start(self, name: str) -> None:
        """Start a container, for the first time or again; it listens afterwards."""
        service = compose()[name]
        root = self._folder / name
        for volume in service.get("volumes", []):
            if volume["type"] == "volume":  # kept by Docker, and empty at first
                continue
            assert volume["type"] == "bind"
            self._mount(name, Path(volume["source"]), root / volume["target"][1:])
        root.mkdir(parents=True, exist_ok=True)
        environ = {key: self.native(value) for key, value in service.get("environment", {}).items()}
        image, _, _ = service["image"].partition(":")
        words = [self._inside(root, self.native(word)) for word in service.get("command") or []]
        match image:
            case "ratelimit-service":
                process = self._service(name, root, words, environ)
            case "envoyproxy/envoy":
                process = self._envoy(root, words)
            case "prom/prometheus":
                process = self._prometheus(name, root, words)
            case "redis":
                process = self._redis(name, root, words)
            case _:
                raise AssertionError(f"{name}: nothing here is {image}")
        self._running[name] = process

    def restart(self, name: str) -> None:
        """Start a container that has died, as Docker does if compose says so."""
        assert compose()[name]["restart"] == "unless-stopped"
        self.start(name)

    def container(self, name: str, kind: type[_Kind]) -> _Kind:
        """A container that was started."""
        container = self._running[name]
        assert isinstance(container, kind)
        return container

    def port(self, container: str, port: int) -> int:
        """The port of this machine for this one of the container; only what the container listens on answers there."""
        if (container, port) not in self._ports:
            self._ports[container, port] = free_port()
        return self._ports[container, port]

    def published(self, port: int) -> int:
        """The same, by the port that compose publishes."""
        (found,) = [
            (name, each["target"])
            for name, service in compose().items()
            for each in service.get("ports", [])
            if each["published"] == str(port)
        ]
        return self.port(*found)

    def native(self, text: str) -> str:
        """The text with what listens here, for each container and port that it names."""
        return self._names.sub(lambda found: f"127.0.0.1:{self.port(found[1], int(found[2]))}", text)

    def rewritten(self, name: str, node: Any) -> Any:
        """A configuration of the container, the same way, and with the patience of tests."""
        match node:
            case str():
                return self.native(node)
            case list():
                return [self.rewritten(name, each) for each in node]
            case {"address": str(host), "port_value": int(port)}:
                if host in _ALL_ADDRESSES | {"127.0.0.1"}:
                    return {"address": "127.0.0.1", "port_value": self._listens(name, [host], port)}
                return {"address": "127.0.0.1", "port_value": self.port(host, port)} if host in compose() else node
            case {"alert": "RatelimitStoreLost", "for": _}:
                return node | {"for": "1s"}  # a minute of waiting shows no more: promtool's cases have it
            case dict():
                return {key: _PATIENCE.get(key) or self.rewritten(name, value) for key, value in node.items()}
        return node

    def _listens(self, name: str, hosts: Sequence[str], port: int) -> int:
        """The port for what listens in the container: others reach it only on all of its addresses."""
        return self.port(name if _ALL_ADDRESSES & set(hosts) else f"inside {name}", port)

    def _mount(self, name: str, source: Path, target: Path) -> None:
        assert source.exists(), f"{name} mounts what is not there: {source}"
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.symlink_to(source)
        else:
            text = yaml.safe_dump(self.rewritten(name, yaml.safe_load(source.read_text(encoding="utf-8"))))
            target.write_text(text, encoding="utf-8")

    def _inside(self, root: Path, word: str) -> str:
        """A word with the paths of the container in its folder."""
        return re.sub(r"(?<![\w/.:])/(?=\w)", f"{root}/", word)

    def _service(self, name: str, root: Path, words: Sequence[str], environ: Mapping[str, str]) -> Process:
        settings = understood(compose()[name]["environment"])
        assert of_image("ENTRYPOINT") == ["ratelimit"]
        command = [sys.executable, "-m", "ratelimit_service", *(words or of_image("CMD"))]
        listens = {
            "HOST": "127.0.0.1",
            "PORT": str(self._listens(name, settings.host, settings.port)),
            "DEBUG_HOST": "127.0.0.1",
            "DEBUG_PORT": str(self._listens(name, settings.debug_host, settings.debug_port)),
            "GRPC_HOST": "127.0.0.1",
            "GRPC_PORT": str(self._listens(name, settings.grpc_host, settings.grpc_port)),
            "RULES_PATH": f"{root}{settings.rules_path}",
            "STORE_DEADLINE": "10s",
            "PYTHONPATH": str(ROOT),
        }
        service = self._started.enter_context(Service(command, root, {**environ, **listens, **self._more}))
        service.rules = Path(listens["RULES_PATH"])
        service.wait_until(lambda: service.listening, "listens on its ports")
        return service

    def _envoy(self, root: Path, words: Sequence[str]) -> Process:
        more = ("--admin-address-path", str(root / "admin"), "--disable-hot-restart", "--concurrency", "1")
        command = [str(peers.envoy()), *words, *more, "--service-node", "test", "--log-level", "warning"]
        envoy = self._started.enter_context(Envoy(command, root, {}))
        envoy.admin_file = root / "admin"
        envoy.wait_until(lambda: envoy.ready, "Envoy is ready")
        return envoy

    def _prometheus(self, name: str, root: Path, words: Sequence[str]) -> Process:
        port = self.port(name, 9090)
        command = [str(peers.prometheus()), *words, f"--web.listen-address=127.0.0.1:{port}"]
        prometheus = self._started.enter_context(Prometheus(command, root, {}))
        prometheus.port = port
        prometheus.wait_until(lambda: ask(port, "/-/ready").status == 200, "Prometheus is ready")
        return prometheus

    def _redis(self, name: str, root: Path, words: Sequence[str]) -> Process:
        assert words[0] == "redis-server"
        listen = ("--port", str(self.port(name, 6379)), "--bind", "127.0.0.1", "--dir", str(root))
        redis = self._started.enter_context(Process([str(peers.redis_server()), *words[1:], *listen], root, {}))
        redis.wait_until(lambda: "eady to accept connections" in redis.log, "Redis listens")
        return redis

    def _healthy(self, name: str) -> bool:
        """What the container's health check says, of compose or of our image."""
        check = compose()[name].get("healthcheck")
        words = of_image("HEALTHCHECK") if check is None else check["test"][1:]
        environ = {}
        match words[0]:
            case "python":
                words[0] = sys.executable
                environ["PORT"] = str(self.port(name, 8080))
            case "redis-cli":
                words[:1] = [str(peers.redis_cli()), "-p", str(self.port(name, 6379))]
        return subprocess.run(words, env=environ, capture_output=True, timeout=60, check=False).returncode == 0


class Deployed(NamedTuple):
    """Some of what compose starts."""

    service: Service
    envoy: Envoy
    redis: Process


@contextmanager
def deployed(folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> Iterator[Deployed]:
    """One instance with this environment besides compose's, its Redis, and Envoy."""
    with Deployment(folder, more) as deployment:
        deployment.up("ratelimit", "redis")
        deployment.start("envoy")
        service, envoy = deployment.container("ratelimit", Service), deployment.container("envoy", Envoy)
        port = service.grpc_port
        envoy.wait_until(lambda: envoy.healthy_ports() == {port}, "the service is healthy")
        yield Deployed(service, envoy, deployment.container("redis", Process))
