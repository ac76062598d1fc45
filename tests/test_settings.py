"""Settings: names, defaults and syntax of envoyproxy; all errors are reported at once; nothing is dropped silently."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings import FLAGS, SETTINGS, Settings, load_settings
from ratelimit_service.settings.fields import Backend, LogFormat, LogLevel, Section
from ratelimit_service.settings.go_syntax import (
    read_address,
    read_bool,
    read_hosts,
    read_integer,
    read_labels,
    read_list,
    read_map,
)
from ratelimit_service.settings.load import ALWAYS_ON, HARMLESS_VALUES, TRACING_PREFIX, UNUSED
from ratelimit_service.system.address import Tcp
from ratelimit_service.system.clock import SECOND

ROOT = Path(__file__).parent.parent
EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing is bound

_NAMES = """
HOST PORT DEBUG_HOST DEBUG_PORT GRPC_UDS GRPC_HOST GRPC_PORT GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE
GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN LOG_LEVEL
LOG_FORMAT CONFIG_TYPE FORCE_START_WITHOUT_INITIAL_CONFIG CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA
CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS
CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY
CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN XDS_CLIENT_BACKOFF_INITIAL_INTERVAL
XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER
XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS USE_STATSD STATSD_HOST STATSD_PORT
EXTRA_TAGS STATS_FLUSH_INTERVAL DISABLE_STATS USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML
PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY
RUNTIME_IGNOREDOTFILES RUNTIME_WATCH_ROOT EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES NEAR_LIMIT_RATIO
CACHE_KEY_PREFIX BACKEND_TYPE STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT LIMIT_RESPONSE_HEADERS_ENABLED
LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_TLS REDIS_TLS_CLIENT_CERT
REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_PIPELINE_WINDOW
REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE
REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_AUTH REDIS_PERSECOND_TLS
REDIS_SENTINEL_AUTH REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT
REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_TIMEOUT
REDIS_PERSECOND_TIMEOUT REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR
REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME MEMCACHE_HOST_PORT
MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS MEMCACHE_TLS_CLIENT_CERT
MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION SHADOW_MODE QUOTA_MODE
RESPONSE_DYNAMIC_METADATA MERGE_DOMAIN_CONFIG TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE
TRACING_SERVICE_INSTANCE_ID TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE
"""
ENVOYPROXY = _NAMES.split()
"""The names in envoyproxy's settings.go."""


def problems_of(environ: dict[str, str], **flags: object) -> tuple[str, ...]:
    """What is wrong with them."""
    with pytest.raises(SettingsError) as caught:
        load_settings(environ, flags)
    return caught.value.problems


# What there is


def test_without_a_word_the_ports_and_folders_are_envoyproxys() -> None:
    """An empty environment gives envoyproxy's defaults, counters in memory, and no warning."""
    settings, warnings = load_settings({})

    assert (settings.host, settings.port) == ((EVERYWHERE,), 8080)
    assert (settings.debug_host, settings.debug_port) == ((EVERYWHERE,), 6070)
    assert (settings.grpc_host, settings.grpc_port, settings.grpc_uds) == ((EVERYWHERE,), 8081, "")
    assert settings.grpc_max_connection_age == 86_400_000_000
    assert settings.grpc_max_connection_age_grace == 3_600_000_000
    assert settings.rules_path == Path("/srv/runtime_data/current/config")
    assert settings.backend_type is Backend.MEMORY
    assert settings.near_limit_ratio == 0.8
    assert settings.limit_reset_header == "RateLimit-Reset"
    assert settings.prometheus_addr == Tcp("::", 9090)
    assert settings.log_level is LogLevel.INFO
    assert warnings == []


def test_every_variable_of_envoyproxy_is_known() -> None:
    """Each is a field, or understood and always so, or named as unused, or of tracing: never unknown."""
    known = {setting.variable for setting in SETTINGS} | ALWAYS_ON.keys() | UNUSED.keys()

    assert {name for name in set(ENVOYPROXY) - known if not name.startswith(TRACING_PREFIX)} == set()


def test_a_variable_stands_in_one_place_only() -> None:
    """No variable is a field and unused at once."""
    fields = {setting.variable for setting in SETTINGS}

    assert not fields & UNUSED.keys()
    assert not fields & ALWAYS_ON.keys()
    assert not ALWAYS_ON.keys() & UNUSED.keys()
    assert UNUSED.keys() >= HARMLESS_VALUES.keys()


def test_fields_that_are_not_envoyproxys_say_so() -> None:
    """The table's last column tells the truth."""
    new = {setting.variable for setting in SETTINGS if setting.origin == "new"}

    assert new == {setting.variable for setting in SETTINGS} - set(ENVOYPROXY)


