"""Errors of the rules API as problem JSON (RFC 9457)."""

import json
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from ratelimit_service.server.admin.json_api import HEADERS, escape_control

PROBLEM_TYPE: Final = "application/problem+json"
PATHS: Final = ("/rules", "/openapi.json")
"""The paths of the API begin so."""

_OF_THE_BODY: Final = frozenset({"Content-Type", "Content-Length"})


def problem(status: int, detail: str, **fields: Any) -> web.Response:
    """A response that says what is wrong; fields that are None are left out."""
    found = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    found |= {name: value for name, value in fields.items() if value is not None}
    text = escape_control(json.dumps(found, ensure_ascii=False))
    return web.Response(status=status, text=text, headers=HEADERS, content_type=PROBLEM_TYPE)


@web.middleware
async def as_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Make problems of what the rest of the port refuses in one line of text, at the paths of the API."""
    response = await handler(request)
    if response.status < 400 or not request.path.startswith(PATHS) or not isinstance(response, web.Response):
        return response
    if response.content_type == PROBLEM_TYPE:
        return response
    made = problem(response.status, (response.text or "").partition("\n")[0])
    for name, value in response.headers.items():
        if name not in _OF_THE_BODY and name not in made.headers:
            made.headers.add(name, value)
    return made
