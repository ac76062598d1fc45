"""The stub of a model behind Envoy, in a thread, whose answers may be held.

A request with `x-hold` has its answer wait for `release`, `before` the last event or `after` it.
"""

import asyncio
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import yaml

from ratelimit_service.commands.try_.model import Model
from tests.processes import ROOT, START_SECONDS, eventually

_PAGE: Final = (ROOT / "docs" / "budgets.md").read_text(encoding="utf-8")


def shown(begin: str) -> str:
    """The blocks of docs/budgets.md that begin so, one after the other."""
    return "---\n".join(re.findall(rf"^```\w*\n({begin}.*?)^```", _PAGE, re.MULTILINE | re.DOTALL))


USAGE: Final[dict[str, Any]] = yaml.safe_load(shown("http_filters:"))["http_filters"][0]
"""Envoy's filter that makes dynamic metadata of the last event."""
TOKENS: Final = "%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_total_token)%"
"""What it makes of it."""


class HeldModel(Model):
    """What it answers, to whom."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self._stopped = asyncio.Event()
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def wait_for(self, user: str, answers: int) -> None:
        """Until so many answers to this user have begun."""
        eventually(lambda: self.begun[user] >= answers, f"{answers} answers have begun: {self.begun}")

    def release(self, user: str) -> None:
        """Finish the answers to this user, and do not hold later ones."""
        self._loop.call_soon_threadsafe(self._released[user].set)

    async def pause(self, moment: str, asked: Mapping[str, str]) -> None:
        if asked.get("x-hold") == moment:
            await self._released[asked["x-user"]].wait()

    async def serve(self, begun: threading.Event) -> None:
        """Answer, until `stop`."""
        self._loop = asyncio.get_running_loop()
        async with self.serving():
            begun.set()
            await self._stopped.wait()

    def stop(self) -> None:
        """Answer nothing more."""
        self._loop.call_soon_threadsafe(self._stopped.set)


@contextmanager
def start_model() -> Iterator[HeldModel]:
    """A model at work, in a thread."""
    model, begun = HeldModel(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(model.serve(begun)), daemon=True)
    thread.start()
    begun.wait(START_SECONDS)
    try:
        yield model
    finally:
        model.stop()
        thread.join(START_SECONDS)
