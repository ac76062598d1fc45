"""Every knob of the operator: declared once, read once, validated all together.

A field is a variable of the environment: `grpc_port` is GRPC_PORT. Defaults are written as the operator would write
them, and go through the same readers. Times are microseconds. A field that holds a secret must be a `SecretStr`.
Nothing is read at import, and nothing but `load_settings` knows where values come from.

It is longer than other modules because it is one table, in whose order the validators see the fields.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import AfterValidator, SecretStr, ValidationInfo, create_model, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ratelimit_service.settings import go_syntax
from ratelimit_service.settings.fields import (
    EVERYWHERE,
    NEW,
    Backend,
    Bytes,
    ConfigType,
    Duration,
    Header,
    Hosts,
    KeyFormat,
    Knob,
    LogFormat,
    LogLevel,
    Port,
    RedisType,
    Section,
    Socket,
    SocketType,
    StorePolicy,
    Switch,
    Timeout,
    TransportName,
    Type,
    knob,
    one_of,
    read_workers,
    reads,
)
from ratelimit_service.settings.go_syntax import duration, integer, number
from ratelimit_service.settings.redis_url import read_servers
from ratelimit_service.system.address import Tcp


class RedisSettings(NamedTuple):
    """The settings of one Redis: those of REDIS_URL, or of the second one for windows of a second."""

    type: RedisType
    socket_type: SocketType
    url: SecretStr
    auth: SecretStr
    sentinel_auth: SecretStr
    tls: bool
    timeout: int


def _fits_type(url: SecretStr, info: ValidationInfo) -> SecretStr:
    redis = (info.field_name or "").removesuffix("url")
    kind, socket = (info.data.get(f"{redis}{name}") for name in ("type", "socket_type"))
    if kind is not None and socket is not None:  # otherwise their own error is reported
        read_servers(url.get_secret_value(), kind, socket)
    return url


_Model = TypeVar("_Model", bound=BaseSettings)


def _with_second_redis(model: type[_Model]) -> type[_Model]:
    """Add the settings of the second Redis, `redis_persecond_url` and so on, each made from the first one's."""
    fields: dict[str, Any] = {}
    for name in RedisSettings._fields:
        first = model.model_fields[f"redis_{name}"]
        help_text = f"As `REDIS_{name.upper()}`, for the Redis of `REDIS_PERSECOND`."
        field = knob(Section.REDIS, first.default, help_text, _SECOND_ORIGINS.get(name, "upstream"))
        fields[f"redis_persecond_{name}"] = (first.rebuild_annotation(), field)
    return create_model(model.__name__, __base__=model, __module__=__name__, __doc__=model.__doc__, **fields)


_SECOND_ORIGINS: Final = {
    "socket_type": "upstream; `unix` there",
    "url": "upstream; `/var/run/nutcracker/ratelimitpersecond.sock` there",
}