def test_an_environment_of_envoyproxy_is_read() -> None:
    """A deployment's variables arrive typed."""
    settings, warnings = load_settings(
        {
            "USE_STATSD": "false",
            "USE_PROMETHEUS": "T",
            "PROMETHEUS_ADDR": "127.0.0.1:9100",
            "GRPC_HOST": "10.0.0.1,[::1]",
            "GRPC_MAX_CONNECTION_AGE": "1h30m",
            "RUNTIME_ROOT": "/data",
            "RUNTIME_SUBDIRECTORY": "ratelimit",
            "RUNTIME_WATCH_ROOT": "false",
            "RUNTIME_IGNOREDOTFILES": "true",
            "LOG_LEVEL": "WARN",
            "LOG_FORMAT": "json",
            "EXTRA_TAGS": "zone:a,data-centre:b",
            "SHADOW_MODE": "1",
        }
    )

    assert settings.use_prometheus is True
    assert settings.prometheus_addr == Tcp("127.0.0.1", 9100)
    assert settings.grpc_host == ("10.0.0.1", "::1")
    assert settings.grpc_max_connection_age == 5_400_000_000
    assert settings.rules_path == Path("/data/ratelimit/config")
    assert settings.log_level is LogLevel.WARNING
    assert settings.log_format is LogFormat.JSON
    assert settings.extra_tags == (("zone", "a"), ("data_centre", "b"))
    assert settings.shadow_mode is True
    assert warnings == []


def test_empty_texts_mean_what_they_mean_to_envoyproxy() -> None:
    """Compose files pass `${NAME:-}` on as nothing; for texts that is the default."""
    settings, _ = load_settings({"BACKEND_TYPE": "", "LOG_FORMAT": "", "GRPC_UDS": "", "EXTRA_TAGS": "", "HOST": ""})

    assert settings.backend_type is Backend.MEMORY
    assert settings.log_format is LogFormat.TEXT
    assert settings.extra_tags == ()
    assert settings.host == ("::",)


def test_rules_path_goes_before_the_folders_of_envoyproxy() -> None:
    """With RULES_PATH, or `--rules`, RUNTIME_* do not matter."""
    settings, _ = load_settings({"RUNTIME_ROOT": "/data", "RULES_PATH": "config/shop.yaml"})

    assert settings.rules_path == Path("config/shop.yaml")


def test_folders_of_envoyproxy_stay_below_the_root() -> None:
    """Go's join keeps the root when a folder begins with a slash."""
    settings, _ = load_settings({"RUNTIME_SUBDIRECTORY": "/ratelimit", "RUNTIME_APPDIRECTORY": ""})

    assert settings.rules_path == Path("/srv/runtime_data/current/ratelimit")


def test_settings_do_not_change() -> None:
    """They are read once."""
    settings = Settings()

    with pytest.raises(ValidationError):
        settings.port = 1


def test_settings_are_made_from_values_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests and programs build them typed, and the environment has no part in it."""
    monkeypatch.setenv("GRPC_PORT", "1")
    settings = Settings(port=0, host=("::1",), rules_path=Path("rules"), rules_poll_interval=10_000)

    assert (settings.port, settings.host, settings.rules_path) == (0, ("::1",), Path("rules"))
    assert settings.rules_poll_interval == 10_000
    assert settings.grpc_port == 8081


# Where values come from


def test_a_flag_wins_over_the_environment_that_over_the_file_and_that_over_the_default(tmp_path: Path) -> None:
    """Flags, environment, `.env`, default."""
    dotenv = tmp_path / ".env"
    dotenv.write_text('PORT=1\nDEBUG_PORT=1\nexport GRPC_PORT="1" # one\nLOG_FORMAT=json\n')
    settings, warnings = load_settings({"PORT": "2", "DEBUG_PORT": "2"}, {"port": "3", "grpc_host": None}, dotenv)

    assert settings.port == 3
    assert settings.debug_port == 2
    assert settings.grpc_port == 1
    assert settings.log_format is LogFormat.JSON
    assert settings.grpc_host == (EVERYWHERE,)
    assert warnings == []


def test_a_file_is_not_filled_in_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the file decides what the file says."""
    monkeypatch.setenv("ELSEWHERE", "/elsewhere")
    dotenv = tmp_path / ".env"
    dotenv.write_text("RULES_PATH=${ELSEWHERE}/rules\n")
    settings, _ = load_settings({}, {}, dotenv)

    assert settings.rules_path == Path("${ELSEWHERE}/rules")


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """A named file is meant."""
    with pytest.raises(SettingsError) as caught:
        load_settings({}, {}, tmp_path / "nowhere.env")

    assert caught.value.problems == (f"{tmp_path}/nowhere.env: cannot be read: No such file or directory",)


def test_lines_of_a_file_that_say_nothing_are_problems(tmp_path: Path) -> None:
    """python-dotenv would only log them."""
    dotenv = tmp_path / ".env"
    dotenv.write_text("# fine\n\nGRPC_PORT\nPORT='80\n")
    with pytest.raises(SettingsError) as caught:
        load_settings({}, {}, dotenv)

    assert caught.value.problems == (
        f"{dotenv}:3: is not a line such as GRPC_PORT=8081",
        f"{dotenv}:4: is not a line such as GRPC_PORT=8081",
    )


