"""Turns of the loop that HTTP work waits for: one piece of it in each, so that gRPC calls are answered in between.

aiohttp parses, and answers, as much as has come: a read of 256 KB takes it tens of milliseconds, and uvloop hands over
32 reads in one turn. Here all HTTP connections share one queue, whatever their number: a turn of the loop parses one
read of at most `connection.READ` bytes, or begins one answer, or sends one slice of a long one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial


class Turns:
    """Pieces of work, first come first served."""

    def __init__(self) -> None:
        self._pieces: deque[Callable[[], object]] = deque()
        self._scheduled = False

    def add(self, piece: Callable[[], object]) -> None:
        """Call it in a turn of its own."""
        self._pieces.append(piece)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    async def wait(self) -> None:
        """Until it is the caller's turn."""
        granted = asyncio.get_running_loop().create_future()
        self.add(partial(_grant, granted))
        await granted

    def _run(self) -> None:
        piece = self._pieces.popleft()
        # Before the piece is called: it may raise, and the others must not wait for ever.
        self._scheduled = bool(self._pieces)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._run)
        piece()


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():  # it was cancelled
        granted.set_result(None)
