"""Long texts as HTTP responses, written in slices so that calls are answered in between."""

import asyncio
from collections.abc import Iterator, Mapping
from time import perf_counter

from aiohttp import web

_SLICE_SECONDS = 0.001
_SEND_SECONDS = 30
"""For the client to read it all; one that reads nothing would hold it for ever."""


async def send_blocks(request: web.Request, headers: Mapping[str, str], blocks: Iterator[str]) -> web.StreamResponse:
    """The text in `blocks`, each of which takes a fraction of a slice to make."""
    response = web.StreamResponse(headers=headers)
    response.enable_compression()
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            await response.prepare(request)
            slice_: list[str] = []
            end = perf_counter() + _SLICE_SECONDS
            for block in blocks:
                slice_.append(block)
                if perf_counter() >= end:
                    await response.write("".join(slice_).encode())
                    slice_.clear()
                    await asyncio.sleep(0)
                    end = perf_counter() + _SLICE_SECONDS
            await response.write("".join(slice_).encode())
            await response.write_eof()
    except ConnectionError:
        pass  # the client left, which is no error of ours
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return response
