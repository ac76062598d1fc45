"""What an operator may choose about a gRPC transport. Times are microseconds; 0 is for ever."""

from dataclasses import dataclass

from ratelimit_service.clock import HOUR, SECOND


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
    """The knobs of a transport; the defaults are upstream's, which are grpc-go's."""

    max_message_size: int = 4 * 1024 * 1024
    """Bytes, in each direction; a larger message ends its call with RESOURCE_EXHAUSTED."""
    keepalive_time: int = 2 * HOUR
    keepalive_timeout: int = 20 * SECOND
    max_connection_age: int = 24 * HOUR
    max_connection_age_grace: int = HOUR
    tls: Tls | None = None