def test_a_file_that_is_no_text_is_a_problem(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are told, not thrown."""
    dotenv = tmp_path / ".env"
    dotenv.write_bytes(b"PORT=\xff\n")
    with pytest.raises(SettingsError) as caught:
        load_settings({}, {}, dotenv)

    assert caught.value.problems == (f"{dotenv}: cannot be read: it is not UTF-8",)


# What is wrong


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """A line for each, beginning with the name under which the operator gave it."""
    dotenv = tmp_path / ".env"
    dotenv.write_text("DEBUG_PORT=debug\n")
    environ = {
        "GRPC_MAX_CONNECTION_AGE": "10 sec",
        "GRPC_SERVER_USE_TLS": "true",
        "NEAR_LIMIT_RATIO": "1.5",
        "RUNTIME_WATCH_ROOT": "yes",
    }
    with pytest.raises(SettingsError) as caught:
        load_settings(environ, {"grpc_port": "70000"}, dotenv)

    assert caught.value.problems == (
        f'DEBUG_PORT (in {dotenv}): "debug" is not a whole number from 0 to 65535',
        '--grpc-port: "70000" is not a whole number from 0 to 65535',
        'GRPC_SERVER_USE_TLS: "true" needs both GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY',
        'GRPC_MAX_CONNECTION_AGE: "10 sec" is not a duration such as 10s, 1h30m, 15 minutes or 200ms',
        'NEAR_LIMIT_RATIO: "1.5" is not a number from 0 to 1',
        'RUNTIME_WATCH_ROOT: "yes" is not a boolean such as true, false, 1 or 0',
    )


@pytest.mark.parametrize(
    ("variable", "text", "wrong"),
    [
        ("PORT", "", "is not a whole number from 0 to 65535"),
        ("PORT", "-1", "is not a whole number from 0 to 65535"),
        ("HOST", "0.0.0.0:80", "is not an address or a name to listen on such as 0.0.0.0, :: or localhost"),
        ("GRPC_MAX_CONNECTION_AGE", "-1s", "is below zero"),
        ("GRPC_MAX_CONNECTION_AGE", "", "is not a duration such as 10s, 1h30m, 15 minutes or 200ms"),
        ("GRPC_KEEPALIVE_TIME", "10ms", "is shorter than 1s"),
        ("RULES_POLL_INTERVAL", "0", "is shorter than 10ms"),
        ("SHADOW_MODE", "", "is not a boolean such as true, false, 1 or 0"),
        ("MEMORY_MAX_COUNTERS", "0", "is not a whole number from 1 to 2147483647"),
        ("NEAR_LIMIT_RATIO", "nan", "is not a number from 0 to 1"),
        ("DRAIN_SECONDS", "5s", "is not a number of seconds from 0 to 3600"),
        ("LIMIT_LIMIT_HEADER", "Rate Limit", "is not a header name such as RateLimit-Limit"),
        ("RESPONSE_HEADERS", "ietf,rfc", "is not a list of ratelimit, x_ratelimit, ietf"),
        ("RESPONSE_HEADERS", "ietf,", "is not a list of ratelimit, x_ratelimit, ietf"),
        ("RESPONSE_RETRY_AFTER_JITTER", "101%", "is not a share up to 100% or a time up to 24h such as 10% or 5s"),
        ("RESPONSE_RETRY_AFTER_JITTER", "25h", "is not a share up to 100% or a time up to 24h such as 10% or 5s"),
        ("RESPONSE_RETRY_AFTER_JITTER", "-1s", "is not a share up to 100% or a time up to 24h such as 10% or 5s"),
        ("RESPONSE_RETRY_AFTER_JITTER", "10", "is not a duration such as 10s, 1h30m, 15 minutes or 200ms"),
        ("PROMETHEUS_ADDR", "9090", "is not an address to listen on such as :9090, 127.0.0.1:9090 or [::1]:9090"),
        ("PROMETHEUS_PATH", "metrics", "is not a path such as /metrics"),
        ("EXTRA_TAGS", "zone", "is not a map such as key:value,key2:value2"),
        ("EXTRA_TAGS", "a-b:1,a.b:2", "has a label twice, or one that starts with __"),
        ("LOG_LEVEL", "loud", "is not one of trace, debug, info, warning, error, fatal, panic"),
        ("LOG_FORMAT", "xml", "is not one of text, json"),
        ("TRANSPORT", "http3", "is not one of http2, grpcio"),
        (
            "BACKEND_TYPE",
            "memcache",
            "is not in this release: counters are kept in this process's memory (memory) or in Redis (redis)",
        ),
        ("BACKEND_TYPE", "etcd", "is not one of memory, redis"),
        ("REDIS_TYPE", "double", "is not one of single, sentinel, cluster"),
        ("REDIS_SOCKET_TYPE", "udp", "is not one of tcp, unix"),
        ("REDIS_URL", "redis:port", "is not an address such as host:6379"),
        ("REDIS_URL", "http://redis", "is not a URL such as redis://, rediss:// or unix://"),
        ("REDIS_TIMEOUT", "0", "is shorter than 1ms"),
        ("STORE_DEADLINE", "15", "is not a duration such as 10s, 1h30m, 15 minutes or 200ms"),
        ("ON_STORE_FAILURE", "allow", "is not one of error, open, closed, local"),
        ("INSTANCES", "0", "is not a whole number from 1 to 2147483647"),
        ("KEY_FORMAT", "theirs", "is not one of own, envoyproxy"),
        ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "2", "is not a number from 0 to 1"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x", "is not a map such as key:value,key2:value2"),
        ("CONFIG_TYPE", "", "is not one of FILE, GRPC_XDS_SOTW"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(variable: str, text: str, wrong: str) -> None:
    """The variable, the value, and what it is not."""
    assert problems_of({variable: text}) == (f'{variable}: "{text}" {wrong}',)


@pytest.mark.parametrize(
    ("variable", "name", "headers"),
    [
        ("LIMIT_LIMIT_HEADER", "X-RateLimit-Limit", "x_ratelimit"),
        ("LIMIT_REMAINING_HEADER", "x-ratelimit-remaining", "x_ratelimit"),
        ("LIMIT_RESET_HEADER", "RateLimit", "ietf"),
    ],
)
def test_two_sets_of_headers_must_not_have_one_name(variable: str, name: str, headers: str) -> None:
    """A client would see two values; without the other set the name is good."""
    wrong = f"has {headers}, which sends {name} too: {variable} must be another name"

    assert problems_of({variable: name, "RESPONSE_HEADERS": f"{headers},ratelimit"}) == (
        f'RESPONSE_HEADERS: "{headers},ratelimit" {wrong}',
    )
    assert problems_of({variable: name, "RESPONSE_HEADERS": headers, "LIMIT_RESPONSE_HEADERS_ENABLED": "1"}) == (
        f'RESPONSE_HEADERS: "{headers}" {wrong}',
    )
    load_settings({variable: name, "RESPONSE_HEADERS": headers})
    load_settings({variable: name, "RESPONSE_HEADERS": "ratelimit"})


def test_a_client_name_needs_a_ca_to_be_asked_of_anybody() -> None:
    """envoyproxy/ratelimit starts so, and lets every client in."""
    environ = {
        "GRPC_SERVER_USE_TLS": "true",
        "GRPC_SERVER_TLS_CERT": "c",
        "GRPC_SERVER_TLS_KEY": "k",
        "GRPC_CLIENT_TLS_SAN": "envoy",
    }

    assert problems_of(environ) == (
        'GRPC_SERVER_USE_TLS: "true" needs GRPC_CLIENT_TLS_CACERT too: without it no client shows a certificate',
    )


def test_a_problem_is_one_line_that_any_terminal_can_show() -> None:
    """Line breaks, and bytes that are no text, are escaped."""
    assert problems_of({"PORT": "1\n\udcff"}) == (r'PORT: "1\n\udcff" is not a whole number from 0 to 65535',)


# What is warned of


def test_a_variable_without_meaning_is_named_once_for_each_reason() -> None:
    """Nothing of envoyproxy is dropped in silence."""
    environ = {"REDIS_POOL_SIZE": "20", "REDIS_PIPELINE_WINDOW": "150us", "STATSD_HOST": "statsd"}
    _, warnings = load_settings(environ)

    assert warnings == [
        (
            "REDIS_POOL_SIZE, REDIS_PIPELINE_WINDOW: not used by this release: "
            "one connection to each server carries all hits that have come, in one call"
        ),
        "STATSD_HOST: not used by this release: nothing is sent to statsd: Prometheus reads /metrics",
    ]


@pytest.mark.parametrize("variable", sorted(UNUSED))
def test_each_variable_without_meaning_has_its_warning(variable: str) -> None:
    """Whatever its value, except a switch that is off."""
    _, warnings = load_settings({variable: "1"})

    assert [warning.partition(":")[0] for warning in warnings] == [variable]


@pytest.mark.parametrize(
    ("variable", "text"), [(variable, text) for variable, texts in HARMLESS_VALUES.items() for text in sorted(texts)]
)
def test_a_variable_that_asks_for_nothing_needs_no_warning(variable: str, text: str) -> None:
    """USE_STATSD=false stands in every deployment that reads Prometheus."""
    assert load_settings({variable: text})[1] == []


def test_variables_of_tracing_are_never_taken_for_misspelt_ones(tmp_path: Path) -> None:
    """OpenTelemetry's operator sets OTEL_* in every pod; its SDK reads them."""
    environ = {
        "TRACING_ENABLED": "false",
        "TRACING_SERVICE_NAME": "ratelimit",
        "TRACING_SAMPLING_RATE": "0.5",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
        "OTEL_SERVICE_NAME": "ratelimit",
    }
    dotenv = tmp_path / ".env"
    dotenv.write_text("".join(f"{name}={text}\n" for name, text in environ.items()))

    assert load_settings(environ)[1] == []
    assert load_settings({}, {}, dotenv)[1] == []
    assert load_settings(environ | {"TRACING_ENABLED": "true"})[1] == []


def test_the_environment_of_envoy_gateway_warns_of_what_is_missing_and_of_nothing_else() -> None:
    """Of all that its deployment sets, one variable has no effect, there neither."""
    environ = {
        "USE_STATSD": "false",
        "USE_PROMETHEUS": "true",
        "PROMETHEUS_ADDR": ":19001",
        "PROMETHEUS_MAPPER_YAML": "/etc/statsd-exporter/conf.yaml",
        "RUNTIME_ROOT": "/data",
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "RUNTIME_IGNOREDOTFILES": "true",
        "RUNTIME_WATCH_ROOT": "false",
        "LOG_LEVEL": "info",
        "FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": "redis:6379",
        "GRPC_SERVER_USE_TLS": "true",
        "GRPC_SERVER_TLS_CERT": "/certs/tls.crt",
        "GRPC_SERVER_TLS_KEY": "/certs/tls.key",
        "GRPC_SERVER_TLS_CA_CERT": "/certs/ca.crt",
        "TRACING_ENABLED": "true",
        "TRACING_SERVICE_NAME": "envoy-ratelimit",
        "TRACING_SERVICE_NAMESPACE": "envoy-gateway-system",
        "TRACING_SERVICE_INSTANCE_ID": "envoy-ratelimit-6f7d8",
        "TRACING_SAMPLING_RATE": "1.0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
    }
    by_xds = {
        "CONFIG_TYPE": "GRPC_XDS_SOTW",
        "CONFIG_GRPC_XDS_SERVER_URL": "envoy-gateway:18001",
        "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit",
        "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": "/certs/tls.crt",
        "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": "/certs/tls.key",
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": "/certs/ca.crt",
    }

    assert load_settings(environ | by_xds)[1] == [
        (
            "GRPC_SERVER_TLS_CA_CERT: not used by this release: envoyproxy does not read it either;"
            " GRPC_CLIENT_TLS_CACERT names the CA that clients are checked with"
        ),
    ]


@pytest.mark.parametrize("variable", sorted(ALWAYS_ON))
@pytest.mark.parametrize("text", ["true", "false"])
def test_what_is_always_so_needs_no_warning(variable: str, text: str) -> None:
    """Both ways of envoyproxy are covered."""
    assert load_settings({variable: text})[1] == []


def test_a_misspelt_variable_is_warned_of() -> None:
    """The environment is full of other programs' variables, so only what resembles ours is told."""
    environ = {"GRPC_PROT": "1", "grpc_port": "2", "HOSTNAME": "a", "HOME": "/", "LOGNAME": "b", "PATH": "c"}
    _, warnings = load_settings(environ)

    assert warnings == [
        "GRPC_PROT: not a variable of this service; did you mean GRPC_PORT?",
        "grpc_port: not a variable of this service; did you mean GRPC_PORT?",
    ]


def test_what_kubernetes_tells_of_its_services_is_not_misspelt() -> None:
    """A service called redis or ratelimit sets such variables in every pod."""
    environ = {
        f"{service}_{name}": "tcp://10.0.0.1:6379"
        for service in ("REDIS", "RATELIMIT", "STATSD", "GRPC", "KUBERNETES")
        for name in ("SERVICE_HOST", "SERVICE_PORT", "PORT_6379_TCP", "PORT_6379_TCP_ADDR", "PORT_6379_TCP_PROTO")
    }

    assert load_settings(environ)[1] == []


def test_an_unknown_name_in_a_file_is_warned_of(tmp_path: Path) -> None:
    """The file is ours, so every name in it should be."""
    dotenv = tmp_path / ".env"
    dotenv.write_text("COLOUR=red\nGRPC_PROT=1\n")
    _, warnings = load_settings({}, {}, dotenv)

    assert warnings == [
        f"COLOUR: unknown variable in {dotenv}",
        f"GRPC_PROT: unknown variable in {dotenv}; did you mean GRPC_PORT?",
    ]


def test_certificates_without_tls_are_warned_of() -> None:
    """Whoever names a certificate believes the port is safe."""
    _, warnings = load_settings({"GRPC_SERVER_TLS_CERT": "c", "GRPC_CLIENT_TLS_SAN": "envoy"})

    assert warnings == [
        "GRPC_SERVER_TLS_CERT, GRPC_CLIENT_TLS_SAN: not used, because GRPC_SERVER_USE_TLS is false",
    ]


def test_redis_that_is_not_asked_is_warned_of() -> None:
    """Whoever names a Redis believes that instances share their limits."""
    told = {"REDIS_URL": "redis:6379", "REDIS_PERSECOND_URL": "other:6379"}

    assert load_settings({**told, "BACKEND_TYPE": "memory"})[1] == [
        "REDIS_URL: not used, because BACKEND_TYPE is memory",
        "REDIS_PERSECOND_URL: not used, because REDIS_PERSECOND is false",
    ]
    assert load_settings({"REDIS_AUTH": "secret"})[1] == ["REDIS_AUTH: not used, because BACKEND_TYPE is memory"]


def test_regions_are_read_in_order_and_the_home_redis_as_the_first_one() -> None:
    settings, warnings = load_settings(
        {
            "REGION": "us",
            "REGIONS": "eu, us,ap-1",
            "REDIS_URL": "redis:6379",
            "HOME_REDIS_URL": "rediss://ada:secret@home:6379/1",
            "HOME_REDIS_AUTH": "secret",
            "REGION_SYNC_SECONDS": "0.5",
        }
    )

    assert warnings == []
    assert (settings.region, settings.regions) == ("us", ("eu", "us", "ap-1"))
    assert settings.region_sync_seconds == 0.5
    assert settings.home_redis is not None
    assert settings.home_redis.url.get_secret_value() == "rediss://ada:secret@home:6379/1"
    assert settings.home_redis.auth.get_secret_value() == "secret"
    assert settings.home_redis.timeout == 10 * SECOND


@pytest.mark.parametrize("regions", ["", "eu"])
def test_one_region_has_no_home(regions: str) -> None:
    told = {"REGION": "eu", "REGIONS": regions, "REDIS_URL": "redis:6379", "HOME_REDIS_URL": "home:6379"}

    settings, warnings = load_settings(told)

    assert settings.home_redis is None
    assert warnings == ["HOME_REDIS_URL: not used, because REGIONS does not name several regions"]


def test_a_home_redis_without_redis_is_warned_of() -> None:
    told = {"REGION": "eu", "REGIONS": "eu,us", "HOME_REDIS_URL": "home:6379", "REGION_SYNC_SECONDS": "2"}

    _, warnings = load_settings(told)

    assert warnings == ["REGION_SYNC_SECONDS, HOME_REDIS_URL: not used, because BACKEND_TYPE is memory"]


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"REGIONS": "eu,us"}, 'REGIONS: "eu,us" needs REGION, the one of them that this instance is in'),
        (
            {"REGIONS": "eu,us", "REGION": "ap"},
            'REGIONS: "eu,us" does not have the region of this instance, which is REGION: "ap"',
        ),
        ({"REGIONS": "eu,us,eu", "REGION": "eu"}, 'REGIONS: "eu,us,eu" has a region twice'),
        ({"REGIONS": "eu,,us", "REGION": "eu"}, 'REGIONS: "eu,,us" is not a list of names such as eu,us,ap'),
        ({"REGIONS": "eu,u|s", "REGION": "eu"}, 'REGIONS: "eu,u|s" is not a list of names such as eu,us,ap'),
        ({"REGION_SYNC_SECONDS": "0"}, 'REGION_SYNC_SECONDS: "0" is not a number of seconds from 0.1 to 60'),
        (
            {"HOME_REDIS_URL": "home:6379", "HOME_REDIS_TYPE": "sentinel"},
            'HOME_REDIS_URL: "home:6379" is not a master\'s name and its sentinels',
        ),
    ],
)
def test_what_is_wrong_with_regions_is_told(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(environ)

    assert problem in str(error.value)


def test_a_hundred_regions_are_enough() -> None:
    names = [f"r{number}" for number in range(101)]
    settings, _ = load_settings({"REGION": "r0", "REGIONS": ",".join(names[:100])})

    assert len(settings.regions) == 100
    with pytest.raises(SettingsError, match="has more than 100 regions"):
        load_settings({"REGION": "r0", "REGIONS": ",".join(names)})


@pytest.mark.parametrize(
    ("environ", "backend"),
    [
        ({}, Backend.MEMORY),
        ({"REDIS_URL": "redis:6379"}, Backend.REDIS),
        ({"REDIS_SOCKET_TYPE": "tcp"}, Backend.REDIS),
        ({"REDIS_TYPE": "CLUSTER", "BACKEND_TYPE": ""}, Backend.REDIS),
        ({"REDIS_URL": ""}, Backend.MEMORY),
        ({"BACKEND_TYPE": "redis"}, Backend.REDIS),
        ({"BACKEND_TYPE": "MEMORY", "REDIS_URL": "redis:6379"}, Backend.MEMORY),
    ],
)
def test_counters_live_in_redis_when_one_is_named(environ: dict[str, str], backend: Backend) -> None:
    """envoyproxy/ratelimit's deployments name theirs, and mean it; without a word it is memory."""
    assert load_settings(environ)[0].backend_type is backend


def test_a_url_that_is_wrong_is_told_without_its_password() -> None:
    """It stands in logs of deployments."""
    assert problems_of({"REDIS_URL": "redis://user:hunter2@redis:port"}) == (
        'REDIS_URL: "redis://***@redis:port" is not an address such as host:6379',
    )


def test_a_url_must_fit_the_type() -> None:
    """Sentinels need the name of what they watch."""
    assert problems_of({"REDIS_TYPE": "sentinel", "REDIS_URL": "redis:6379"}) == (
        'REDIS_URL: "redis:6379" is not a master\'s name and its sentinels such as mymaster,host:26379,host:26379',
    )


def test_secrets_are_never_shown() -> None:
    """Neither in warnings nor in `repr`."""
    settings, warnings = load_settings({"REDIS_AUTH": "hunter2", "REDIS_AUHT": "hunter2"})

    assert len(warnings) == 2
    assert "hunter2" not in repr(settings) + str(settings) + "".join(warnings)


GOOD_KEY = "0123456789abcdef0123456789abcdef"


def test_the_key_of_digests_is_never_shown(tmp_path: Path) -> None:
    """Neither when it is good nor when it is wrong, wherever it comes from."""
    file = tmp_path / "key"
    file.write_text("hunter2\n")
    short = "has fewer than 32 characters; `openssl rand -hex 32` makes a good one"

    assert problems_of({"HASH_KEY": "hunter2"}) == (f"HASH_KEY: {short}",)
    assert problems_of({"HASH_KEY_FILE": str(file)}) == (f"HASH_KEY_FILE: {short}",)
    assert GOOD_KEY not in repr(load_settings({"HASH_KEY": GOOD_KEY})[0])


def test_the_key_of_digests_may_stand_in_a_file(tmp_path: Path) -> None:
    """White space around it is not part of it."""
    file = tmp_path / "key"
    file.write_text(f" {GOOD_KEY}\n")

    assert load_settings({"HASH_KEY_FILE": str(file)})[0].hash_key.get_secret_value() == GOOD_KEY
    assert load_settings({"HASH_KEY": f"{GOOD_KEY}\n", "HASH_KEY_FILE": ""})[0].hash_key.get_secret_value() == GOOD_KEY
    assert load_settings({"HASH_KEY_FILE": str(file)}, section=Section.RULES)[0].hash_key.get_secret_value() == GOOD_KEY


def test_a_file_of_the_key_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """The start ends: without the key rules would be refused later."""
    file = tmp_path / "key"
    (tmp_path / "folder").mkdir()
    missing = tmp_path / "missing"

    assert problems_of({"HASH_KEY_FILE": str(missing)}) == (
        f'HASH_KEY_FILE: "{missing}" cannot be read: No such file or directory',
    )
    (problem,) = problems_of({"HASH_KEY_FILE": str(tmp_path / "folder")})
    assert "it is a folder" in problem
    for content, wrong in (
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff" * 32, "cannot be read: it is not UTF-8"),
        (b"k" * 4097, "is larger than 4096 bytes"),
        (b"k" + "ü".encode() * 2048, "is larger than 4096 bytes"),
        ("ü".encode() * 4096, "is larger than 4096 bytes"),
    ):
        file.write_bytes(content)
        assert problems_of({"HASH_KEY_FILE": str(file)}) == (f'HASH_KEY_FILE: "{file}" {wrong}',)
    assert problems_of({"HASH_KEY_FILE": str(file), "HASH_KEY": GOOD_KEY}) == (
        "HASH_KEY_FILE: contradicts HASH_KEY: remove one of them",
    )


def test_the_token_of_the_operator_is_never_shown_and_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{GOOD_KEY}\n")
    settings, _ = load_settings({"ADMIN_TOKEN_FILE": str(file), "ADMIN_READ_NEEDS_TOKEN": "true"})

    assert settings.admin_token.get_secret_value() == GOOD_KEY
    assert GOOD_KEY not in repr(settings) + str(settings)
    assert problems_of({"ADMIN_TOKEN": "hunter2"}) == (
        "ADMIN_TOKEN: has fewer than 32 characters; `openssl rand -hex 32` makes a good one",
    )
    for wrong in ("k" * 32 + " k", "k" * 32 + "\u00e4", "k" * 32 + "\x7fk"):
        assert problems_of({"ADMIN_TOKEN": wrong}) == (
            "ADMIN_TOKEN: has characters that are not visible ASCII; `openssl rand -hex 32` makes a good one",
        )
    assert problems_of({"ADMIN_TOKEN_FILE": str(file), "ADMIN_TOKEN": GOOD_KEY}) == (
        "ADMIN_TOKEN_FILE: contradicts ADMIN_TOKEN: remove one of them",
    )
    assert problems_of({"ADMIN_READ_NEEDS_TOKEN": "true"}) == (
        'ADMIN_READ_NEEDS_TOKEN: "true" needs ADMIN_TOKEN or ADMIN_TOKEN_FILE',
    )


def test_a_certificate_of_the_operators_port_needs_its_key() -> None:
    for name, other in (
        ("ADMIN_TLS_CERT", "ADMIN_TLS_KEY"),
        ("ADMIN_TLS_KEY", "ADMIN_TLS_CERT"),
        ("ADMIN_CLIENT_TLS_CACERT", "ADMIN_TLS_CERT"),
    ):
        assert problems_of({name: "/a"}) == (f'{name}: "/a" needs {other} too',)
        assert problems_of({name: "/a", other: ""}) == (f'{name}: "/a" needs {other} too',)
    assert load_settings({"ADMIN_TLS_CERT": "", "ADMIN_TLS_KEY": ""})[0].admin_tls_cert == ""


# Go's syntax


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_true_in_go(text: str) -> None:
    """strconv.ParseBool."""
    assert read_bool(text) is True


@pytest.mark.parametrize("text", ["0", "f", "F", "false", "FALSE", "False"])
def test_false_in_go(text: str) -> None:
    """strconv.ParseBool."""
    assert read_bool(text) is False


@pytest.mark.parametrize("text", ["", "yes", "no", "on", "off", "tRUE", " true", "2", "\u0661"])
def test_no_boolean_in_go(text: str) -> None:
    """strconv.ParseBool refuses what other programs take."""
    with pytest.raises(ValueError, match="boolean"):
        read_bool(text)


@given(
    st.dictionaries(st.sampled_from(sorted({*ENVOYPROXY, *(each.variable for each in SETTINGS)})), st.text(max_size=8))
)
def test_any_environment_gives_settings_or_problems_with_names(environ: dict[str, str]) -> None:
    """Each problem begins with the name of a variable that was set."""
    settings: Settings | None = None
    problems: tuple[str, ...] = ()
    try:
        settings, _ = load_settings(environ)
    except SettingsError as error:
        problems = error.problems

    assert (settings is None) == bool(problems)
    assert all(problem.partition(":")[0] in environ for problem in problems)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8081", 8081),
        ("+1", 1),
        ("-12", -12),
        ("0", 0),
        ("0x1F91", 8081),
        ("0b101", 5),
        ("0o17", 15),
        ("017", 15),
        ("00", 0),
        ("1_000", 1000),
        ("0x_ff", 255),
    ],
)
def test_integers_in_go(text: str, value: int) -> None:
    """strconv.ParseInt with base 0."""
    assert read_integer(text) == value


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1.0", "08", "0x", "_1", "1_", "1__0", "ff", "1e3", "\u0661", "9" * 5000]
)
def test_no_integer_in_go(text: str) -> None:
    """strconv.ParseInt refuses spaces, and 8 in an octal."""
    with pytest.raises(ValueError, match="whole number"):
        read_integer(text)


