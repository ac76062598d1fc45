"""The environment variables of envoyproxy/ratelimit that are no settings here, and why.

A deployment that moves from there brings its variables along. Those that ask for something that is missing here are
named at the start; the rest, and what control planes set in every pod, must neither warn nor hinder. A feature that
arrives takes its variables out of this file and makes them fields of `Settings`.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from ratelimit_service.settings.go_syntax import FALSE

ALWAYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "RUNTIME_WATCH_ROOT": "the files' content is compared, so a swapped link and an edited file are both noticed",
        "RUNTIME_IGNOREDOTFILES": "files and folders whose names start with a dot are never read",
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "health says NOT_SERVING until there are rules",
    }
)
"""Booleans that are understood and change nothing: both ways of upstream are covered by the one way here."""


def _names(prefix: str, rest: str) -> list[str]:
    return [f"{prefix}{name}" for name in rest.split()]


_POOL: Final = "POOL_SIZE PIPELINE_WINDOW PIPELINE_LIMIT CLUSTER_PIPELINE_PARALLELISM POOL_ON_EMPTY_BEHAVIOR"

_REASONS: Final[Mapping[str, Iterable[str]]] = {
    "one connection to each server carries all hits that have come, in one call": [
        *_names("REDIS_", _POOL),
        *_names("REDIS_PERSECOND_", _POOL),
    ],
    "the service starts without Redis, and looks for it every 50 ms to 2 s": _names(
        "REDIS_STARTUP_", "INITIAL_INTERVAL MAX_INTERVAL MAX_ELAPSED_TIME"
    ),
    "counters are kept in this process's memory or in Redis, not in memcached": [
        *_names("MEMCACHE_", "HOST_PORT SRV SRV_REFRESH MAX_IDLE_CONNS TLS"),
        *_names("MEMCACHE_TLS_", "CLIENT_CERT CLIENT_KEY CACERT SKIP_HOSTNAME_VERIFICATION"),
    ],
    "a rule says it: count_refused: false, and then no refused hit is counted at all": [
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"
    ],
    "rules are read from files, not from a control plane": [
        *_names("CONFIG_GRPC_XDS_", "NODE_ID NODE_METADATA SERVER_URL SERVER_CONNECT_RETRY_INTERVAL"),
        *_names("CONFIG_GRPC_XDS_CLIENT_", "ADDITIONAL_HEADERS TLS_CERT TLS_KEY"),
        *_names("CONFIG_GRPC_XDS_SERVER_", "USE_TLS TLS_CACERT TLS_SAN"),
        *_names("XDS_CLIENT_BACKOFF_", "INITIAL_INTERVAL MAX_INTERVAL RANDOM_FACTOR JITTER"),
        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
    ],
    "nothing is sent to statsd: Prometheus reads /metrics": [
        *_names("", "USE_STATSD STATSD_HOST STATSD_PORT STATSD_PROTOCOL STATS_FLUSH_INTERVAL"),
        *_names("", "USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS"),
    ],
    "metrics keep their names and are in seconds, and there is no mapper": [
        "PROMETHEUS_MAPPER_YAML",
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
    ],
    "metrics are always there, and cost nothing until they are read": ["DISABLE_STATS"],
    "there is no tracing": ["TRACING_ENABLED"],
    "upstream does not read it either; GRPC_CLIENT_TLS_CACERT names the CA that clients are checked with": [
        "GRPC_SERVER_TLS_CA_CERT"  # Envoy Gateway sets it; its name promises what neither service does
    ],
}

WITHOUT_MEANING: Final[Mapping[str, str]] = MappingProxyType(
    {name: why for why, names in _REASONS.items() for name in names}
)
"""Variables that are not used by this release, each with the reason."""

ASKS_FOR_NOTHING: Final[Mapping[str, Collection[str]]] = MappingProxyType(
    {
        **dict.fromkeys(("USE_STATSD", "USE_DOG_STATSD", "DISABLE_STATS", "TRACING_ENABLED"), FALSE),
        "PROMETHEUS_MAPPER_YAML": ("/etc/statsd-exporter/conf.yaml",),  # upstream's own, whose names the metrics have
    }
)
"""Of those, the ones that need no warning at these values: a feature is turned off, or left as it is here."""

TRACING: Final = ("TRACING_", "OTEL_")
"""Other variables that begin like this say how to trace, and mean nothing without TRACING_ENABLED. OpenTelemetry's
operator puts its own into every pod."""
