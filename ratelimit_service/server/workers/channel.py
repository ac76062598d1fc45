"""The two connections between the parent and a worker: messages in lines of JSON, and the handoff of client sockets."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from pydantic import SecretStr

from ratelimit_service.settings import Settings

Message = list[Any]
"""Its first element is its kind."""

PIECE: Final = 64 * 1024
"""Bytes of a message, about, where its sender can cut it. After messages of so many bytes other work runs."""

_LONGEST: Final = 2**30
"""Bytes of a line. Both ends are ours; the longest messages are rules."""


class Channel:
    """One end of a connected socket that carries messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """The channel over this end, which belongs to the channel from now on."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_LONGEST))

    @property
    def behind(self) -> bool:
        """The other end has not yet read what was sent."""
        return self._writer.transport.get_write_buffer_size() > 0

    def send(self, *message: Any) -> None:
        """Queue a message; never waits, and is a no-op when the other end is closed."""
        if not self._writer.is_closing():
            self._writer.write(line_of(message))

    async def messages(self) -> AsyncIterator[Message]:
        """Every message until the other end is closed. One that ends in the middle is dropped."""
        read = 0
        with suppress(ConnectionError):
            while (line := await self._reader.readline()).endswith(b"\n"):
                yield json.loads(line)
                read += len(line)
                if read >= PIECE:  # readline does not wait while whole lines are there
                    read = 0
                    await asyncio.sleep(0)

    async def close(self) -> None:
        """Send what is queued, and close."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


class Handoff:
    """A socket pair that passes accepted sockets to one worker (SCM_RIGHTS); its messages are a byte and a socket.

    Both ends are open in the parent, so it can take back what the worker did not receive. One reader alone receives
    each message, so no connection is ever in two processes.
    """

    def __init__(self) -> None:
        self._end, self.worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._end.setblocking(False)
        self.worker_end.setblocking(False)  # for the worker too: it is one open file

    def put(self, connection: socket.socket) -> bool:
        """Queue the connection for the worker, and close it here; False when there is no room."""
        try:
            socket.send_fds(self._end, [b"+"], [connection.fileno()])
        except OSError:  # the buffer is full, or too many files are in flight
            return False
        connection.close()
        return True

    def take_back(self) -> list[socket.socket]:
        """All connections that are still queued, or as many as the parent may open files for."""
        connections = []
        with suppress(OSError):
            for connection in received(self.worker_end):
                connections.append(connection)  # noqa: PERF402 - those before the error count
        return connections

    def close(self) -> None:
        """Close both ends; what is still queued is reset."""
        self._end.close()
        self.worker_end.close()


def received(end: socket.socket) -> Iterator[socket.socket]:
    """The queued connections, one after the other. OSError when no more files may be opened: the rest stays queued."""
    while True:
        os.close(os.dup(end.fileno()))  # a connection for which there is no free file is lost with its message
        try:
            message, files, _, _ = socket.recv_fds(end, 1, 1)
        except BlockingIOError:
            return
        if not message:
            return
        yield socket.socket(fileno=files[0])


def line_of(message: Sequence[Any]) -> bytes:
    """The message as it is sent: a character of four bytes has four, not twelve as `ensure_ascii` writes it."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def text_of(data: bytes) -> str:
    """Bytes as JSON can carry them."""
    return data.decode("latin-1")


def bytes_of(text: str) -> bytes:
    """The bytes that `text_of` was given."""
    return text.encode("latin-1")


def settings_as_json(settings: Settings) -> dict[str, Any]:
    """The settings as JSON can carry them, secrets too; `Settings.model_validate` reads them."""
    return {name: _plain(value) for name, value in settings}


def _plain(value: object) -> object:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Path():
            return str(value)
    return value
