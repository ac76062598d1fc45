"""A real Envoy in front of our service: its configuration from few words, and the process.

What stands behind it is itself: a listener that answers 200 with a text, reached by an abstract socket. Its own ports
are given by the system.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from tests import peers
from tests.processes import Process, Reply, ask

Json = dict[str, Any]

_TYPE: Final = "type.googleapis.com/envoy."
_RATELIMIT: Final = "envoy.filters.http.ratelimit"
_HTTP: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
HEALTH_CHECK: Final[Json] = {
    "interval": "0.1s",
    "no_traffic_interval": "0.1s",
    "timeout": "30s",
    "healthy_threshold": 1,
    "unhealthy_threshold": 1,
    "grpc_health_check": {"service_name": "ratelimit"},
}
"""Ten times a second, by the name that envoyproxy uses."""
_TIMEOUT: Final = "60s"
"""For the service's answer. Long: on a busy machine these tests are about answers, not about time."""


class Envoy(Process):
    """Envoy at work."""

    admin_file: Path
    """Where it writes the address of its own pages."""
    _ports: dict[str, int] | None = None

    @property
    def admin_port(self) -> int:
        """Its own pages."""
        return int(self.admin_file.read_text(encoding="utf-8").rpartition(":")[2])

    @property
    def ready(self) -> bool:
        """It listens, and has tried its clusters."""
        # The file is there before the address is in it.
        written = self.admin_file.exists() and ":" in self.admin_file.read_text(encoding="utf-8")
        return written and ask(self.admin_port, "/ready").status == 200

    @property
    def port(self) -> int:
        """What is limited."""
        return self.port_of("ingress")

    def port_of(self, listener: str) -> int:
        """Where a listener listens."""
        if self._ports is None:
            statuses = json.loads(ask(self.admin_port, "/listeners?format=json").body)["listener_statuses"]
            addresses = {status["name"]: status["local_address"] for status in statuses}
            self._ports = {
                name: at["socket_address"]["port_value"] for name, at in addresses.items() if "socket_address" in at
            }
        return self._ports[listener]

    def get(self, path: str, **headers: str) -> Reply:
        """One request through Envoy; `x_user` is the header x-user."""
        return ask(self.port, path, {name.replace("_", "-"): value for name, value in headers.items()})

    def statuses(self, times: int, path: str, **headers: str) -> list[int]:
        """The status of each of so many requests, one after the other."""
        return [self.get(path, **headers).status for _ in range(times)]

    def stat(self, name: str) -> int:
        """One of its counters; 0 while it does not exist."""
        stats = json.loads(ask(self.admin_port, f"/stats?format=json&filter=^{name}$").body)["stats"]
        return sum(int(stat["value"]) for stat in stats if "value" in stat)

    def hosts(self, cluster: str) -> dict[int, Json]:
        """What it knows of each instance of a cluster, by port."""
        clusters = json.loads(ask(self.admin_port, "/clusters?format=json").body)["cluster_statuses"]
        found = next(status for status in clusters if status["name"] == cluster)
        return {host["address"]["socket_address"]["port_value"]: host for host in found["host_statuses"]}

    def healthy_ports(self) -> set[int]:
        """The instances of the service that pass its health checks."""
        return {
            port
            for port, host in self.hosts("ratelimit").items()
            if not host["health_status"].get("failed_active_health_check")
        }


