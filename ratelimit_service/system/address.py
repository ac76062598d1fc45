"""Where to listen, as settings say it and every port understands it."""

import os
import socket
from typing import Final, NamedTuple

from ratelimit_service.errors import ListenError

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
    """What a client on this machine connects to."""
    if isinstance(address, Tcp) and address.host in _EVERY_HOST:
        return f"localhost:{address.port}"
    return str(address)


def cannot_listen(address: Address, error: OSError | UnicodeError) -> ListenError:
    """Says in one line that an address cannot be had, and why."""
    reason = str(error)  # a name that IDNA cannot write, or a path that is too long for a socket
    if isinstance(error, OSError) and error.strerror is not None:
        # Python's text repeats the address, the system's does not; but getaddrinfo's numbers are not the system's.
        of_system = error.errno is not None and not isinstance(error, socket.gaierror)
        reason = os.strerror(error.errno) if of_system and error.errno else error.strerror
        reason = reason[:1].lower() + reason[1:]
    return ListenError(f"cannot listen on {address}: {reason}", address)
