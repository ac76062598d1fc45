"""Endpoints of the operator's port that change something, or list what was changed: `/bans`, `/counters/reset`."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final

from aiohttp import web

from ratelimit_service.errors import RpcError
from ratelimit_service.server.admin.access import client_of
from ratelimit_service.server.admin.bans_api import listing
from ratelimit_service.server.admin.json_api import (
    HEADERS,
    BytesMethod,
    call_method,
    escape_control,
    read_body,
    refusal_for,
)
from ratelimit_service.server.admin.openmetrics import Send
from ratelimit_service.server.admin.shared_response import Begin

MAX_BYTES: Final = 16 * 1024
"""The most bytes of a body: a ban has 2,000, each of which may be written as an escape."""

_LISTED: Final = HEADERS | {"Content-Type": "application/json"}
_MAX_LISTS: Final = 16
"""Domains whose lists are made once for all who ask at the same time: those asked for last."""
_PIECE: Final = 16 * 1024

_Handle = Callable[[web.Request], Awaitable[web.Response]]


def lists_bans(method: BytesMethod, shared: Callable[[Mapping[str, str], Begin], Send]) -> Send:
    """Responds with the bans in force, with `?domain=` those of a domain: the last ones made, and how many."""
    lists: dict[str | None, Send] = {}

    async def handle(request: web.Request) -> web.StreamResponse:
        domain = request.query.get("domain")
        send = lists.pop(domain, None) or shared(_LISTED, partial(_list, method, domain))
        lists[domain] = send
        if len(lists) > _MAX_LISTS:
            del lists[next(iter(lists))]
        try:
            return await send(request)
        except (RpcError, TimeoutError) as error:
            return refusal_for(error)

    return handle


async def _list(method: BytesMethod, domain: str | None) -> Iterable[str]:
    text = (await call_method(method, listing(domain))).decode()
    return (escape_control(text[at : at + _PIECE]) for at in range(0, len(text), _PIECE))


def changes(method: BytesMethod, asked: Callable[[bytes, str], bytes]) -> _Handle:
    """Makes the change in the body, which `asked` makes a request to the method of; responds with what was changed."""

    async def handle(request: web.Request) -> web.Response:
        body = await read_body(request, MAX_BYTES)
        if isinstance(body, web.Response):
            return body
        try:
            found = await call_method(method, asked(body, client_of(request)))
        except (RpcError, TimeoutError) as error:
            return refusal_for(error)
        return web.Response(text=escape_control(found.decode()), headers=HEADERS, content_type="application/json")

    return handle
