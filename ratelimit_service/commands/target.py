"""A gRPC port on the command line: HOST:PORT or unix:PATH, and the files for TLS."""

import ssl
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import click

from ratelimit_service.system.address import Address, Tcp, Unix

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Trust(NamedTuple):
    """The files for TLS: the CA to trust, and the client's certificate and key."""

    ca: Path | None
    cert: Path | None
    key: Path | None

    def context(self) -> ssl.SSLContext:
        """The SSL context for a client of gRPC. OSError, such as ssl.SSLError, if a file cannot be used."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        context.set_alpn_protocols(["h2"])
        return context


def tls_options(command: _Command) -> _Command:
    """The options `--tls`, `--ca`, `--cert` and `--key`; the command takes them as `trust`, None without TLS."""

    @wraps(command)
    def with_trust(*, tls: bool, ca: Path | None, cert: Path | None, key: Path | None, **options: Any) -> Any:
        return command(trust=Trust(ca, cert, key) if tls or ca or cert else None, **options)

    made: Any = with_trust
    file = click.Path(path_type=Path, exists=True)
    for option in (
        click.option("--key", type=file, help="Private key of the client certificate."),
        click.option("--cert", type=file, help="Client certificate, for mTLS."),
        click.option("--ca", type=file, help="CA of the server's certificate; implies --tls."),
        click.option("--tls", is_flag=True, help="Use TLS."),
    ):
        made = option(made)
    return cast("_Command", made)


def check_target(target: str) -> None:
    """Raise a usage error if this is not the address of a gRPC port."""
    scheme, slashes, _ = target.partition("://")
    if slashes and scheme != "unix":
        raise click.UsageError(f"{target} is a URL; write HOST:PORT of the gRPC port, such as localhost:8081")
    if ":" not in target:
        raise click.UsageError(f"{target} has no port; the service's own is {target}:8081")
    if target.startswith("unix:"):
        return
    host, _, port = target.rpartition(":")
    if not port.isdecimal():
        raise click.UsageError(f"{target} does not end with the number of a port, such as 8081")
    try:
        check_host(host)
    except ValueError as error:
        raise click.UsageError(f"{host} is not a valid host name") from error


def check_host(host: str) -> None:
    """Raise ValueError if this is not the name of a host: to connect to it would raise that, not an OSError."""
    host.encode("idna")


def address_of(target: str) -> Address:
    """The address that the text of a target names."""
    if target.startswith("unix:"):
        return Unix(target.removeprefix("unix:").replace("///", "/", 1))
    host, _, port = target.rpartition(":")
    return Tcp(host.strip("[]"), int(port))


def server_name(address: Address) -> str:
    """The name that the server's certificate must have."""
    return "localhost" if isinstance(address, Unix) else address.host
