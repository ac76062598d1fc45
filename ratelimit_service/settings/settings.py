"""Every setting, declared once: its name, type, default and help text; and the checks that need several of them.

A field is a variable of the environment: `grpc_port` is GRPC_PORT. Defaults are written as the operator would write
them, and go through the same readers. Times are microseconds. A field that holds a secret must be a `SecretStr`.
Nothing is read at import. `load_settings` alone knows where values come from.

The order matters: a validator sees the fields before its own, and each section of docs/settings.md has this order.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr, ValidationInfo, create_model, field_validator

from ratelimit_service.settings import go_syntax
from ratelimit_service.settings.fields import (
    ALL_ADDRESSES,
    HEADERS_OF,
    NEW,
    Backend,
    Boolean,
    Bytes,
    ConfigType,
    Count,
    Duration,
    Header,
    Hosts,
    KeyFormat,
    LeaseMode,
    LogFormat,
    LogLevel,
    Port,
    Positive,
    RedisType,
    ResponseHeaders,
    Section,
    Setting,
    SocketType,
    SourceKind,
    StorePolicy,
    Timeout,
    TracingProtocol,
    TransportName,
    list_of,
    one_of,
    read_workers,
    reads,
    setting,
)
from ratelimit_service.settings.go_syntax import duration, integer, number
from ratelimit_service.settings.redis_url import read_servers
from ratelimit_service.settings.rules_tokens import MIN_TOKEN_LENGTH, RulesToken, read_rules_tokens
from ratelimit_service.system.address import Tcp


class RedisSettings(NamedTuple):
    """The settings of one Redis: the first one, the second one for windows of one second, or that of all regions."""

    type: RedisType
    socket_type: SocketType
    url: SecretStr
    auth: SecretStr
    sentinel_auth: SecretStr
    tls: bool
    timeout: int


def _check_url(url: SecretStr, info: ValidationInfo) -> SecretStr:
    """Check that the URL fits the type and the socket type of the same Redis."""
    redis = (info.field_name or "").removesuffix("url")
    kind, socket = (info.data.get(f"{redis}{name}") for name in ("type", "socket_type"))
    if kind is not None and socket is not None:  # otherwise their own error is reported
        read_servers(url.get_secret_value(), kind, socket)
    return url


def _read_secret(given: SecretStr) -> SecretStr:
    """The secret without white space around it: in a Secret or a file it often ends with a newline."""
    secret = given.get_secret_value().strip()
    if 0 < len(secret) < MIN_TOKEN_LENGTH:
        raise ValueError(f"has fewer than {MIN_TOKEN_LENGTH} characters; `openssl rand -hex 32` makes a good one")
    return SecretStr(secret)


def _read_token(given: SecretStr) -> SecretStr:
    """A secret that a header can carry."""
    token = _read_secret(given)
    if re.search(r"[^!-~]", token.get_secret_value()):
        raise ValueError("has characters that are not visible ASCII; `openssl rand -hex 32` makes a good one")
    return token


def _check_rules_tokens(given: SecretStr) -> SecretStr:
    """Check that they can be read."""
    read_rules_tokens(given.get_secret_value())
    return given


_Model = TypeVar("_Model", bound=BaseModel)


def _with_more_redis(model: type[_Model]) -> type[_Model]:
    """Add the settings of the second Redis, `redis_persecond_url` and so on, and of the home Redis, `home_redis_url`.

    Each is made from the first one's.
    """
    fields: dict[str, Any] = {}
    for name in RedisSettings._fields:
        first = model.model_fields[f"redis_{name}"]
        help_text = f"As `REDIS_{name.upper()}`, for the"
        origin = _SECOND_ORIGINS.get(name, "envoyproxy")
        second = setting(Section.REDIS, first.default, f"{help_text} second Redis.", origin)
        home = setting(Section.REGIONS, first.default, _HOME_HELP.get(name, f"{help_text} home Redis."), NEW)
        fields[f"redis_persecond_{name}"] = (first.rebuild_annotation(), second)
        fields[f"home_redis_{name}"] = (first.rebuild_annotation(), home)
    return create_model(model.__name__, __base__=model, __module__=__name__, __doc__=model.__doc__, **fields)


_SECOND_ORIGINS: Final = {
    "socket_type": "envoyproxy; `unix` there",
    "url": "envoyproxy; `/var/run/nutcracker/ratelimitpersecond.sock` there",
}
_HOME_HELP: Final = {
    "url": "Address of the home Redis, which all regions share: as `REDIS_URL`; if empty, there is none.",
    "tls": "As `REDIS_TLS`, for the home Redis, with the same certificates.",
}


_listening = partial(setting, Section.LISTENING)
_operator = partial(setting, Section.OPERATOR)
_rules = partial(setting, Section.RULES)
_control_plane = partial(setting, Section.CONTROL_PLANE)
_redis = partial(setting, Section.REDIS)
_regions = partial(setting, Section.REGIONS)
_counting = partial(setting, Section.COUNTING)
_responses = partial(setting, Section.RESPONSES)
_metrics = partial(setting, Section.METRICS)
_logging = partial(setting, Section.LOGGING)
_tracing = partial(setting, Section.TRACING)
_process = partial(setting, Section.PROCESS)


@_with_more_redis
class Settings(BaseModel):
    """The values of all settings. `Settings()` has the defaults; it does not read the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    host: Hosts = _listening(
        ALL_ADDRESSES, "Addresses on which the HTTP port listens, separated by commas; `::` includes IPv4.", flag=""
    )
    port: Port = _listening(
        "8080", "HTTP port for `/json`, `/healthcheck` and `/metrics`; 0 takes any free port.", flag=""
    )
    debug_host: Hosts = _listening(
        ALL_ADDRESSES, "Addresses on which the debug port listens, separated by commas.", flag=""
    )
    debug_port: Port = _listening("6070", "HTTP port for the operator's pages and `/metrics`.", flag="")
    debug_uds: str = _listening("", "Path of a unix socket for these; replaces host and port.", NEW)
    grpc_host: Hosts = _listening(
        ALL_ADDRESSES, "Addresses on which the gRPC port listens, separated by commas.", flag=""
    )
    grpc_port: Port = _listening("8081", "gRPC: where Envoy asks.", flag="")
    grpc_uds: str = _listening("", "Path of a unix socket for gRPC; replaces host and port.", flag="")
    grpc_server_tls_cert: str = _listening("", "File with the certificate chain of the gRPC port.")
    grpc_server_tls_key: str = _listening("", "File with the private key of that certificate.")
    grpc_client_tls_cacert: str = _listening(
        "", "File with the CA of clients; if set, each client must present a certificate (mTLS)."
    )
    grpc_client_tls_san: str = _listening("", "DNS name or IP address that the certificate of a client must contain.")
    grpc_server_use_tls: Boolean = _listening(
        "false", "Use TLS on the gRPC port; needs `GRPC_SERVER_TLS_CERT` and `GRPC_SERVER_TLS_KEY`."
    )
    grpc_max_connection_age: Duration = _listening(
        "24h", "Maximum age of a gRPC connection; after it, GOAWAY asks to reconnect. 0: no maximum."
    )
    grpc_max_connection_age_grace: Duration = _listening(
        "1h", "Time for open calls after that GOAWAY; then the connection is closed. 0: no maximum."
    )
    grpc_keepalive_time: Annotated[int, reads(duration("1s"))] = _listening(
        "2h", "A gRPC connection that is silent for this time gets a keepalive PING.", NEW
    )
    grpc_keepalive_timeout: Timeout = _listening(
        "20s", "Maximum time to answer that PING; then the connection is closed.", NEW
    )
    grpc_max_connection_idle: Duration = _listening(
        "1h", "A gRPC connection without calls for this time gets a GOAWAY. 0: no maximum.", NEW
    )
    grpc_max_connections: Count = _listening(
        "10000", "Maximum number of open gRPC connections; 0: no maximum. `http2` only.", NEW
    )
    grpc_max_concurrent_streams: Positive = _listening(
        "1000", "Maximum number of concurrent calls on one gRPC connection.", NEW
    )
    grpc_max_connection_memory: Bytes = _listening(
        "4194304", "Maximum bytes of unread responses, and of incomplete requests, of a connection. `http2` only.", NEW
    )
    grpc_max_memory: Bytes = _listening(
        "268435456",
        "Maximum bytes that a process holds for all gRPC connections: messages, headers, input. `http2` only.",
        NEW,
    )
    grpc_max_header_list_size: Bytes = _listening("16384", "Maximum size of the headers of a call, in bytes.", NEW)
    grpc_max_message_size: Bytes = _listening(
        "131072", "Maximum size of a gRPC request message, in bytes, also after decompression.", NEW
    )
    grpc_preface_timeout: Annotated[int, reads(duration("100ms"))] = _listening(
        "10s", "Time for a gRPC client to begin; with `http2` also to finish headers, a frame or a message.", NEW
    )
    request_max_descriptors: Positive = _listening("256", "Maximum number of descriptors in a request.", NEW)
    request_max_entries: Positive = _listening(
        "1536", "Maximum number of entries in a request, of all its descriptors together.", NEW
    )
    request_max_value_length: Positive = _listening(
        "65536", "Maximum length of a key or a value in a request, in characters.", NEW
    )
    request_max_hits: Positive = _listening("500", "Maximum number of limits that a request is charged to.", NEW)
    request_max_pattern_work: Positive = _listening(
        "1048576",
        "Maximum of bytes times patterns that the values of a request are compared with; what is beyond is refused.",
        NEW,
    )
    regex_max_value_length: Positive = _listening(
        "8192", "Maximum length of a value that is compared with a `regex`, in bytes; a longer one is refused.", NEW
    )
    http_max_connections: Positive = _listening(
        "500",
        "Maximum number of HTTP connections, all ports together; a new one closes one of the address with most.",
        NEW,
    )
    http_max_body_size: Bytes = _listening("131072", "Maximum size of the body of an HTTP request, in bytes.", NEW)
    http_allowed_origins: Annotated[tuple[str, ...], reads(go_syntax.read_origins)] = _listening(
        "", "Origins of other sites whose pages may POST to `/json`, separated by commas; `*` is any.", NEW
    )
    debug_allowed_hosts: Annotated[tuple[str, ...], reads(go_syntax.read_names)] = _listening(
        ".svc,.cluster.local,.internal",
        "Names by which browsers ask the debug port and `/json`, besides `localhost` and any without a dot; `*`: all.",
        NEW,
    )
    transport: Annotated[TransportName, reads(one_of(TransportName))] = _listening(
        "http2", "Implementation of gRPC: `http2` or `grpcio`; see docs/transports.md.", NEW, flag=""
    )

    admin_token: Annotated[SecretStr, AfterValidator(_read_token)] = _operator(
        "", "Token of those who may ban and reload on the debug port: 32 characters or more, a secret.", NEW
    )
    admin_token_file: str = _operator("", "File with that token, in place of `ADMIN_TOKEN`; read at the start.", NEW)
    admin_tls_cert: str = _operator(
        "", "File with the certificate chain of the debug port: if set, it speaks HTTPS only.", NEW
    )
    admin_tls_key: str = _operator("", "File with the private key of that certificate.", NEW)
    admin_client_tls_cacert: str = _operator(
        "", "File with the CA of clients of the debug port; if set, each must present a certificate (mTLS).", NEW
    )
    admin_read_needs_token: Boolean = _operator(
        "false", "Require the token for everything on the debug port: the pages and `/metrics` too.", NEW
    )

    rules_tokens: Annotated[SecretStr, AfterValidator(_check_rules_tokens)] = _operator(
        "",
        "Tokens of those who may change the rules of some domains by the API, `NAME:TOKEN:DOMAIN,DOMAIN;…`: a secret.",
        NEW,
    )
    rules_tokens_file: str = _operator(
        "", "File with these, a line each, in place of `RULES_TOKENS`; read at the start.", NEW
    )

    config_type: Annotated[ConfigType, reads(one_of(ConfigType))] = _rules(
        "FILE", "Source of the rules: `FILE`, or a control plane: `GRPC_XDS_SOTW`."
    )
    runtime_root: str = _rules("/srv/runtime_data/current", "Folder that contains the rules' folder.")
    runtime_subdirectory: str = _rules("", "Folder inside `RUNTIME_ROOT`.")
    runtime_appdirectory: str = _rules("config", "Folder inside that one; it has the rules files.")
    rules_path: Path = _rules(
        "", "Folder or file of the rules; if empty, the three `RUNTIME_` folders joined.", NEW, flag="--rules"
    )
    rules_poll_interval: Annotated[int, reads(duration("10ms"))] = _rules(
        "1s", "Interval at which the rules files are checked for changes.", NEW
    )
    merge_domain_config: Boolean = _rules("false", "Allow several files to have rules of the same domain.")
    rules_precedence: Annotated[tuple[SourceKind, ...], reads(list_of(SourceKind))] = _rules(
        "",
        "Sources of rules, such as `api,files`: the first one gives a domain that several have; else that is an error.",
        NEW,
    )
    rules_store: str = _rules(
        "",
        "Where the rules that the API changes are kept: `redis`, or a folder; if empty, the API changes none.",
        NEW,
    )
    hash_key: Annotated[SecretStr, AfterValidator(_read_secret)] = _rules(
        "", "Key of the digests of `hash_values`: 32 characters or more, a secret, the same for all instances.", NEW
    )
    hash_key_file: str = _rules("", "File with that key, in place of `HASH_KEY`; read at the start.", NEW)
    force_start_without_initial_config: Boolean = _rules(
        "false", "Start although the rules' folder does not exist yet, or the control plane has sent nothing, and wait."
    )
    healthy_with_at_least_one_config_loaded: Boolean = _rules(
        "false", "Report NOT_SERVING until a control plane has sent rules; with rules from files that is always so."
    )

    config_grpc_xds_server_url: str = _control_plane("localhost:18000", "Address of the control plane.")
    config_grpc_xds_node_id: str = _control_plane("default", "Node id that the control plane has the rules under.")
    config_grpc_xds_node_metadata: Annotated[tuple[tuple[str, str], ...], reads(go_syntax.read_node_metadata)] = (
        _control_plane("", "Metadata of the node, `key=value,key2=value2`.")
    )
    config_grpc_xds_client_additional_headers: Annotated[tuple[tuple[str, str], ...], reads(go_syntax.read_map)] = (
        _control_plane("", "Headers of the stream, `key:value,key2:value2`.")
    )
    config_grpc_xds_server_use_tls: Boolean = _control_plane("false", "Use TLS to the control plane.")
    config_grpc_xds_client_tls_cert: str = _control_plane(
        "", "File with the certificate chain of this client, for mutual TLS. Files are read again at each connection."
    )
    config_grpc_xds_client_tls_key: str = _control_plane("", "File with the private key of that certificate.")
    config_grpc_xds_server_tls_cacert: str = _control_plane(
        "", "File with the CA of the control plane; if empty, the CAs that come with grpcio."
    )
    config_grpc_xds_server_tls_san: str = _control_plane(
        "", "Name that the control plane's certificate must contain; if empty, the host of the address."
    )
    xds_client_backoff_initial_interval: Timeout = _control_plane(
        "1s", "Time before a control plane that is lost is dialled again; doubled each time.", "envoyproxy; `10s` there"
    )
    xds_client_backoff_max_interval: Timeout = _control_plane(
        "30s", "The longest of these times.", "envoyproxy; `60s` there"
    )
    xds_client_backoff_random_factor: Annotated[float, reads(number(0, 1))] = _control_plane(
        "0.5", "Share by which each of them is lengthened or shortened at random."
    )
    xds_client_backoff_jitter: Boolean = _control_plane("true", "Do that.")
    xds_client_max_msg_size_in_bytes: Annotated[int, reads(go_syntax.empty_as(16 * 2**20, integer(0)))] = (
        _control_plane(
            "16777216",
            "Maximum size of a snapshot, in bytes; if 0 or empty, this one.",
            "envoyproxy; `4194304` there",
        )
    )
    xds_snapshot_file: str = _control_plane(
        "", "File in which the last good snapshot is kept; a start without the control plane takes its rules.", NEW
    )

    redis_type: Annotated[RedisType, reads(one_of(RedisType, empty=RedisType.SINGLE))] = _redis(
        "", "`single`, `sentinel` or `cluster`; if empty, `single`."
    )
    redis_socket_type: Annotated[SocketType, reads(one_of(SocketType, empty=SocketType.EITHER))] = _redis(
        "", "`tcp` or `unix`; if empty, `REDIS_URL` decides.", "envoyproxy; `unix` there"
    )
    redis_url: Annotated[SecretStr, AfterValidator(_check_url)] = _redis(
        "",
        "Address of Redis; docs/redis.md has all forms. If empty, `localhost:6379`.",
        "envoyproxy; `/var/run/nutcracker/ratelimit.sock` there",
    )
    redis_auth: SecretStr = _redis("", "Login to Redis: `password` or `user:password`.")
    redis_sentinel_auth: SecretStr = _redis("", "Login to the sentinels: `password` or `user:password`.")
    redis_tls: Boolean = _redis("false", "Use TLS to Redis.")
    redis_tls_cacert: str = _redis("", "File with a CA to trust, in addition to the system's.")
    redis_tls_client_cert: str = _redis("", "File with the certificate of this client.")
    redis_tls_client_key: str = _redis("", "File with the private key of that certificate.")
    redis_tls_skip_hostname_verification: Boolean = _redis(
        "false", "Do not verify that Redis's certificate is for its host name."
    )
    redis_timeout: Timeout = _redis(
        "10s", "Maximum time to connect; an attempt takes at most 2 s, then there is another one."
    )
    redis_health_check_active_connection: Boolean = _redis(
        "false", "Report NOT_SERVING while Redis cannot decide, also before the first connection."
    )
    cache_key_prefix: str = _redis("", "Prefix of the keys of all counters.")
    key_format: Annotated[KeyFormat, reads(one_of(KeyFormat, empty=KeyFormat.OWN))] = _redis(
        "own",
        "Format of keys: `own`, or `envoyproxy`, that of envoyproxy/ratelimit for fixed windows, to migrate gradually.",
        NEW,
    )
    expiration_jitter_max_seconds: Count = _redis(
        "300", "Counters of fixed windows expire at most this many seconds after their window."
    )
    local_cache_size_in_bytes: Count = _redis(
        "0", "If > 0, a fixed window over its limit is denied locally until it ends; those hits are not counted."
    )
    refused_max_counters: Count = _redis(
        "100000",
        "Denied counters cached at most, to deny repeats without Redis; 500 bytes each, fewer if keys are long.",
        NEW,
    )
    store_deadline: Annotated[int, reads(duration("1ms", empty=0))] = _redis(
        "", "Maximum time for Redis to answer; if empty, the call's deadline less a margin, or `1s` without one.", NEW
    )
    on_store_failure: Annotated[StorePolicy, reads(one_of(StorePolicy))] = _redis(
        "error", "Answer while Redis is unavailable, if the rule has none: `error`, `open`, `closed` or `local`.", NEW
    )
    leases: Annotated[LeaseMode, reads(one_of(LeaseMode))] = _redis(
        "off",
        "`auto`: charge units of hot counters in advance, spend them without Redis; or `off`. Rules may say otherwise.",
        NEW,
    )
    lease_max_share: Annotated[float, reads(go_syntax.read_share)] = _redis(
        "5%",
        "Maximum share of a limit that a process holds in advance; its rest is lost when the process is killed.",
        NEW,
    )
    lease_deny_ms: Annotated[int, reads(integer(1, 1000))] = _redis(
        "5", "Milliseconds for which a process remembers at least that a leased counter has nothing left.", NEW
    )
    instances: Positive = _redis("1", "Number of instances that share the limits; `local` grants each its share.", NEW)
    redis_persecond: Boolean = _redis("false", "Keep the counters with a window of one second in a second Redis.")

    region: str = _regions("", "Region of this instance, such as `eu`: one of `REGIONS`.", NEW)
    regions: Annotated[tuple[str, ...], reads(go_syntax.read_regions)] = _regions(
        "", "All regions that share the limits, `eu,us,ap`: in every region the same ones in the same order.", NEW
    )
    region_sync_seconds: Annotated[float, reads(number(0.1, 60, "number of seconds"))] = _regions(
        "1", "Seconds after which regions exchange the counts of limits with `regions: synced`.", NEW
    )

    backend_type: Annotated[Backend, reads(one_of(Backend))] = _counting(
        "",
        "Store of the counters: `memory` or `redis`; if empty, `redis` if `REDIS_URL` is set, else `memory`.",
        "envoyproxy; `redis` there",
        flag="--backend",
    )
    memory_max_counters: Positive = _counting(
        "1000000",
        "Approximate maximum number of counters in memory; above it the least recently used are evicted.",
        NEW,
    )
    memory_max_bytes: Annotated[int, reads(integer(1024 * 1024))] = _counting(
        str(512 * 1024 * 1024),
        "Approximate maximum size of all counters in memory, in bytes; above it the same is done.",
        NEW,
    )
    near_limit_ratio: Annotated[float, reads(number(0, 1))] = _counting(
        "0.8", "Fraction of a limit above which a hit counts as near the limit."
    )
    shadow_mode: Boolean = _counting("false", "Count and report everything, but answer OK to every request.")
    quota_mode: Boolean = _counting(
        "false", "Treat every rule as if it had `quota_mode`, and a descriptor without a rule as a quota with room."
    )

    limit_response_headers_enabled: Boolean = _responses(
        "false", "Send the three headers below; `RESPONSE_HEADERS=ratelimit` says the same."
    )
    limit_limit_header: Header = _responses("RateLimit-Limit", "Header with the limit.")
    limit_remaining_header: Header = _responses(
        "RateLimit-Remaining", "Header with the number of requests that remain."
    )
    limit_reset_header: Header = _responses("RateLimit-Reset", "Header with the seconds until the limit is reset.")
    response_dynamic_metadata: Boolean = _responses(
        "false", "Send the request's descriptors and the rules' metadata as dynamic metadata."
    )

    response_headers: Annotated[tuple[ResponseHeaders, ...], reads(list_of(ResponseHeaders))] = _responses(
        "", "Headers of responses about limits: `ratelimit`, `x_ratelimit`, `ietf`, separated by commas.", NEW
    )
    response_retry_after: Boolean = _responses(
        "false", "Send `Retry-After` when a request is refused, unless waiting does not help.", NEW
    )
    response_retry_after_jitter: Annotated[tuple[int, int], reads(go_syntax.read_jitter)] = _responses(
        "", "The most by which the waits in a refusal are lengthened at random: `10%` of the wait, or `5s`.", NEW
    )
    response_problem_body: Boolean = _responses(
        "false", "Send a body of `application/problem+json` when a request is refused, always the same one.", NEW
    )
    response_rule_metadata: Boolean = _responses(
        "false", "Send the rule that refused a request, or whose soft limit it exceeds, as dynamic metadata.", NEW
    )

    metrics_max_values: Count = _metrics(
        "1000", "Maximum number of series per rule for values of requests; `other` sums the rest.", NEW
    )
    extra_tags: Annotated[tuple[tuple[str, str], ...], reads(go_syntax.read_labels)] = _metrics(
        "", "Labels of every metric, `key:value,key2:value2`."
    )
    use_prometheus: Boolean = _metrics("false", "Serve metrics on one more address, that of `PROMETHEUS_ADDR`.")
    prometheus_addr: Annotated[Tcp, reads(go_syntax.read_address)] = _metrics(
        ":9090", "Address and port of that listener."
    )
    prometheus_path: Annotated[str, reads(go_syntax.read_path)] = _metrics("/metrics", "Path of the metrics there.")

    log_level: Annotated[LogLevel, reads(one_of(LogLevel, warn=LogLevel.WARNING))] = _logging(
        "info", f"Lowest level that is logged: {', '.join(LogLevel)}.", "envoyproxy; `WARN` there", flag=""
    )
    log_format: Annotated[LogFormat, reads(one_of(LogFormat, empty=LogFormat.TEXT))] = _logging(
        "text", "Format of log lines: `text` or `json`.", flag=""
    )

    tracing_enabled: Boolean = _tracing(
        "false", "Export spans of calls by OTLP to `OTEL_EXPORTER_OTLP_ENDPOINT`; see docs/deploy.md."
    )
    tracing_exporter_protocol: Annotated[TracingProtocol, reads(one_of(TracingProtocol))] = _tracing(
        "http", "Protocol of OTLP: `http` or `grpc`."
    )
    tracing_service_name: str = _tracing("RateLimit", "`service.name` of the spans.")
    tracing_service_namespace: str = _tracing("", "`service.namespace` of the spans.")
    tracing_service_instance_id: str = _tracing("", "`service.instance.id` of the spans; if empty, a random UUID.")
    tracing_sampling_rate: Annotated[float, reads(number(0, 1))] = _tracing(
        "1", "Share of calls with spans, from 0 to 1, where the caller has not decided."
    )
    tracing_max_calls: Count = _tracing(
        "500",
        "Maximum number of calls with spans per second and process, also where callers decide; `0`: no limit.",
        NEW,
    )

    workers: Annotated[int, reads(read_workers)] = _process(
        "1",
        "Processes that answer calls; `auto`: one per CPU. More than 1 needs Redis and `TRANSPORT=http2`.",
        NEW,
        flag="",
    )
    drain_seconds: Annotated[float, reads(number(0, 3600, "number of seconds"))] = _process(
        "5", "Seconds from the moment health says NOT_SERVING until the ports close.", NEW, flag=""
    )
    drain_timeout: Duration = _process("30s", "Maximum time for open calls to finish after that.", NEW)

    @property
    def redis(self) -> RedisSettings:
        """The Redis of all counters."""
        return self._redis_settings("redis")

    @property
    def second_redis(self) -> RedisSettings | None:
        """The second Redis, for counters with a window of one second; None when there is none."""
        return self._redis_settings("redis_persecond") if self.redis_persecond else None

    @property
    def home_redis(self) -> RedisSettings | None:
        """The Redis that all regions share; None when there is none, or only one region."""
        named = len(self.regions) > 1 and self.home_redis_url.get_secret_value()  # type: ignore[attr-defined] # added
        return self._redis_settings("home_redis") if named else None

    @property
    def rules_token_list(self) -> tuple[RulesToken, ...]:
        """Those of `rules_tokens`."""
        return read_rules_tokens(self.rules_tokens.get_secret_value())

    def _redis_settings(self, prefix: str) -> RedisSettings:
        return RedisSettings(*(getattr(self, f"{prefix}_{name}") for name in RedisSettings._fields))

    @property
    def health_needs_rules(self) -> bool:
        """Whether health says NOT_SERVING until there are rules."""
        return self.config_type is ConfigType.FILE or self.healthy_with_at_least_one_config_loaded

    @field_validator("grpc_server_use_tls")
    @classmethod
    def _check_tls_files(cls, use_tls: bool, info: ValidationInfo) -> bool:
        files = info.data
        if use_tls and not (files["grpc_server_tls_cert"] and files["grpc_server_tls_key"]):
            raise ValueError("needs both GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
        if use_tls and files["grpc_client_tls_san"] and not files["grpc_client_tls_cacert"]:
            raise ValueError("needs GRPC_CLIENT_TLS_CACERT too: without it no client shows a certificate")
        return use_tls

    @field_validator("admin_read_needs_token")
    @classmethod
    def _check_token(cls, needed: bool, info: ValidationInfo) -> bool:
        token = info.data.get("admin_token")
        if needed and token is not None and not token.get_secret_value():
            raise ValueError("needs ADMIN_TOKEN or ADMIN_TOKEN_FILE")
        return needed

    @field_validator("regions")
    @classmethod
    def _check_region(cls, regions: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        region = info.data.get("region")
        if regions and not region:
            raise ValueError("needs REGION, the one of them that this instance is in")
        if regions and region not in regions:
            raise ValueError(f"does not have the region of this instance, which is REGION: {json.dumps(region)}")
        return regions

    @field_validator("response_headers")
    @classmethod
    def _check_header_names(cls, chosen: tuple[ResponseHeaders, ...], info: ValidationInfo) -> object:
        """Two sets must not send a header of the same name: a client would see two values."""
        data = info.data
        if ResponseHeaders.RATELIMIT in chosen or data.get("limit_response_headers_enabled"):
            for field in ("limit_limit_header", "limit_remaining_header", "limit_reset_header"):
                for other in chosen:
                    if (name := data.get(field)) and name.lower() in HEADERS_OF[other]:
                        raise ValueError(f"has {other}, which sends {name} too: {field.upper()} must be another name")
        return chosen

    @field_validator("backend_type", mode="before")
    @classmethod
    def _default_backend(cls, name: object, info: ValidationInfo) -> object:
        """Take `redis` if any of the settings that say where Redis is has a value."""
        if name:
            return name
        before = info.data
        url = before.get("redis_url")
        named = before.get("redis_socket_type") or (url is not None and url.get_secret_value())
        return (
            Backend.REDIS
            if named or before.get("redis_type", RedisType.SINGLE) is not RedisType.SINGLE
            else Backend.MEMORY
        )

    @field_validator("backend_type")
    @classmethod
    def _check_rules_store(cls, backend: Backend, info: ValidationInfo) -> Backend:
        if backend is Backend.MEMORY and info.data.get("rules_store") == Backend.REDIS:
            raise ValueError("is memory, and RULES_STORE is redis: say where Redis is with REDIS_URL, or name a folder")
        return backend

    @field_validator("workers")
    @classmethod
    def _check_workers(cls, workers: int, info: ValidationInfo) -> int:
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
    def _default_rules_path(cls, path: object, info: ValidationInfo) -> object:
        if path:
            return path
        below = (info.data["runtime_subdirectory"], info.data["runtime_appdirectory"])
        return Path(info.data["runtime_root"], *(folder.lstrip("/") for folder in below))


def _declared() -> Iterator[Setting]:
    for field, info in Settings.model_fields.items():
        about: Any = info.json_schema_extra
        flag = "" if about["flag"] is None else about["flag"] or f"--{field.replace('_', '-')}"
        yield Setting(
            field, field.upper(), flag, info.default, info.description or "", about["section"], about["origin"]
        )


SETTINGS: Final = tuple(_declared())
"""Each setting as the docs and the command line show it."""
FLAGS: Final = tuple(each for each in SETTINGS if each.flag)
"""Those that `ratelimit serve` has as options; their values go to `load_settings` by `Setting.field`."""
