"""The client of the operator's port, for every command that asks a running service."""

import getpass
import http.client
import json
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import click

from ratelimit_service.commands.probe import GRPC, HTTP, connect, connection_error, protocol_of, speaks_tls
from ratelimit_service.commands.sources import read_settings
from ratelimit_service.commands.target import check_host
from ratelimit_service.errors import StoreError, UnreachableError
from ratelimit_service.rules.problems import printable
from ratelimit_service.rules.rule import Entries
from ratelimit_service.settings import Section, Settings
from ratelimit_service.system.address import Tcp, from_here
from ratelimit_service.system.token_file import find_token

_PORT: Final = 6070
DEBUG_PORT_HINT: Final = f"the debug port is {_PORT} unless DEBUG_PORT says otherwise"
_UNIX: Final = "unix:"
_TIMEOUT_SECONDS: Final = 15.0
"""Longer than the service waits for its store."""
_MAX_BYTES: Final = 64 << 20
"""The most bytes of a response."""
NOT_THERE: Final = {http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED}
_PORTS: Final = {"http": http.client.HTTP_PORT, "https": http.client.HTTPS_PORT}
"""The default ports of URLs."""

EXIT_UNREACHABLE: Final = 3
"""Exit code of a command whose service gives no answer."""


_SPEAKS_TLS: Final = "it speaks TLS: write https:// before it"
HOW_TO_SEND: Final = "set ADMIN_TOKEN as for the service, or name a file with it by --token-file"

_Command = TypeVar("_Command", bound=Callable[..., Any])


class AccessFiles(NamedTuple):
    """The files that `access_options` name."""

    token: Path | None
    ca: Path | None
    """Of the service's certificate; without one, the system's."""
    cert: Path | None
    """Of the client."""
    key: Path | None


class PortAccess(NamedTuple):
    """The credentials for a service, and how it is trusted."""

    token: str
    """Empty: that of a service that this user has started on this machine, if it is one."""
    files: AccessFiles


class PortReply(NamedTuple):
    """A response of the operator's port."""

    status: int
    text: str
    etag: str = ""

    @property
    def why(self) -> str:
        """What it says of a failure: the detail of a problem, or all of it."""
        with suppress(ValueError, LookupError, TypeError):
            return str(json.loads(self.text)["detail"])
        return self.text.strip()

    def json(self) -> dict[str, Any] | None:
        """The object in the response; None where it is anything else."""
        try:
            found = json.loads(self.text) if self.status == http.client.OK else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


