"""Where connections wait until their worker takes them: a socket pair, whose messages are a byte and a connection."""

import os
import socket
from collections.abc import Iterator


class Door:
    """Both ends, in the parent: it puts connections in, and can take back those that nobody took.

    Whoever receives a message has it alone, so no connection is ever at two places.
    """

    def __init__(self) -> None:
        self._outside, self.inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._outside.setblocking(False)
        self.inside.setblocking(False)  # for the worker too: it is one open file

    def put(self, connection: socket.socket) -> bool:
        """Have it wait there, and close it here; or say that there is no room."""
        try:
            socket.send_fds(self._outside, [b"+"], [connection.fileno()])
        except OSError:  # the buffer is full, or too many files are under way
            return False
        connection.close()
        return True

    def take_back(self) -> list[socket.socket]:
        """All that wait, or as many as there are files for."""
        connections = []
        try:
            for connection in taken(self.inside):
                connections.append(connection)  # noqa: PERF402 - those before the error count
        except OSError:
            pass
        return connections

    def close(self) -> None:
        """Nobody comes any more."""
        self._outside.close()
        self.inside.close()


def taken(inside: socket.socket) -> Iterator[socket.socket]:
    """Take what waits, one after the other; OSError when no more files may be opened: the others still wait."""
    while True:
        os.close(os.dup(inside.fileno()))  # a connection that finds no free file is lost with its message
        try:
            message, files, _, _ = socket.recv_fds(inside, 1, 1)
        except BlockingIOError:
            return
        if not message:
            return
        yield socket.socket(fileno=files[0])
