"""Sockets to listen on."""

import asyncio
import socket
from collections.abc import Sequence

from ratelimit_service.errors import StartError
from ratelimit_service.system.address import ANY_HOST, Tcp, cannot_listen

_ANY_IPV4 = "0.0.0.0"  # noqa: S104  # only compared with, and bound where the operator asks for every address
BACKLOG = 128
"""Clients that are accepted in one turn of the loop: connections above the bound that have files until the next."""


async def open_sockets(addresses: Sequence[Tcp]) -> list[socket.socket]:
    """A listening socket for each address, or StartError and none at all."""
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            sockets += await _open(address, alone=Tcp(_ANY_IPV4, address.port) not in addresses)
    except StartError:
        for opened in sockets:
            opened.close()
        raise
    return sockets


async def _open(address: Tcp, *, alone: bool) -> list[socket.socket]:
    host, port = address
    sockets: list[socket.socket] = []
    try:
        if host == ANY_HOST and alone:
            return [_any(port)]
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, _, _, _, place in found:
            sockets.append(socket.create_server(place, family=family, backlog=BACKLOG))
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise cannot_listen(address, error) from error
    return sockets


def _any(port: int) -> socket.socket:
    """Every address of the machine, IPv4 and IPv6, as far as it has them."""
    if socket.has_dualstack_ipv6():
        return socket.create_server((ANY_HOST, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server((_ANY_IPV4, port), backlog=BACKLOG)


def bound(listening: socket.socket) -> Tcp:
    """Where a socket listens, with the port it got."""
    host, port = listening.getsockname()[:2]
    return Tcp(host, port)