class OperatorPort:
    """The operator's port at a URL, HOST, HOST:PORT or unix:PATH. The messages of its errors do not name the URL."""

    def __init__(self, url: str, access: PortAccess) -> None:
        self.url = url if "://" in url or url.startswith(_UNIX) else f"http://{url}"
        self._given = url
        self._access = access

    def ask(
        self, verb: str, path: str, body: str | bytes | None = None, more: Mapping[str, str] | None = None
    ) -> PortReply:
        """The response to one request, with `more` headers.

        Raises UnreachableError, with one line that says why, if there is none; StoreError if the token is missing or
        wrong.
        """
        try:
            connection, target = self._connection()
        except (ValueError, http.client.InvalidURL) as error:
            raise UnreachableError(f"not a URL such as http://localhost:{_PORT}") from error
        try:
            headers = {} if body is None else {"Content-Type": "application/json"}
            headers |= {"Accept": "application/json"} | dict(more or {}) | self._token(connection)
            connection.request(verb, path, body, headers)
            response = connection.getresponse()
            text = response.read(_MAX_BYTES + 1)
        except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
            raise UnreachableError(_not_http(target)) from error
        except OSError as error:
            if _is_no_tls(error) and _speaks_http(target):
                raise UnreachableError(
                    f"it speaks HTTP without TLS: write http:// before it; {DEBUG_PORT_HINT}"
                ) from error
            if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
                raise UnreachableError(self._client_certificate(error.reason)) from error
            raise UnreachableError(connection_error(error, target, _TIMEOUT_SECONDS)) from error
        finally:
            connection.close()
        if len(text) > _MAX_BYTES:
            raise UnreachableError(f"its response is larger than {_MAX_BYTES >> 20} MiB")
        reply = PortReply(response.status, text.decode(errors="replace"), response.headers.get("ETag", ""))
        if reply.status == http.client.BAD_REQUEST and "speaks gRPC" in reply.text:  # the service's own HTTP/2
            raise UnreachableError(f"it speaks gRPC, not HTTP; {DEBUG_PORT_HINT}")
        if reply.status == http.client.BAD_REQUEST and "speaks HTTPS" in reply.text:
            raise UnreachableError(f"{_SPEAKS_TLS}; {DEBUG_PORT_HINT}")
        if reply.status in NOT_THERE and "/json" in reply.text and "/rlconfig" not in reply.text:
            raise UnreachableError(f"that is the HTTP port; {DEBUG_PORT_HINT}")
        if reply.status == http.client.UNAUTHORIZED:
            raise StoreError(f"{printable(reply.why)}; {HOW_TO_SEND}")
        if reply.status == http.client.TOO_MANY_REQUESTS:
            raise StoreError(printable(reply.why))
        return reply

    def status(self) -> dict[str, Any]:
        """The JSON of `/status`. Raises StoreError as `ask` does, or if the response is not that."""
        return self._json("/status", {"version", "serving", "troubles", "rules"})

    def status_now(self) -> dict[str, Any]:
        """The JSON of `/status/now`, as `status`."""
        return self._json("/status/now", {"version", "edition", "columns", "counts", "hot"})

    def status_rules(self) -> dict[str, Any]:
        """The JSON of `/status/rules`, as `status`."""
        return self._json("/status/rules", {"edition", "rules"})

    def _json(self, path: str, fields: set[str]) -> dict[str, Any]:
        reply = self.ask("GET", path)
        found = reply.json()
        if found is not None and fields <= found.keys():
            return found
        if reply.status == http.client.FORBIDDEN:
            raise StoreError(printable(reply.text.strip()))
        raise StoreError(
            f"it answers {reply.status} to GET {path}: is that the debug port of this service? {DEBUG_PORT_HINT}"
        )

    def _connection(self) -> tuple[http.client.HTTPConnection, str]:
        """A connection that is not open yet, and its HOST:PORT. ValueError or InvalidURL if the URL is none."""
        if self.url.startswith(_UNIX):
            return _UnixConnection(self.url), self.url
        parts = urlsplit(self.url)
        host, default_port = parts.hostname, _PORTS.get(parts.scheme)
        if not host or default_port is None:
            raise ValueError("it has no host, or another scheme")
        check_host(host)
        port = parts.port or (default_port if self.url == self._given else _PORT)
        target = f"{f'[{host}]' if ':' in host else host}:{port}"
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS), target
        _, ca, cert, key = self._access.files
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:  # also ssl.SSLError
            raise StoreError(f"--ca: {ca} is not a certificate in PEM that can be read") from error
        if cert is not None:
            try:
                context.load_cert_chain(cert, key)
            except OSError as error:
                raise StoreError(f"--cert: {cert} and its --key cannot be used: {error.strerror or error}") from error
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_SECONDS, context=context), target

    def _token(self, connection: http.client.HTTPConnection) -> dict[str, str]:
        """The header with the token."""
        token = self._access.token
        if not token and not isinstance(connection, _UnixConnection):
            token = find_token(connection.host, connection.port)
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _client_certificate(self, alert: str) -> str:
        """The reason why the service ended TLS by this alert: as a rule it asks for client certificates."""
        reason = alert.lower().replace("_", " ")
        if self._access.files.cert is None:
            return f"it ends the connection ({reason}); if it asks for a client certificate, --cert names one"
        return f"it ends the connection ({reason}); --cert must be signed by its ADMIN_CLIENT_TLS_CACERT"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over the unix socket that unix:PATH names."""

    def __init__(self, target: str) -> None:
        super().__init__("localhost")
        self._target = target

    def connect(self) -> None:
        self.sock = connect(self._target, _TIMEOUT_SECONDS)


def entries_as_json(domain: str, entries: Entries) -> dict[str, Any]:
    """The body of a request that changes what these entries have: bans, counters."""
    return {"domain": domain, "entries": [{"key": key, "value": value} for key, value in entries], "who": who()}


_HELP_OF_FILE: Final = (
    "File with the token of the service.  [env: ADMIN_TOKEN_FILE; or ADMIN_TOKEN, the token itself]  "
    "[default: that of a service which this user runs on this machine]"
)


def access_options(command: _Command) -> _Command:
    """The options `--token-file`, `--ca`, `--cert` and `--key`; the command takes them as `access_files`."""

    @wraps(command)
    def with_files(
        *, token_file: Path | None, ca: Path | None, cert: Path | None, key: Path | None, **options: Any
    ) -> Any:
        if key is not None and cert is None:
            raise click.UsageError("--key needs --cert, the certificate that it belongs to")
        return command(access_files=AccessFiles(token_file, ca, cert, key), **options)

    made: Any = with_files
    for name, text in (
        ("--key", "File with the private key of that certificate, if it is not in the same file."),
        ("--cert", "File with a client certificate, for https://, where the service asks for one."),
        ("--ca", "File with the CA of the service's certificate, for https://.  [default: the system's]"),
        ("--token-file", _HELP_OF_FILE),
    ):
        made = click.option(name, type=click.Path(path_type=Path, dir_okay=False), help=text)(made)
    return cast("_Command", made)


def at_option(text: str, *older: str, multiple: bool = False) -> Callable[[_Command], _Command]:
    """The option `--at`, with names that it had in older versions: the operator's port of a service."""
    text = f"{text} HOST, a URL or unix:PATH will do, too."
    return click.option("--at", *older, "at", metavar="HOST:PORT", multiple=multiple, help=text)


