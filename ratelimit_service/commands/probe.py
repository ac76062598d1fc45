"""Finds out why a gRPC target does not respond: a probe of the port shows which protocol it speaks.

The error messages of grpcio's C++ core say neither that nor what to do.
"""

import socket
import ssl
from typing import Final

from ratelimit_service.commands.target import Trust, address_of, server_name
from ratelimit_service.system.address import Tcp

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The preface of a client (RFC 9113, 3.4) with an empty SETTINGS frame. A server's first frame is SETTINGS, too."""
_SETTINGS: Final = 4

_GRPC_PORT_HINT: Final = "gRPC is on port 8081 unless GRPC_PORT says otherwise"


def why_no_answer(target: str, trust: Trust | None, seconds: float) -> str:
    """One sentence; empty when the target speaks gRPC, with TLS if `trust` is given, else without TLS."""
    try:
        return _probe_plain(target, seconds) if trust is None else _probe_tls(target, trust, seconds)
    except OSError as error:
        return connection_error(error, target, seconds)


def connection_error(error: OSError, target: str, seconds: float) -> str:
    """The reason why the connection failed."""
    match error:
        case socket.gaierror():
            return f"the name {target.rpartition(':')[0]} is not known"
        case ConnectionRefusedError() | FileNotFoundError():
            return "nothing listens there"
        case TimeoutError():
            return f"nothing answers there within {seconds:g} s"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted: {error.verify_message}; --ca names the file of its CA"
    return f"it cannot be reached: {error.strerror or error}"


def _probe_plain(target: str, seconds: float) -> str:
    protocol = protocol_of(target, seconds)
    if protocol == GRPC:
        return ""
    if protocol == HTTP:
        return f"it speaks HTTP, not gRPC; {_GRPC_PORT_HINT}"
    if speaks_tls(target, seconds):
        return "it speaks TLS: add --tls, or --ca with the file of its CA"
    return f"it does not speak gRPC; {_GRPC_PORT_HINT}"


def _probe_tls(target: str, trust: Trust, seconds: float) -> str:
    try:
        context, name = trust.context(), server_name(address_of(target))
        with connect(target, seconds) as plain, context.wrap_socket(plain, server_hostname=name) as connection:
            if connection.selected_alpn_protocol() != "h2":
                return f"it speaks TLS, but not gRPC in it; {_GRPC_PORT_HINT}"
            # With TLS 1.3 a server that requires a client certificate sends its alert only now, or just closes.
            try:
                connection.sendall(_PREFACE)
                answered = connection.recv(1)
            except (BrokenPipeError, ConnectionResetError):
                answered = b""
            return "" if answered else _certificate(trust, "it ends the connection")
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted: {error.verify_message}; --ca names the file of its CA"
    except ssl.SSLError as error:
        reason = (error.reason or "").lower().replace("_", " ")
        if "alert" in reason:
            return _certificate(trust, f"it refuses the handshake ({reason})")
        protocol = protocol_of(target, seconds)
        if protocol == GRPC:
            return "it speaks gRPC without TLS: leave --tls, --ca, --cert and --key out"
        if protocol == HTTP:
            return f"it speaks HTTP without TLS, not gRPC; {_GRPC_PORT_HINT}"
        return f"TLS fails: {reason or error}"


def _certificate(trust: Trust, what: str) -> str:
    if trust.cert is None:
        return f"{what}: it may want a certificate of the caller, --cert and --key"
    return f"{what}: it may not accept the certificate of the caller in {trust.cert}"


GRPC, HTTP, OTHER = "grpc", "http", "other"
"""The protocols of a port without TLS."""


def protocol_of(target: str, seconds: float) -> str:
    """The protocol of a server by its first bytes: `GRPC`, `HTTP` or `OTHER`."""
    with connect(target, seconds) as connection:
        try:
            connection.sendall(_PREFACE)
            received = connection.recv(64)
        except ConnectionError:
            return OTHER
    if received.startswith(b"HTTP/1"):
        return HTTP
    return GRPC if received[3:4] == bytes((_SETTINGS,)) else OTHER


def speaks_tls(target: str, seconds: float) -> bool:
    """Whether a TLS handshake succeeds, with any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # no data is sent on it
    try:
        with connect(target, seconds) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "certificate required" in str(error).lower().replace("_", " ")
    except OSError:
        return False


def connect(target: str, seconds: float) -> socket.socket:
    """A connection to HOST:PORT or unix:PATH; OSError if there is none within that time."""
    address = address_of(target)
    if isinstance(address, Tcp):
        return socket.create_connection(address, seconds)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        connection.connect(address.path)
    except BaseException:
        connection.close()
        raise
    return connection
