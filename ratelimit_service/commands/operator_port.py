"""The client of the operator's port, for every command that asks a running service."""

import http.client
import json
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from ratelimit_service.commands.probe import GRPC, connection_error, protocol_of, speaks_tls
from ratelimit_service.errors import StoreError
from ratelimit_service.rules.report import printable
from ratelimit_service.settings import Settings
from ratelimit_service.system.address import Tcp, from_here

_PORT: Final = 6070
DEBUG_PORT_HINT: Final = f"the debug port is {_PORT} unless DEBUG_PORT says otherwise"
_TIMEOUT_SECONDS: Final = 15.0
"""Longer than the service waits for its store."""
_MAX_BYTES: Final = 64 << 20
"""Of a response."""
_NOT_THERE: Final = {http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED}
_KINDS: Final = {
    "http": (http.client.HTTPConnection, http.client.HTTP_PORT),
    "https": (http.client.HTTPSConnection, http.client.HTTPS_PORT),
}

EXIT_UNREACHABLE: Final = 3
"""Exit code of a command whose service gives no answer."""


class PortReply(NamedTuple):
    """A response of the operator's port."""

    status: int
    text: str

    def json(self) -> dict[str, Any] | None:
        """The object in the response; None where it is anything else."""
        try:
            found = json.loads(self.text) if self.status == http.client.OK else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


class OperatorPort:
    """The operator's port at a URL, or at HOST or HOST:PORT. The messages of its errors do not name the URL."""

    def __init__(self, url: str) -> None:
        self.url = url if "://" in url else f"http://{url}"
        self._given = url

    def ask(self, verb: str, path: str, body: str | None = None) -> PortReply:
        """The response to one request. Raises StoreError, with one line that says why, if there is none."""
        connection, target = self._connection()
        try:
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request(verb, path, body, {"Accept": "application/json"} | headers)
            response = connection.getresponse()
            text = response.read(_MAX_BYTES + 1)
        except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
            raise StoreError(_not_http(target)) from error
        except OSError as error:
            raise StoreError(connection_error(error, target, _TIMEOUT_SECONDS)) from error
        finally:
            connection.close()
        if len(text) > _MAX_BYTES:
            raise StoreError(f"its response is larger than {_MAX_BYTES >> 20} MiB")
        reply = PortReply(response.status, text.decode(errors="replace"))
        if reply.status == http.client.BAD_REQUEST and "speaks gRPC" in reply.text:  # the service's own HTTP/2
            raise StoreError(f"it speaks gRPC, not HTTP; {DEBUG_PORT_HINT}")
        if reply.status in _NOT_THERE and "/json" in reply.text and "/rlconfig" not in reply.text:
            raise StoreError(f"that is the HTTP port; {DEBUG_PORT_HINT}")
        return reply

    def status(self) -> dict[str, Any]:
        """The JSON of `/status`. Raises StoreError as `ask` does, or if the response is not that."""
        reply = self.ask("GET", "/status")
        found = reply.json()
        if found is not None and {"version", "serving", "troubles", "rules"} <= found.keys():
            return found
        if reply.status in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
            raise StoreError(printable(reply.text.strip()))
        raise StoreError(
            f"it answers {reply.status} to GET /status: is that the debug port of this service? {DEBUG_PORT_HINT}"
        )

    def _connection(self) -> tuple[http.client.HTTPConnection, str]:
        """A connection that is not open yet, and its HOST:PORT."""
        parts = urlsplit(self.url)
        kind, default_port = _KINDS.get(parts.scheme, (None, 0))
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or kind is None:
            raise StoreError(f"that is no URL such as http://localhost:{_PORT}")
        port = port or (default_port if self.url == self._given else _PORT)
        return kind(host, port, timeout=_TIMEOUT_SECONDS), f"{f'[{host}]' if ':' in host else host}:{port}"


def default_url(settings: Settings) -> str:
    """The operator's port of a service with these settings on this machine."""
    return f"http://{from_here(Tcp(settings.debug_host[0], settings.debug_port))}"


def _not_http(target: str) -> str:
    try:
        if protocol_of(target, _TIMEOUT_SECONDS) == GRPC:
            return f"it speaks gRPC, not HTTP; {DEBUG_PORT_HINT}"
        if speaks_tls(target, _TIMEOUT_SECONDS):
            return f"it speaks TLS: write https:// before it; {DEBUG_PORT_HINT}"
    except OSError as error:
        return connection_error(error, target, _TIMEOUT_SECONDS)
    return f"it does not speak HTTP; {DEBUG_PORT_HINT}"