def read_access(files: AccessFiles, env_file: Path | None) -> PortAccess:
    """The access by these options, and by the settings of the operator's port. SettingsError if they are wrong."""
    # A file that is named comes before a token of the environment.
    flags = {} if files.token is None else {"admin_token_file": files.token, "admin_token": ""}
    settings, _ = read_settings(flags, env_file, Section.OPERATOR)
    return PortAccess(settings.admin_token.get_secret_value(), files)


def default_url(settings: Settings) -> str:
    """The operator's port of a service with these settings on this machine."""
    if settings.debug_uds:
        return f"{_UNIX}{settings.debug_uds}"
    scheme = "https" if settings.admin_tls_cert else "http"
    return f"{scheme}://{from_here(Tcp(settings.debug_host[0], settings.debug_port))}"


def with_rules(settings: Settings, access: PortAccess) -> Settings:
    """The settings; if they name no rules, and there are none by default, with those of a service on this machine.

    After `make run`, or `serve --rules`, no variable names them.
    """
    if settings.rules_path != Settings().rules_path or settings.rules_path.exists():
        return settings
    try:
        status = OperatorPort(default_url(settings), access).status()
    except StoreError:
        return settings
    # A relative path is one of that process, whose folder may be another.
    path = Path(f"/proc/{status['process']['pid']}/cwd", status["reload"]["path"]).resolve()
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    there = os.path.exists(path)  # noqa: PTH110 - unlike Path's, False where it may not be looked at
    return settings.model_copy(update={"rules_path": path}) if there else settings


def who() -> str:
    """`ada@laptop`, for the log of a service that is changed."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _is_no_tls(error: OSError) -> bool:
    """Whether the bytes of the server, which are not an alert, are not TLS."""
    certificate = isinstance(error, ssl.SSLCertVerificationError)
    return isinstance(error, ssl.SSLError) and not certificate and "ALERT" not in (error.reason or "")


def _speaks_http(target: str) -> bool:
    try:
        return protocol_of(target, _TIMEOUT_SECONDS) == HTTP
    except OSError:
        return False


def _not_http(target: str) -> str:
    try:
        if protocol_of(target, _TIMEOUT_SECONDS) == GRPC:
            return f"it speaks gRPC, not HTTP; {DEBUG_PORT_HINT}"
        if speaks_tls(target, _TIMEOUT_SECONDS):
            return f"{_SPEAKS_TLS}; {DEBUG_PORT_HINT}"
    except OSError as error:
        return connection_error(error, target, _TIMEOUT_SECONDS)
    return f"it does not speak HTTP; {DEBUG_PORT_HINT}"
