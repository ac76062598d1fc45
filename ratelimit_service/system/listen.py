"""Sockets to listen on, and whether an address can be had: grpc says that it failed, but not why."""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ratelimit_service.errors import ListenError, StartError
from ratelimit_service.system.address import ANY_HOST, Address, Tcp, Unix

BACKLOG: Final = 1024
"""Connections of a socket that wait in the kernel until they are accepted."""

_PROBE_SECONDS: Final = 1.0
_ANY_IPV4: Final = "0.0.0.0"  # noqa: S104 - compared with, and bound where the operator asks for every address
_TAKEN: Final = {errno.EADDRINUSE, errno.EACCES}


class Opened(NamedTuple):
    """An address with the port it got, and the sockets that listen there."""

    address: Address
    sockets: list[socket.socket]


async def open_sockets(addresses: Sequence[Address], *, backlog: int = BACKLOG) -> list[Opened]:
    """Listen on all addresses. StartError says which one cannot be had, and why; then it listens on none."""
    opened: list[Opened] = []
    try:
        for address in addresses:
            try:
                match address:
                    case Unix():
                        opened.append(Opened(address, [_open_unix(address, backlog)]))
                    case Tcp():
                        alone = Tcp(_ANY_IPV4, address.port) not in addresses
                        opened.append(await _open_tcp(address, backlog, alone=alone))
            except (OSError, UnicodeError) as error:
                raise _cannot_listen(address, error) from error
    except StartError:
        close_sockets(opened)
        raise
    return opened


def close_sockets(opened: Iterable[Opened]) -> None:
    """Listen there no more, and remove the files of unix sockets."""
    for address, sockets in opened:
        for listening in sockets:
            listening.close()
        remove_socket(address)


async def ensure_free(address: Address) -> None:
    """StartError says why the address cannot be had. A socket file that no process listens on is removed."""
    close_sockets(await open_sockets([address]))


def remove_socket(address: Address) -> None:
    """Remove the file of a unix socket that is no longer listened on; for a TCP address, a no-op."""
    if isinstance(address, Unix):
        with suppress(FileNotFoundError):
            Path(address.path).unlink()


def _cannot_listen(address: Address, error: OSError | UnicodeError) -> ListenError:
    """The error that says in one line that an address cannot be had, and why."""
    reason = str(error)  # a name that IDNA cannot write, or a path that is too long for a socket
    if isinstance(error, OSError) and error.strerror is not None:
        # Python's text repeats the address, the system's does not; but getaddrinfo's numbers are not the system's.
        of_system = error.errno is not None and not isinstance(error, socket.gaierror)
        reason = os.strerror(error.errno) if of_system and error.errno else error.strerror
        reason = reason[:1].lower() + reason[1:]
    return ListenError(f"cannot listen on {address}: {reason}", address)


async def _open_tcp(address: Tcp, backlog: int, *, alone: bool) -> Opened:
    """Listen on every address of this machine that the name stands for; with port 0 all get the same port.

    `alone` is false for `::` when 0.0.0.0 has a socket of its own.
    """
    host, port = address
    both = host == ANY_HOST and alone
    if both and not socket.has_dualstack_ipv6():
        host, both = _ANY_IPV4, False
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    problem: OSError | None = None
    for family, _, _, _, at in found:
        try:
            listening = socket.create_server(
                (at[0], port, *at[2:]),
                family=family,
                backlog=backlog,
                dualstack_ipv6=both and family == socket.AF_INET6,
            )
        except OSError as error:
            if error.errno in _TAKEN and (address.port or not sockets):
                for each in sockets:
                    each.close()
                raise
            problem = error
        else:
            sockets.append(listening)
            port = listening.getsockname()[1]
    # A name may stand for an address that this machine lacks, such as localhost's ::1 in a container without IPv6.
    if not sockets and problem is not None:
        raise problem
    return Opened(Tcp(address.host, port), sockets)


def _open_unix(address: Unix, backlog: int) -> socket.socket:
    _probe_unix(address)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(address.path)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening


def _probe_unix(address: Unix) -> None:
    """OSError when a process listens on the socket; the file of one that no process listens on is removed."""
    path = Path(address.path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.bind(address.path)
        path.unlink()
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"cannot listen on {address}: the file is there and is not a socket", address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            path.unlink()
            return
        except TimeoutError:
            pass  # a process listens, and is too busy to accept
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
