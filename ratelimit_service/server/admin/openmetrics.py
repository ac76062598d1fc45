"""The format of metrics that a client gets: OpenMetrics if it prefers that, as Prometheus does, or the text format."""

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

Send = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OPENMETRICS: Final = "application/openmetrics-text"
_TEXT: Final = "text/plain"
_VERSION: Final = "1.0.0"


def by_accept(text: Send, openmetrics: Send) -> Send:
    """Responds in the format that the client prefers."""

    async def send(request: web.Request) -> web.StreamResponse:
        preferred = prefers_openmetrics(",".join(request.headers.getall("Accept", ())))
        return await (openmetrics if preferred else text)(request)

    return send


def prefers_openmetrics(accept: str) -> bool:
    """Whether this Accept header gives OpenMetrics 1.0.0 at least the weight of the text format (RFC 9110, 12.5.1).

    By its name only: what a browser accepts as `*/*` is not for it.
    """
    weights = {_OPENMETRICS: 0.0, _TEXT: 0.0}
    for media_range in accept.lower().split(","):
        kind, *parameters = map(str.strip, media_range.split(";"))
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        if kind in weights and (kind == _TEXT or values.get("version", _VERSION).strip('"') == _VERSION):
            weights[kind] = max(weights[kind], _weight(values.get("q", "1")))
    return 0 < weights[_OPENMETRICS] >= weights[_TEXT]


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