def test_lists_and_maps() -> None:
    """Commas between, a colon inside; nothing at all is empty."""
    assert read_list("a,b") == ("a", "b")
    assert read_list(" ") == ()
    assert read_map("k:v,k2:") == (("k", "v"), ("k2", ""))
    assert read_map("") == ()
    assert read_labels("1st.zone:a b") == (("_1st_zone", "a b"),)
    for text in ("k", "k:v:w", ":v", "k:v,"):
        with pytest.raises(ValueError, match="is not a map"):
            read_map(text)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (EVERYWHERE, (EVERYWHERE,)),
        ("::", ("::",)),
        ("[::1]", ("::1",)),
        ("127.0.0.1, ::1,localhost", ("127.0.0.1", "::1", "localhost")),
        ("::1,[0:0::1]", ("::1",)),
        ("fe80::1%eth0", ("fe80::1%eth0",)),
        ("rate-limit.default.svc", ("rate-limit.default.svc",)),
        ("", ("::",)),
    ],
)
def test_hosts(text: str, hosts: tuple[str, ...]) -> None:
    """Several, IPv6 with or without brackets, each once."""
    assert read_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["[::1", "::1]", "[localhost]", "256.0.0.1", "1.2.3", "a b", "localhost:80", "-a", "[]"]
)
def test_no_host(text: str) -> None:
    """A port, a broken bracket, an address out of range."""
    with pytest.raises(ValueError, match="is not an address or a name"):
        read_hosts(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9090", Tcp("::", 9090)),
        ("127.0.0.1:9090", Tcp("127.0.0.1", 9090)),
        ("[::1]:9090", Tcp("::1", 9090)),
        ("localhost:0", Tcp("localhost", 0)),
    ],
)
def test_addresses(text: str, address: Tcp) -> None:
    """As net.Listen has them."""
    assert read_address(text) == address


