"""deploy/compose.yaml without containers: what it deploys, run natively, but for names, ports and deadlines."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import yaml

from tests.envoy.proxy import Envoy, abstract_socket, start_envoy
from tests.processes import ROOT, Service, start_service
from tests.redis import Redis, start_redis

DEPLOY: Final = ROOT / "deploy"


def compose() -> dict[str, Any]:
    """The services of the compose file."""
    services: dict[str, Any] = load("compose.yaml")["services"]
    return services


def load(name: str) -> Any:
    """A file of deploy/."""
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def native(text: str) -> str:
    """The configuration with this machine's name for itself, the system's ports, and time for a busy machine."""
    behind = json.dumps(abstract_socket())[1:-1]
    for old, new, times in (
        ("socket_address: { address: 127.0.0.1, port_value: 9999 }", behind, 2),
        ("address: 0.0.0.0, port_value: 8888", "address: 127.0.0.1, port_value: 0", 1),
        ("address: 0.0.0.0, port_value: 9901", "address: 127.0.0.1, port_value: 0", 1),
        ("address: ratelimit, port_value: 8081", "address: 127.0.0.1, port_value: GRPC_PORT", 1),
        ("timeout: 0.1s", "timeout: 60s", 1),
        ("timeout: 0.25s", "timeout: 60s", 1),
        ("timeout: 1s", "timeout: 60s", 2),
    ):
        assert text.count(old) == times, old
        text = text.replace(old, new)
    return text


def here(redis: Redis) -> dict[str, str]:
    """What differs from compose: where Redis is, and time enough for it on a busy machine."""
    return {"REDIS_URL": f"127.0.0.1:{redis.port}", "STORE_DEADLINE": "10s"}


class Deployed(NamedTuple):
    """What compose starts, but for Prometheus and Grafana."""

    service: Service
    envoy: Envoy
    redis: Redis


@contextmanager
def deployed(folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> Iterator[Deployed]:
    """The service with the environment and rules that compose gives it, a Redis, and Envoy with deploy/envoy.yaml."""
    rules = folder / "config"
    rules.mkdir()
    for volume in compose()["ratelimit"]["volumes"]:
        source, target, mode = volume.split(":")
        assert mode == "ro"
        assert Path(target).parent == Path("/srv/runtime_data/current/config")
        (rules / Path(target).name).symlink_to((DEPLOY / source).resolve())
    environ: dict[str, str] = compose()["ratelimit"]["environment"] | dict(more)
    with (
        start_redis(folder / "redis") as redis,
        start_service(folder / "service", rules, environ | here(redis)) as service,
    ):
        port = service.grpc_port
        text = native((DEPLOY / "envoy.yaml").read_text(encoding="utf-8")).replace("GRPC_PORT", str(port))
        with start_envoy(folder / "envoy", text) as envoy:
            envoy.wait_until(lambda: envoy.healthy_ports() == {port}, "the service is healthy")
            yield Deployed(service, envoy, redis)
