"""What parent and worker say to each other: a line of JSON for each message, a list whose first element is its kind."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from pydantic import SecretStr

from ratelimit_service.settings import Settings

Message = list[Any]

_LONGEST: Final = 2**30
"""Bytes of a line. Both ends are ours; the longest are rules."""


class Channel:
    """One end of a connected socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """The channel over this end, which is its own from now on."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_LONGEST))

    @property
    def behind(self) -> bool:
        """The other end has not yet taken what was sent."""
        return self._writer.transport.get_write_buffer_size() > 0

    def send(self, *message: Any) -> None:
        """Have it sent; never waits, and is without effect when the other end is gone."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def messages(self) -> AsyncIterator[Message]:
        """Everything that comes, until the other end is gone. The beginning of a message is none."""
        try:
            while (line := await self._reader.readline()).endswith(b"\n"):
                yield json.loads(line)
        except ConnectionError:
            pass

    async def close(self) -> None:
        """Send what is left, and hang up."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


def text_of(data: bytes) -> str:
    """Bytes as JSON can carry them."""
    return data.decode("latin-1")


def bytes_of(text: str) -> bytes:
    """The bytes that `text_of` was given."""
    return text.encode("latin-1")


def handed_over(settings: Settings) -> dict[str, Any]:
    """The settings as JSON can carry them, secrets too; `Settings.model_validate` reads them."""
    return {name: _plain(value) for name, value in settings}


def _plain(value: object) -> object:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Path():
            return str(value)
    return value
