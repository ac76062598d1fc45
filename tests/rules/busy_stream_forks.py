"""Starts processes while a stream of xDS is busy; prints how many of them did not end with 0."""

import asyncio
import os
from typing import Any

import uvloop

from ratelimit_service.rules.sources import open_sources
from ratelimit_service.settings import load_settings
from tests.ports import free_port


async def _main() -> None:
    port = free_port()
    environ = {"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": f"localhost:{port}"}
    (source,) = open_sources(load_settings(environ)[0])
    # After the source is opened, as in the service: it says what grpcio must know when it is loaded.
    from tests.rules.planes import Stream, config, response, start_plane, user  # noqa: PLC0415

    async def chat(stream: Stream) -> None:
        for number in range(1, 1_000_000):
            stream.send(response(str(number), config("shop", user(number))))
            await asyncio.sleep(0.001)

    async with start_plane(port) as plane:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(source.read())]
        tasks.append(asyncio.create_task(chat(await plane.stream())))
        failed = 0
        for _ in range(100):
            process = await asyncio.create_subprocess_exec("/bin/true")
            failed += await process.wait() != 0
        print(f"{failed} of 100", flush=True)
        os._exit(0)


if __name__ == "__main__":
    uvloop.run(_main())
