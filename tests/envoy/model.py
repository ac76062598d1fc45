"""A model that stands behind Envoy: it streams an answer, and says in the last event what that has used.

A request says what its answer is to be: `x-usage`, the tokens; `x-seconds`, how long it takes; `x-hold`, that it waits
for `release`, before the last event or `after` it.
"""

import asyncio
import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import yaml

from tests.processes import ROOT, START_SECONDS, eventually

_PAGE: Final = (ROOT / "docs" / "budgets.md").read_text(encoding="utf-8")


def shown(begin: str) -> str:
    """The blocks of docs/budgets.md that begin so, one after the other."""
    return "---\n".join(re.findall(rf"^```\w*\n({begin}.*?)^```", _PAGE, re.MULTILINE | re.DOTALL))


USAGE: Final[dict[str, Any]] = yaml.safe_load(shown("http_filters:"))["http_filters"][0]
"""Envoy's filter that makes dynamic metadata of the last event."""
TOKENS: Final = "%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_total_token)%"
"""What it makes of it."""

_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Model:
    """What it answers, to whom."""

    port: int
    _loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        """Answers, by the user of the request."""
        self.used: Counter[str] = Counter()
        """The tokens of these answers."""
        self._stopped = asyncio.Event()
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def wait_for(self, user: str, answers: int) -> None:
        """Until so many answers to this user have begun."""
        eventually(lambda: self.begun[user] >= answers, f"{answers} answers have begun: {self.begun}")

    def release(self, user: str) -> None:
        """Finish the answers to this user, and do not hold later ones."""
        self._loop.call_soon_threadsafe(self._released[user].set)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                asked = dict(line.split(": ", 1) for line in head[1:] if line)
                user, usage, hold = asked["x-user"], int(asked.get("x-usage", "0")), asked.get("x-hold")
                self.begun[user] += 1
                self.used[user] += usage
                writer.write(_HEAD + _event({"choices": [{"delta": {"content": "Well, "}}]}))
                await asyncio.sleep(float(asked.get("x-seconds", "0")))
                if hold == "before":
                    await self._released[user].wait()
                if usage:
                    writer.write(_event({"choices": [], "usage": {"total_tokens": usage}}))
                if hold == "after":
                    await self._released[user].wait()
                writer.write(b"0\r\n\r\n")
                await writer.drain()

    async def serve(self, begun: threading.Event) -> None:
        """Answer, until `stop`."""
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        begun.set()
        await self._stopped.wait()
        server.close()

    def stop(self) -> None:
        """Answer nothing more."""
        self._loop.call_soon_threadsafe(self._stopped.set)


def _event(data: dict[str, Any]) -> bytes:
    """A chunk that is an event."""
    text = f"data: {json.dumps(data)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


@contextmanager
def start_model() -> Iterator[Model]:
    """A model at work, in a thread."""
    model, begun = Model(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(model.serve(begun)), daemon=True)
    thread.start()
    begun.wait(START_SECONDS)
    try:
        yield model
    finally:
        model.stop()
        thread.join(START_SECONDS)
