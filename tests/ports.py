"""Ports for servers that a test starts."""

import socket
from typing import Final

_HELD: Final[list[socket.socket]] = []


def free_port(*, besides: int = 0) -> int:
    """A TCP port of this machine that is the caller's until this process ends; so is the one `besides` higher.

    It is bound here and not listened on. Whoever sets SO_REUSEADDR may listen there, and servers do; the system gives
    it to nobody else who wants any port, to listen or to connect from; and while no server is there, it refuses.
    """
    while True:
        held = _hold(0)
        port: int = held.getsockname()[1]
        try:
            if besides:
                _HELD.append(_hold(port + besides))
        except (OSError, OverflowError):
            held.close()
        else:
            _HELD.append(held)
            return port


def _hold(port: int) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
    except BaseException:
        held.close()
        raise
    return held
