"""Long texts as HTTP responses, each made once for all clients that ask meanwhile, in slices between which calls go on.

A hundred scrapers cost what one costs. A request gets a text that was begun after it came, so that it shows all that
happened before; those that come until it is begun share it.

A text is kept packed, a twentieth of its size: each client that reads slowly may hold another one.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Final, NamedTuple

from aiohttp import web

from ratelimit_service.server.admin.connection import Turns

EVERY_SECONDS: Final = 1.0
"""A text is begun once in these, on average."""
BURST: Final = 5
"""Texts that are begun at once when there were none for a while: two Prometheus and a person wait for nothing."""

_SLICE_SECONDS: Final = 0.0005
_SLICE_BYTES: Final = 64 * 1024
_SEND_SECONDS: Final = 30
"""For the client to read it all; one that reads nothing would hold it for ever."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_LEVEL: Final = 4
"""Of zlib, 1 to 9. 6 takes twice as long for a tenth less."""

Begin = Callable[[], Awaitable[Iterable[str]]]
"""Gives the blocks of a text, each made in a fraction of a slice."""


class Text(NamedTuple):
    """One that is made."""

    packed: bytes
    size: int
    """In bytes, unpacked."""


class Rendering:
    """A text as it is when it is asked for."""

    def __init__(self, headers: Mapping[str, str], begin: Begin, turns: Turns) -> None:
        self._headers = headers
        self._begin = begin
        self._turns = turns
        self._next: asyncio.Task[Text] | None = None
        """The one that is not yet begun."""
        self._one_at_a_time = asyncio.Lock()
        self._due = 0.0
        """When the next one would be begun without BURST, by the loop's clock."""

    async def send(self, request: web.Request) -> web.StreamResponse:
        """It, as the response."""
        text = await self.text()
        response = web.StreamResponse(headers=self._headers)
        response.headers["Vary"] = "Accept-Encoding"
        packed = "gzip" in request.headers.get("Accept-Encoding", "").lower()
        if packed:
            response.headers["Content-Encoding"] = "gzip"
        response.content_length = len(text.packed) if packed else text.size
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await response.prepare(request)
                if request.method != "HEAD":
                    for piece in _pieces(text.packed) if packed else _unpacked(text.packed):
                        await response.write(piece)
                        await self._turns.wait()
                await response.write_eof()
        except ConnectionError:
            pass  # the client left, which is no error of ours
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    async def text(self) -> Text:
        """It, begun after this was called."""
        if self._next is None:
            self._next = asyncio.create_task(self._make())
        # Others may wait for it too.
        return await asyncio.shield(self._next)

    async def _make(self) -> Text:
        async with self._one_at_a_time:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(self._due - BURST * EVERY_SECONDS - loop.time())
            self._due = max(self._due, loop.time()) + EVERY_SECONDS
            self._next = None
            packer, packed, size = zlib.compressobj(_LEVEL, wbits=_GZIP), list[bytes](), 0
            for slice_ in _slices(await self._begin()):
                packed.append(packer.compress(slice_))
                size += len(slice_)
                # Not in the queue of turns, where clients could make it wait: there is one text at a time.
                await asyncio.sleep(0)
            packed.append(packer.flush())
            return Text(b"".join(packed), size)


def _slices(blocks: Iterable[str]) -> Iterator[bytes]:
    """The blocks, joined to what is made within the time of a slice."""
    slice_, end = list[str](), perf_counter() + _SLICE_SECONDS
    for block in blocks:
        slice_.append(block)
        if perf_counter() >= end:
            yield "".join(slice_).encode()
            slice_, end = [], perf_counter() + _SLICE_SECONDS
    yield "".join(slice_).encode()


def _pieces(packed: bytes) -> Iterator[bytes]:
    for start in range(0, len(packed), _SLICE_BYTES):
        yield packed[start : start + _SLICE_BYTES]


def _unpacked(packed: bytes) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP)
    while packed:
        yield unpacker.decompress(packed, _SLICE_BYTES)
        packed = unpacker.unconsumed_tail
