"""A stub of a model: it streams an answer, and says in the last event what that has used.

A request says what its answer is to be: `x-usage`, the tokens; `x-seconds`, how long it takes.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from typing import Any, Final

from ratelimit_service.system.address import Address, Unix

_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Model:
    """Answers, and what they have used, by the user of the request."""

    port: int

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.used: Counter[str] = Counter()
        """The tokens of all answers that have begun."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers on a free port of this machine."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    async def pause(self, moment: str, asked: Mapping[str, str]) -> None:
        """Called `before` the usage is sent and `after` it, for models whose answers wait there."""

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                asked = dict(line.split(": ", 1) for line in head[1:] if line)
                user, usage = asked["x-user"], int(asked.get("x-usage", "0"))
                self.begun[user] += 1
                self.used[user] += usage
                writer.write(_HEAD + _event({"choices": [{"delta": {"content": "Well, "}}]}))
                await asyncio.sleep(float(asked.get("x-seconds", "0")))
                await self.pause("before", asked)
                if usage:
                    writer.write(_event({"choices": [], "usage": {"total_tokens": usage}}))
                await self.pause("after", asked)
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                if asked.get("connection") == "close":
                    return


def _event(data: dict[str, Any]) -> bytes:
    """A chunk that is an event."""
    text = f"data: {json.dumps(data)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


async def answer(address: Address, headers: Mapping[str, str], path: str = "/") -> bytes:
    """The whole answer of a model, or of Envoy before it, to a request of its own connection."""
    match address:
        case Unix():
            reader, writer = await asyncio.open_unix_connection(address.path)
        case _:
            reader, writer = await asyncio.open_connection(*address)
    with closing(writer):
        lines = [f"GET {path} HTTP/1.1", "host: model", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        return await reader.read()


def status_of(answered: bytes) -> int:
    """The status of an answer; ConnectionError if there is none."""
    if not answered.startswith(b"HTTP/1.1 "):
        raise ConnectionError("the connection was closed without an answer")
    return int(answered[9:12])
