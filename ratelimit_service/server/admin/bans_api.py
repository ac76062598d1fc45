"""`/bans` on the operator's port: GET lists the bans in force; POST makes one, DELETE lifts one."""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from ratelimit_service.errors import RpcError
from ratelimit_service.server.admin.bans import banning, listing, unbanning
from ratelimit_service.server.admin.json_api import (
    HTTP_STATUS,
    BytesMethod,
    call_method,
    escape_control,
    read_body,
    refusal,
)

MAX_BYTES: Final = 16 * 1024
"""Of a body: a ban has 2,000, each of which may be written as an escape."""


class BansApi:
    """The three verbs; `method` is a `BanMethod`, or that of a worker."""

    def __init__(self, method: BytesMethod) -> None:
        self._method = method

    async def list(self, request: web.Request) -> web.Response:
        """Respond with the bans in force, with `?domain=` those of a domain: the last ones made, and how many."""
        return await self._respond(listing(request.query.get("domain")))

    async def ban(self, request: web.Request) -> web.Response:
        """Make the ban in the body, and respond with it."""
        return await self._change(request, banning)

    async def unban(self, request: web.Request) -> web.Response:
        """Lift the ban in the body, and respond with it; 404 if there is none."""
        return await self._change(request, unbanning)

    async def _change(self, request: web.Request, asked: Callable[[bytes, str], bytes]) -> web.Response:
        remote = request.remote or ""
        body = await read_body(request, MAX_BYTES)
        if isinstance(body, web.Response):
            return body
        try:
            return await self._respond(asked(body, remote))
        except RpcError as error:
            return refusal(400, error.message)

    async def _respond(self, asked: bytes) -> web.Response:
        try:
            found = await call_method(self._method, asked)
        except RpcError as error:
            return refusal(HTTP_STATUS.get(error.status, 500), error.message)
        except TimeoutError:
            return refusal(503, "the store did not answer in time")
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        return web.Response(text=escape_control(found.decode()), headers=headers, content_type="application/json")
