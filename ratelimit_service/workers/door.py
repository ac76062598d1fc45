"""Where connections wait until their worker takes them: a socket pair, whose messages are a byte and a connection."""

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
        """All that wait."""
        return [connection for connection in taken(self.inside) if connection is not None]

    def close(self) -> None:
        """Nobody comes any more."""
        self._outside.close()
        self.inside.close()


def taken(inside: socket.socket) -> Iterator[socket.socket | None]:
    """Take what waits, one after the other; None is one that was lost, because this process may open no more files."""
    while True:
        try:
            message, files, _, _ = socket.recv_fds(inside, 1, 1)
        except BlockingIOError:
            return
        if not message:
            return
        yield socket.socket(fileno=files[0]) if files else None
