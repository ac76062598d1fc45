"""Whether an address can be had: asked before grpc is, which says that it failed but not why."""

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from ratelimit_service.address import Address, Tcp, Unix, cannot_listen
from ratelimit_service.errors import StartError

_PROBE_SECONDS = 1.0


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
        raise StartError(f"cannot listen on {address}: the file is there and is not a socket")
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
