"""The options of an operator for a gRPC transport. Times are microseconds; 0 means no limit."""

from dataclasses import dataclass, fields
from typing import Self

from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.settings import Settings
from ratelimit_service.system.clock import HOUR, SECOND


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. They are read again when they change; an empty name means there is none."""

    cert: str
    key: str
    client_ca: str = ""
    """When there is one, a client must show a certificate that it signed."""
    client_san: str = ""
    """The name that certificate must bear: DNS, IP address or URI."""


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """The options of a transport: `keepalive_time` is the setting `grpc_keepalive_time`, and so on.

    Most defaults are those of envoyproxy/ratelimit, which are grpc-go's.
    """

    max_message_size: int = 128 * 1024
    """Bytes of a message from a client, uncompressed; a larger one ends its call with RESOURCE_EXHAUSTED."""
    max_response_size: int = 4 * 1024 * 1024
    """Bytes of a message to a client: the default maximum of gRPC's clients. There is no setting for it."""
    keepalive_time: int = 2 * HOUR
    keepalive_timeout: int = 20 * SECOND
    max_connection_age: int = 24 * HOUR
    max_connection_age_grace: int = HOUR
    max_connection_idle: int = HOUR
    """A connection without calls for this time is closed by GOAWAY."""
    max_connections: int = 10_000
    """More connections are refused, so that the open ones keep their files and memory; 0 means no limit."""
    max_concurrent_streams: int = 1_000
    """Calls of one connection at once: what one client can keep waiting, and what one read can bring."""
    max_header_list_size: int = 16 * 1024
    """Bytes of a call's headers; larger ones end it with RESOURCE_EXHAUSTED."""
    max_connection_memory: int = 4 * 1024 * 1024
    """Bytes that one connection may hold: responses the client has not read, requests that are not complete."""
    max_memory: int = 256 * 1024 * 1024
    """Bytes that all connections may hold together; above it, those that hold most are ended."""
    preface_timeout: int = 10 * SECOND
    """How long a client may take to begin, TLS included; with http2 also to finish a frame or headers it began."""
    tls: Tls | None = None
    traced_path: str | None = None
    """The method that is called with the trace of its caller."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The options that the settings ask for."""
        given = {name: value for name, value in settings if name.startswith("grpc_")}
        same = {field.name: given[f"grpc_{field.name}"] for field in fields(cls) if f"grpc_{field.name}" in given}
        tls = Tls(
            settings.grpc_server_tls_cert,
            settings.grpc_server_tls_key,
            settings.grpc_client_tls_cacert,
            settings.grpc_client_tls_san,
        )
        traced_path = ShouldRateLimit.path if settings.tracing_enabled else None
        return cls(**same, tls=tls if settings.grpc_server_use_tls else None, traced_path=traced_path)
