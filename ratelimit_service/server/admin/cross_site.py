"""Protection against pages of other sites in a browser (CSRF, DNS rebinding): 403 for their requests.

The browser's user is inside the network, the author of such a page is not. The page can POST to `/json`, and use up a
limit, although it cannot read the response (CSRF). And it can ask everything of both ports if its own name is made to
resolve to the service's address (DNS rebinding): then the browser takes both for one site. But the browser still sends
that name as `Host`.
"""

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

ANY: Final = "*"

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""They change nothing (RFC 9110, 9.2.1)."""
_OPEN_TO_ALL_NAMES: Final = frozenset({"/metrics"})
"""Prometheus may know the service by any name."""


def refuse_cross_site(allowed: Collection[str], hosts: Collection[str]) -> Middleware:
    """Respond 403 to a POST by a page of another site, unless its origin is `allowed`.

    A page of the same site has a Host as `refuse_foreign_hosts` takes it, with these `hosts`.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method in SAFE_METHODS or ANY in allowed or _same_site(request, allowed, hosts):
            return await handler(request)
        return web.Response(
            status=403, text="a page of another site may not send this request (HTTP_ALLOWED_ORIGINS)\n"
        )

    return middleware


def _same_site(request: web.Request, allowed: Collection[str], hosts: Collection[str]) -> bool:
    """Decide as Go's `http.CrossOriginProtection`: only browsers send these headers, and pages cannot set them."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin", "").lower()
    if site is not None:
        return site in {"same-origin", "none"} or origin in allowed
    # Browsers send Sec-Fetch-Site to https and localhost only, but Origin with every POST.
    host = request.headers.get("Host", "").lower()
    return not origin or origin in allowed or (_netloc(origin) == host and _private(host, hosts))


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def refuse_foreign_hosts(allowed: Collection[str]) -> Middleware:
    """Respond 403 to a Host that may be another site's, unless it is `allowed`; `.svc` is all names below it."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _OPEN_TO_ALL_NAMES or _private(request.headers.get("Host", ""), allowed):
            return await handler(request)
        text = "the Host of a request to this port is an address, localhost, or a name in DEBUG_ALLOWED_HOSTS\n"
        return web.Response(status=403, text=text)

    return middleware


def _private(host: str, allowed: Collection[str]) -> bool:
    """The host is not a name that anyone can register in the public DNS."""
    if host.startswith("["):
        return True  # an IPv6 address
    name = host.partition(":")[0].lower().removesuffix(".")
    *_, last = labels = name.split(".")
    # No top-level domain has an address of its own, is a number, or is localhost (RFC 3696 section 2, RFC 6761).
    if len(labels) == 1 or last.isdecimal() or last == "localhost" or ANY in allowed or name in allowed:
        return True
    return any(one.startswith(".") and name.endswith(one) for one in allowed)