@pytest.mark.parametrize("text", ["", ":", "9090", "::1:9090", ":http", "a:65536", "[::1]"])
def test_no_address(text: str) -> None:
    """IPv6 needs its brackets here, and a port is a number."""
    with pytest.raises(ValueError, match="is not an address to listen on"):
        read_address(text)


# What people read


def test_the_common_settings_are_flags() -> None:
    """Their names on the command line, and the variable behind each."""
    names = {setting.flag: setting.variable for setting in FLAGS}

    assert names["--grpc-port"] == "GRPC_PORT"
    assert names["--rules"] == "RULES_PATH"
    assert names["--backend"] == "BACKEND_TYPE"
    assert names["--drain-seconds"] == "DRAIN_SECONDS"
    assert len(names) == len(FLAGS)
    assert {setting.help for setting in FLAGS} >= {"gRPC: where Envoy asks. [GRPC_PORT, 8081 by default]"}


def test_every_setting_says_what_it_is_in_one_sentence() -> None:
    """The table has no empty cells and no essays."""
    for setting in SETTINGS:
        assert setting.meaning.endswith("."), setting.variable
        assert "|" not in setting.meaning, setting.variable
        assert len(setting.meaning) <= 110, setting.variable


def test_the_tables_in_the_settings_document_are_the_generated_ones() -> None:
    """If this fails: python docs/generate.py."""
    generate: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    settings_text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")

    assert generate["settings_table"]() in settings_text
    assert generate["filled"](settings_text, generate["settings_table"]()) == settings_text
    assert (ROOT / generate["NAMES"]).read_text(encoding="utf-8") == generate["names"]()
