"""`/bans` on the operator's port: GET lists the bans in force; POST makes one, DELETE lifts one."""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from ratelimit_service.errors import RpcError
from ratelimit_service.server.admin.bans import banning, listing, unbanning
from ratelimit_service.server.admin.json_api import (
    HEADERS,
    BytesMethod,
    call_method,
    escape_control,
    read_body,
    refusal_for,
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
        body = await read_body(request, MAX_BYTES)
        if isinstance(body, web.Response):
            return body
        try:
            change = asked(body, request.remote or "an unknown address")
        except RpcError as error:
            return refusal_for(error)
        return await self._respond(change)

    async def _respond(self, asked: bytes) -> web.Response:
        try:
            found = await call_method(self._method, asked)
        except (RpcError, TimeoutError) as error:
            return refusal_for(error)
        return web.Response(text=escape_control(found.decode()), headers=HEADERS, content_type="application/json")
