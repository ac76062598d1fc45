"""A long text as an HTTP response: rendered once for all requests that wait for it, in slices, so that calls go on.

A hundred scrapers cost as much as one. The rendering of a text begins after the request has arrived, so the text shows
everything that happened before; all requests that arrive until it begins share it.

A text is kept compressed, at a twentieth of its size: each client that reads slowly may hold a text of its own.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Final, NamedTuple

from aiohttp import web

from ratelimit_service.server.admin.connection import LoopSlots

EVERY_SECONDS: Final = 1.0
"""A rendering begins once in this time, on average."""
BURST: Final = 5
"""Renderings that may begin without waiting after a pause: enough for two Prometheus servers and a person."""

_SLICE_SECONDS: Final = 0.0005
_SLICE_BYTES: Final = 64 * 1024
_SEND_SECONDS: Final = 30
"""Seconds for the client to read it all; one that does not read would hold it for ever."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_LEVEL: Final = 4
"""The level of zlib, 1 to 9. Level 6 takes twice as long for a result that is a tenth smaller."""

Begin = Callable[[], Awaitable[Iterable[str]]]
"""Returns the blocks of a text; each takes a fraction of a slice."""


class Rendered(NamedTuple):
    """A text."""

    packed: bytes
    """By gzip."""
    size: int
    """In bytes, not compressed."""


class SharedResponse:
    """The response with the present text of an endpoint."""

    def __init__(self, headers: Mapping[str, str], begin: Begin, slots: LoopSlots) -> None:
        self._headers = headers
        self._begin = begin
        self._slots = slots
        self._next: asyncio.Task[Rendered] | None = None
        """The rendering that has not yet begun."""
        self._one_at_a_time = asyncio.Lock()
        self._due = 0.0
        """When the next rendering would begin without BURST, by the loop's clock."""

    async def send(self, request: web.Request) -> web.StreamResponse:
        """Respond with the text, compressed if the client accepts that."""
        text = await self.text()
        response = web.StreamResponse(headers=self._headers)
        response.headers.add("Vary", "Accept-Encoding")
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
                        await self._slots.wait()
                await response.write_eof()
        except ConnectionError:
            pass  # the client has closed the connection
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    async def text(self) -> Rendered:
        """The text; its rendering begins after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._render())
        # Other requests may wait for it too: one that is cancelled must not cancel it.
        return await asyncio.shield(self._next)

    async def _render(self) -> Rendered:
        async with self._one_at_a_time:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(self._due - BURST * EVERY_SECONDS - loop.time())
            self._due = max(self._due, loop.time()) + EVERY_SECONDS
            self._next = None
            packer, packed, size = zlib.compressobj(_LEVEL, wbits=_GZIP), list[bytes](), 0
            for slice_ in _slices(await self._begin()):
                packed.append(packer.compress(slice_))
                size += len(slice_)
                # Not by a slot: clients fill that queue, and only one rendering runs at a time.
                await asyncio.sleep(0)
            packed.append(packer.flush())
            return Rendered(b"".join(packed), size)


def _slices(blocks: Iterable[str]) -> Iterator[bytes]:
    """Join blocks until the time of a slice has passed."""
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