@contextmanager
def start_envoy(folder: Path, configuration: Json | str) -> Iterator[Envoy]:
    """An Envoy with this configuration, JSON or YAML, once it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "envoy.yaml"
    file.write_text(configuration if isinstance(configuration, str) else json.dumps(configuration), encoding="utf-8")
    admin_file = folder / "admin"
    command = [
        *(str(peers.envoy()), "--config-path", str(file), "--admin-address-path", str(admin_file)),
        *("--service-cluster", "proxy", "--service-node", "test"),
        *("--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"),
    ]
    with Envoy(command, folder, {}, "envoy.log") as envoy:
        envoy.admin_file = admin_file
        envoy.wait_until(lambda: envoy.ready, "Envoy is ready")
        yield envoy


def bootstrap(
    services: Sequence[int],
    routes: Sequence[Json],
    *,
    filter_options: Mapping[str, Any] | None = None,
    filters_before: Sequence[Json] = (),
    filters_after: Sequence[Json] = (),
    health_checks: Sequence[Json] = (),
) -> Json:
    """An Envoy that asks the services at these gRPC ports about its routes, in domain `shop` unless options differ."""
    behind = abstract_socket()
    filters = [*filters_before, rate_limit_filter("shop", filter_options or {}), *filters_after]
    return {
        "admin": {"address": address(0)},
        "static_resources": {
            "listeners": [
                _listener("ingress", address(0), filters, routes),
                echo("echo", behind),
            ],
            "clusters": [
                cluster("echo", [endpoint(behind)]),
                cluster("ratelimit", [endpoint(address(port)) for port in services], health_checks, http2=True),
            ],
        },
    }


def rate_limit_filter(domain: str, options: Mapping[str, Any]) -> Json:
    """The filter that asks the services about a domain."""
    rate_limit = {
        "domain": domain,
        "timeout": _TIMEOUT,
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "ratelimit"}},
        },
        **options,
    }
    return http_filter(_RATELIMIT, "filters.http.ratelimit.v3.RateLimit", rate_limit)


def route(prefix: str, *rate_limits: Json, per_route: Mapping[str, Any] | None = None, **options: Any) -> Json:
    """A route to what stands behind; each of `rate_limits` makes a descriptor."""
    made: Json = {
        "match": {"prefix": prefix},
        "route": {"cluster": "echo", "rate_limits": list(rate_limits)},
        **options,
    }
    if per_route is not None:
        kind = f"{_TYPE}extensions.filters.http.ratelimit.v3.RateLimitPerRoute"
        made.setdefault("typed_per_filter_config", {})[_RATELIMIT] = {"@type": kind, **per_route}
    return made


def by(*entries: tuple[str, str], **options: Any) -> Json:
    """A descriptor with these entries: key, and the header that has its value, or `=value`."""
    actions: list[Json] = []
    for key, value in entries:
        if value.startswith("="):
            actions.append({"generic_key": {"descriptor_key": key, "descriptor_value": value[1:]}})
        else:
            actions.append({"request_headers": {"header_name": value, "descriptor_key": key}})
    return {"actions": actions, **options}


def http_filter(name: str, kind: str, options: Mapping[str, Any], **more: Any) -> Json:
    """A filter of the chain; `kind` is its message below `envoy.extensions`."""
    return {"name": name, "typed_config": {"@type": f"{_TYPE}extensions.{kind}", **options}, **more}


def address(port: int) -> Json:
    """A port of this machine."""
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def abstract_socket() -> Json:
    """An address that is no file and no port, and nobody else's."""
    return {"pipe": {"path": f"@{uuid4()}"}}


def echo(text: str, at: Json) -> Json:
    """A listener that answers everything with this text."""
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": text}}}
    return _listener(text, at, [], [answer])


def endpoint(at: Json, **options: Any) -> Json:
    """An instance of a cluster."""
    return {"lb_endpoints": [{"endpoint": {"address": at}, **options.pop("host", {})}], **options}


def cluster(
    name: str, endpoints: Sequence[Json], health_checks: Sequence[Json] = (), *, http2: bool = False, **options: Any
) -> Json:
    """Instances that are asked in turn."""
    made: Json = {
        "name": name,
        "connect_timeout": "30s",
        "load_assignment": {"cluster_name": name, "endpoints": list(endpoints)},
        "health_checks": list(health_checks),
        # Without this, Envoy asks unhealthy instances too when they are many.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        **options,
    }
    if http2:
        made["typed_extension_protocol_options"] = {
            _HTTP: {"@type": f"type.googleapis.com/{_HTTP}", "explicit_http_config": {"http2_protocol_options": {}}}
        }
    return made


def _listener(name: str, at: Json, filters: Sequence[Json], routes: Sequence[Json]) -> Json:
    manager = {
        "stat_prefix": name,
        "http_filters": [*filters, http_filter("envoy.filters.http.router", "filters.http.router.v3.Router", {})],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": list(routes)}]},
    }
    kind = "filters.network.http_connection_manager.v3.HttpConnectionManager"
    network_filter = http_filter("envoy.filters.network.http_connection_manager", kind, manager)
    return {"name": name, "address": at, "filter_chains": [{"filters": [network_filter]}]}