@_with_second_redis
class Settings(BaseSettings):
    """The knobs; `Settings()` has the defaults, and never looks at the environment by itself."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=True)

    host: Hosts = knob(
        Section.LISTENING, EVERYWHERE, "Addresses of the HTTP port, separated by commas; `::` is IPv4 too.", flag=""
    )
    port: Port = knob(
        Section.LISTENING, "8080", "HTTP: `/json`, `/healthcheck`, `/metrics`; 0 takes any free port.", flag=""
    )
    debug_host: Hosts = knob(Section.LISTENING, EVERYWHERE, "Addresses of the debug port.", flag="")
    debug_port: Port = knob(Section.LISTENING, "6070", "HTTP for the operator: the pages and `/metrics`.", flag="")
    grpc_host: Hosts = knob(Section.LISTENING, EVERYWHERE, "Addresses of the gRPC port.", flag="")
    grpc_port: Port = knob(Section.LISTENING, "8081", "gRPC: where Envoy asks.", flag="")
    grpc_uds: str = knob(Section.LISTENING, "", "Path of a unix socket for gRPC, in place of host and port.", flag="")
    grpc_server_tls_cert: str = knob(Section.LISTENING, "", "File with the certificate chain of the gRPC port.")
    grpc_server_tls_key: str = knob(Section.LISTENING, "", "File with the private key of that certificate.")
    grpc_client_tls_cacert: str = knob(
        Section.LISTENING, "", "File with the CA of clients; when set, a client must show a certificate."
    )
    grpc_client_tls_san: str = knob(Section.LISTENING, "", "Name (DNS or IP) the certificate of a client must bear.")
    grpc_server_use_tls: Switch = knob(Section.LISTENING, "false", "TLS on the gRPC port; needs certificate and key.")
    grpc_max_connection_age: Duration = knob(
        Section.LISTENING, "24h", "How old a gRPC connection may get before it is asked to close; 0 is for ever."
    )
    grpc_max_connection_age_grace: Duration = knob(
        Section.LISTENING, "1h", "Time for its calls after that; 0 is for ever."
    )
    grpc_keepalive_time: Annotated[int, reads(duration("1s"))] = knob(
        Section.LISTENING, "2h", "How long a gRPC connection is silent before it is pinged.", NEW
    )
    grpc_keepalive_timeout: Annotated[int, reads(duration("1ms"))] = knob(
        Section.LISTENING, "20s", "How long it may take to answer the ping before it is closed.", NEW
    )
    grpc_max_connection_idle: Duration = knob(
        Section.LISTENING, "1h", "How long a gRPC connection may be without calls before it is asked to close.", NEW
    )
    grpc_max_connections: Annotated[int, reads(integer(0))] = knob(
        Section.LISTENING, "10000", "gRPC connections at once; 0 is any number. `http2` only.", NEW
    )
    grpc_max_concurrent_streams: Annotated[int, reads(integer(1, 2**31 - 1))] = knob(
        Section.LISTENING, "1000", "Calls at once on one gRPC connection.", NEW
    )
    grpc_max_connection_memory: Bytes = knob(
        Section.LISTENING,
        "4194304",
        "Bytes of unread answers, and of unfinished questions, of one gRPC connection. `http2` only.",
        NEW,
    )
    grpc_max_memory: Bytes = knob(
        Section.LISTENING,
        "268435456",
        "Bytes that all gRPC connections of a process hold: messages, headers, bytes that wait. `http2` only.",
        NEW,
    )
    grpc_max_header_list_size: Bytes = knob(Section.LISTENING, "16384", "Bytes of a call's headers.", NEW)
    grpc_max_message_size: Bytes = knob(
        Section.LISTENING, "131072", "Bytes of the largest message of a gRPC client, unpacked too.", NEW
    )
    grpc_preface_timeout: Annotated[int, reads(duration("100ms"))] = knob(
        Section.LISTENING,
        "10s",
        "How long a gRPC client may take to begin; with `http2` also to go on with headers, a frame or a message.",
        NEW,
    )
    request_max_descriptors: Annotated[int, reads(integer(1))] = knob(
        Section.LISTENING, "100", "Descriptors of one request.", NEW
    )
    request_max_entries: Annotated[int, reads(integer(1))] = knob(
        Section.LISTENING, "1000", "Entries of all descriptors of one request together.", NEW
    )
    request_max_value_length: Annotated[int, reads(integer(1))] = knob(
        Section.LISTENING, "65536", "Characters of the longest key or value of a request.", NEW
    )
    request_max_hits: Annotated[int, reads(integer(1))] = knob(
        Section.LISTENING, "200", "Limits that one request is charged to.", NEW
    )
    http_max_connections: Annotated[int, reads(integer(1))] = knob(
        Section.LISTENING,
        "500",
        "HTTP connections of all ports at once; a new one closes the idlest.",
        NEW,
    )
    http_max_body_size: Bytes = knob(Section.LISTENING, "131072", "Bytes of the largest HTTP body.", NEW)
    http_allowed_origins: Annotated[tuple[str, ...], reads(go_syntax.read_origins)] = knob(
        Section.LISTENING,
        "",
        "Origins of other sites whose pages may post to `/json`, separated by commas; `*` is any.",
        NEW,
    )
    debug_allowed_hosts: Annotated[tuple[str, ...], reads(go_syntax.read_names)] = knob(
        Section.LISTENING,
        ".svc,.cluster.local,.internal",
        "Names, besides `localhost` and those without a dot, by which browsers may ask the debug port; `*` is any.",
        NEW,
    )
    transport: Annotated[TransportName, reads(one_of(TransportName))] = knob(
        Section.LISTENING, "http2", "What carries gRPC: `http2`, or `grpcio`; see docs/transports.md.", NEW, flag=""
    )

    config_type: Annotated[ConfigType, reads(one_of(ConfigType))] = knob(
        Section.RULES, "FILE", "Where rules come from: `FILE`; upstream's `GRPC_XDS_SOTW` is refused."
    )
    runtime_root: str = knob(Section.RULES, "/srv/runtime_data/current", "Folder above the rules.")
    runtime_subdirectory: str = knob(Section.RULES, "", "Folder in it.")
    runtime_appdirectory: str = knob(Section.RULES, "config", "Folder in that one: the rules' own.")
    rules_path: Path = knob(
        Section.RULES,
        "",
        "Folder or file of the rules; when empty, the three RUNTIME_ folders joined.",
        NEW,
        flag="--rules",
    )
    rules_poll_interval: Annotated[int, reads(duration("10ms"))] = knob(
        Section.RULES, "1s", "How often the rules are looked at for a change.", NEW
    )
    merge_domain_config: Switch = knob(Section.RULES, "false", "Whether several files may have rules of one domain.")
    force_start_without_initial_config: Switch = knob(
        Section.RULES, "false", "Start although the rules' folder is not there yet, and wait for it."
    )

    redis_type: Type = knob(Section.REDIS, "", "`single`, `sentinel` or `cluster`; empty is `single`.")
    redis_socket_type: Socket = knob(
        Section.REDIS, "", "`tcp` or `unix`; when empty, what `REDIS_URL` looks like.", "upstream; `unix` there"
    )
    redis_url: Annotated[SecretStr, AfterValidator(_fits_type)] = knob(
        Section.REDIS,
        "",
        "Where Redis is: docs/redis.md has all ways to write it; `localhost:6379` when empty.",
        "upstream; `/var/run/nutcracker/ratelimit.sock` there",
    )
    redis_auth: SecretStr = knob(Section.REDIS, "", "`password` or `user:password`.")
    redis_sentinel_auth: SecretStr = knob(Section.REDIS, "", "The same, for the sentinels.")
    redis_tls: Switch = knob(Section.REDIS, "false", "TLS to Redis.")
    redis_tls_cacert: str = knob(Section.REDIS, "", "File with a CA that is trusted besides the system's.")
    redis_tls_client_cert: str = knob(Section.REDIS, "", "File with this client's certificate.")
    redis_tls_client_key: str = knob(Section.REDIS, "", "File with its private key.")
    redis_tls_skip_hostname_verification: Switch = knob(
        Section.REDIS, "false", "Do not compare the host's name with its certificate's."
    )
    redis_timeout: Timeout = knob(
        Section.REDIS, "10s", "Time to connect; no attempt takes longer than 2 s, and then there is a new one."
    )
    redis_health_check_active_connection: Switch = knob(
        Section.REDIS, "false", "Health says NOT_SERVING while Redis cannot decide, before the first connection too."
    )
    cache_key_prefix: str = knob(Section.REDIS, "", "What the names of all counters begin with.")
    key_format: Annotated[KeyFormat, reads(one_of(KeyFormat, empty=KeyFormat.OWN))] = knob(
        Section.REDIS,
        "own",
        "`own`, or `envoyproxy`: fixed windows count under upstream's names, to replace it bit by bit.",
        NEW,
    )
    expiration_jitter_max_seconds: Annotated[int, reads(integer(0))] = knob(
        Section.REDIS, "300", "Counters of fixed windows expire at most this many seconds after their window."
    )
    local_cache_size_in_bytes: Annotated[int, reads(integer(0))] = knob(
        Section.REDIS,
        "0",
        "Above 0: a fixed window that refused is not asked again until it ends, and counts no further.",
    )
    refused_max_counters: Annotated[int, reads(integer(0))] = knob(
        Section.REDIS,
        "100000",
        "Counters that refused and are not asked again before it is worth it; 500 bytes each, fewer if names are long.",
        NEW,
    )
    store_deadline: Annotated[int, reads(duration("1ms", empty=0))] = knob(
        Section.REDIS,
        "",
        "Most time for Redis to answer; if empty, what callers grant less a margin, or `1s` if they do not say.",
        NEW,
    )
    on_store_failure: Annotated[StorePolicy, reads(one_of(StorePolicy))] = knob(
        Section.REDIS,
        "error",
        "What is answered without Redis, if the rule does not say: `error`, `open`, `closed` or `local`.",
        NEW,
    )
    instances: Annotated[int, reads(integer(1))] = knob(
        Section.REDIS, "1", "How many instances share the limits, for `local`.", NEW
    )
    redis_persecond: Switch = knob(
        Section.REDIS, "false", "Keep the counters whose window is one second in a Redis of their own."
    )

    backend_type: Annotated[Backend, reads(one_of(Backend))] = knob(
        Section.COUNTING,
        "",
        "Where counters live: `memory` or `redis`; when empty, `redis` if `REDIS_URL` is set, else `memory`.",
        "upstream; `redis` there",
        flag="--backend",
    )
    memory_max_counters: Annotated[int, reads(integer(1))] = knob(
        Section.COUNTING,
        "1000000",
        "About how many counters are kept in memory; above it the least recently used go.",
        NEW,
    )
    memory_max_bytes: Annotated[int, reads(integer(1024 * 1024))] = knob(
        Section.COUNTING,
        str(512 * 1024 * 1024),
        "About how many bytes they may take, such as those of a sliding log or a long name; the same above it.",
        NEW,
    )
    near_limit_ratio: Annotated[float, reads(number(0, 1))] = knob(
        Section.COUNTING, "0.8", "Part of a limit above which a hit is counted as near it."
    )
    shadow_mode: Switch = knob(
        Section.COUNTING, "false", "Count and report everything, and answer OK to every request."
    )
    quota_mode: Switch = knob(
        Section.COUNTING,
        "false",
        "Treat every rule as if it said `quota_mode`, and a descriptor that nothing limits as a quota with room.",
    )

    limit_response_headers_enabled: Switch = knob(Section.ANSWERS, "false", "Send the three headers below.")
    limit_limit_header: Header = knob(Section.ANSWERS, "RateLimit-Limit", "Header with the limit.")
    limit_remaining_header: Header = knob(Section.ANSWERS, "RateLimit-Remaining", "Header with what is left of it.")
    limit_reset_header: Header = knob(Section.ANSWERS, "RateLimit-Reset", "Header with the seconds until it is whole.")
    response_dynamic_metadata: Switch = knob(
        Section.ANSWERS, "false", "Send what was asked, and the rules' metadata, as dynamic metadata."
    )

    metrics_max_values: Annotated[int, reads(integer(0))] = knob(
        Section.METRICS, "1000", "Series kept per rule for values of requests; the rest are summed as `other`.", NEW
    )
    extra_tags: Annotated[tuple[tuple[str, str], ...], reads(go_syntax.read_labels)] = knob(
        Section.METRICS, "", "Labels on every metric, `key:value,key2:value2`."
    )
    use_prometheus: Switch = knob(Section.METRICS, "false", "Serve metrics on an address of their own too.")
    prometheus_addr: Annotated[Tcp, reads(go_syntax.read_address)] = knob(
        Section.METRICS, ":9090", "Where they are served then."
    )
    prometheus_path: Annotated[str, reads(go_syntax.read_path)] = knob(Section.METRICS, "/metrics", "Their path there.")

    log_level: Annotated[LogLevel, reads(one_of(LogLevel, warn=LogLevel.WARNING))] = knob(
        Section.LOGGING,
        "info",
        f"The least level that is logged: {', '.join(LogLevel)}.",
        "upstream; `WARN` there",
        flag="",
    )
    log_format: Annotated[LogFormat, reads(one_of(LogFormat, empty=LogFormat.TEXT))] = knob(
        Section.LOGGING, "text", "How lines are written: text or json.", flag=""
    )

    workers: Annotated[int, reads(read_workers)] = knob(
        Section.LIFE,
        "1",
        "Processes that answer calls; `auto` is one for each CPU. More than one needs Redis, and `TRANSPORT=http2`.",
        NEW,
        flag="",
    )
    drain_seconds: Annotated[float, reads(number(0, 3600, "number of seconds"))] = knob(
        Section.LIFE, "5", "Seconds between health saying NOT_SERVING and the ports closing.", NEW, flag=""
    )
    drain_timeout: Duration = knob(Section.LIFE, "30s", "How long calls may take to finish after that.", NEW)

    @property
    def redis(self) -> RedisSettings:
        """The Redis of all counters."""
        return self._redis("redis")

    @property
    def redis_per_second(self) -> RedisSettings | None:
        """The Redis of the counters whose window is one second; None when it is not another one."""
        return self._redis("redis_persecond") if self.redis_persecond else None

    def _redis(self, prefix: str) -> RedisSettings:
        return RedisSettings(*(getattr(self, f"{prefix}_{name}") for name in RedisSettings._fields))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is handed over: `load_settings` merges the sources, because it must say which one was wrong."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    @field_validator("grpc_server_use_tls")
    @classmethod
    def _has_its_files(cls, use_tls: bool, info: ValidationInfo) -> bool:
        files = info.data
        if use_tls and not (files["grpc_server_tls_cert"] and files["grpc_server_tls_key"]):
            raise ValueError("needs both GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
        if use_tls and files["grpc_client_tls_san"] and not files["grpc_client_tls_cacert"]:
            raise ValueError("needs GRPC_CLIENT_TLS_CACERT for GRPC_CLIENT_TLS_SAN to be asked of anybody")
        return use_tls

    @field_validator("backend_type", mode="before")
    @classmethod
    def _where_redis_is_told(cls, name: object, info: ValidationInfo) -> object:
        if name:
            return name
        told = info.data
        url = told.get("redis_url")
        named = told.get("redis_socket_type") or (url is not None and url.get_secret_value())
        return (
            Backend.REDIS
            if named or told.get("redis_type", RedisType.SINGLE) is not RedisType.SINGLE
            else Backend.MEMORY
        )

    @field_validator("workers")
    @classmethod
    def _can_be_shared(cls, workers: int, info: ValidationInfo) -> int:
        if workers != 1 and info.data.get("backend_type") is Backend.MEMORY:
            raise ValueError(
                "needs counters that all workers share, and BACKEND_TYPE is memory: say where Redis is with REDIS_URL,"
                " or WORKERS=1"
            )
        if workers != 1 and info.data.get("transport") is TransportName.GRPCIO:
            raise ValueError("needs TRANSPORT=http2: with grpcio no worker can take over a connection, or WORKERS=1")
        return workers

    @field_validator("rules_path", mode="before")
    @classmethod
    def _where_upstream_has_it(cls, path: object, info: ValidationInfo) -> object:
        if path:
            return path
        below = (info.data["runtime_subdirectory"], info.data["runtime_appdirectory"])
        return Path(info.data["runtime_root"], *(folder.lstrip("/") for folder in below))


def _knobs() -> Iterator[Knob]:
    for field, info in Settings.model_fields.items():
        about: Any = info.json_schema_extra
        flag = "" if about["flag"] is None else about["flag"] or f"--{field.replace('_', '-')}"
        yield Knob(field, field.upper(), flag, info.default, info.description or "", about["section"], about["origin"])


KNOBS: Final = tuple(_knobs())
FLAGS: Final = tuple(knob for knob in KNOBS if knob.flag)
"""The knobs that `ratelimit serve` has as options; what it was given goes to `load_settings` by `Knob.field`."""
