"""Addresses to listen on: of a TCP port, or of a unix socket."""

from typing import Final, NamedTuple

ANY_HOST: Final = "::"
"""Every address of the machine, IPv4 too."""

_EVERY_HOST: Final = frozenset({ANY_HOST, "0.0.0.0", ""})  # noqa: S104 - only compared with


class Tcp(NamedTuple):
    """A TCP address; port 0 takes a free one. An IPv6 host stands without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Unix(NamedTuple):
    """A unix socket."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = Tcp | Unix


def from_here(address: Address) -> str:
    """The address that a client on this machine connects to."""
    if isinstance(address, Tcp) and address.host in _EVERY_HOST:
        return f"localhost:{address.port}"
    return str(address)
