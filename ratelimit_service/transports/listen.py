"""Sockets to listen on, and whether an address can be had: grpc says that it failed, but not why."""

import errno
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ratelimit_service.errors import ListenError, StartError
from ratelimit_service.system.address import ANY_HOST, Address, Tcp, Unix, cannot_listen

_PROBE_SECONDS = 1.0
_BACKLOG = 1024
_ANY_IPV4 = "0.0.0.0"  # noqa: S104 - only compared with


def ensure_free(address: Address) -> None:
    """StartError says in one line why the address cannot be had. A socket file that nobody listens on is removed."""
    try:
        match address:
            case Unix():
                _probe_unix(address)
            case Tcp():
                _probe_tcp(address)
    except (OSError, UnicodeError) as error:  # a name that IDNA cannot write is a UnicodeError
        raise cannot_listen(address, error) from error


def remove_socket(address: Address) -> None:
    """Remove the file of a unix socket that is no longer listened on."""
    if isinstance(address, Unix):
        with suppress(FileNotFoundError):
            Path(address.path).unlink()


def _probe_tcp(address: Tcp) -> None:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    problem: OSError | None = None
    free = False
    for family, kind, protocol, _, at in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # As grpc does: a port whose old connections linger in TIME_WAIT is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(at)
                probe.listen(1)  # SO_REUSEADDR lets two sockets bind, but not listen
                free = True
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                raise
            problem = error
    # A name may stand for an address this machine has not, such as localhost's ::1 in a container without IPv6.
    if not free and problem is not None:
        raise problem


def _probe_unix(address: Unix) -> None:
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
            pass  # somebody listens, and is too busy to accept
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


class Opened(NamedTuple):
    """An address with the port it got, and what listens there."""

    address: Address
    sockets: list[socket.socket]


def open_sockets(addresses: Sequence[Address]) -> list[Opened]:
    """Listens on all of them, or StartError says which cannot be had, and why; then it listens on none."""
    opened: list[Opened] = []
    try:
        for address in addresses:
            try:
                match address:
                    case Unix():
                        opened.append(Opened(address, [_open_unix(address)]))
                    case Tcp():
                        alone = Tcp(_ANY_IPV4, address.port) not in addresses
                        opened.append(_open_tcp(address, alone=alone))
            except (OSError, UnicodeError) as error:
                raise cannot_listen(address, error) from error
    except StartError:
        for each in opened:
            for listening in each.sockets:
                listening.close()
            remove_socket(each.address)
        raise
    return opened


def _open_unix(address: Unix) -> socket.socket:
    _probe_unix(address)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(address.path)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _open_tcp(address: Tcp, *, alone: bool) -> Opened:
    """Every address that the name stands for, as far as this machine has them; with port 0 all get the same."""
    host, port = address
    both = host == ANY_HOST and alone and socket.has_dualstack_ipv6()
    sockets: list[socket.socket] = []
    problem: OSError | None = None
    for family, _, _, _, at in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
        try:
            listening = socket.create_server(
                (at[0], port, *at[2:]),
                family=family,
                backlog=_BACKLOG,
                dualstack_ipv6=both and family == socket.AF_INET6,
            )
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES} and (address.port or not sockets):
                for each in sockets:
                    each.close()
                raise
            problem = error
        else:
            sockets.append(listening)
            port = listening.getsockname()[1]
    # A name may stand for an address this machine has not, such as localhost's ::1 in a container without IPv6.
    if not sockets and problem is not None:
        raise problem
    return Opened(Tcp(host, port), sockets)
