"""What an operator may choose about a gRPC transport. Times are microseconds; 0 is for ever."""

from dataclasses import dataclass

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
    """The knobs of a transport; most defaults are upstream's, which are grpc-go's."""

    max_message_size: int = 128 * 1024
    """Bytes of a message from a client, unpacked too; a larger one ends its call with RESOURCE_EXHAUSTED."""
    max_answer_size: int = 4 * 1024 * 1024
    """Bytes of a message to a client: what gRPC's clients take if they are not told otherwise."""
    keepalive_time: int = 2 * HOUR
    keepalive_timeout: int = 20 * SECOND
    max_connection_age: int = 24 * HOUR
    max_connection_age_grace: int = HOUR
    max_connection_idle: int = HOUR
    """A connection without calls for so long is asked to close."""
    max_connections: int = 10_000
    """More are refused, so that those who are here keep files and memory; 0 is no limit."""
    max_concurrent_streams: int = 1_000
    """Calls of one connection at once: what one client can keep waiting, and what one read can bring."""
    max_header_list_size: int = 16 * 1024
    """Bytes of a call's headers; larger ones end it with RESOURCE_EXHAUSTED."""
    max_connection_memory: int = 4 * 1024 * 1024
    """Bytes of unread answers, and of unfinished questions, of one connection."""
    max_memory: int = 256 * 1024 * 1024
    """Bytes that all connections hold together; beyond it those that hold most are ended."""
    preface_timeout: int = 10 * SECOND
    """How long a client may take to begin, TLS included; with http2 also to finish a frame or headers it began."""
    tls: Tls | None = None
