"""Access to the operator's port, to read and to write: by a token, or by the modes of the unix socket.

The token is ADMIN_TOKEN, or the one that the service makes at its start (`system/token_file.py`). Where a client comes
from does not tell who it is: a proxy on the same machine, such as the sidecar of a mesh, has clients everywhere.

A token comes as `Authorization: Bearer TOKEN`, or as the password of HTTP Basic, which browsers ask their user for. A
browser sends that by itself with every later request, also with those of other sites' pages: those are refused before
(`cross_site.py`), with or without a token.
"""

import base64
import hmac
import json
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final, NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

from ratelimit_service.server.admin.cross_site import SAFE_METHODS
from ratelimit_service.server.admin.json_api import HEADERS, refusal
from ratelimit_service.server.admin.wrong_tokens import WrongTokens
from ratelimit_service.settings.rules_tokens import RulesToken
from ratelimit_service.system.clock import Clock, steady_clock
from ratelimit_service.telemetry.logs import ThrottledLog
from ratelimit_service.telemetry.metric import Metric, counter

_READING_BY_POST: Final = frozenset({"/explain"})
"""Paths whose POST changes nothing."""

_OF_RULES: Final = "/rules"
"""The paths below it change rules, for which there are tokens of their own."""

# Two headers: a client takes the first scheme that it knows (RFC 9110, 11.6.1), and some do not read a list.
_CHALLENGES: Final = ('Bearer realm="ratelimit"', 'Basic realm="ratelimit: any user, ADMIN_TOKEN as password"')


class Caller(NamedTuple):
    """The client of a request that may change something."""

    name: str = ""
    """Of its token; empty for the operator."""
    token: RulesToken | None = None
    """None for the operator, who may change everything."""

    def may_change(self, domain: str) -> bool:
        """Whether it may change the rules of this domain."""
        return self.token is None or self.token.may_change(domain)


class Access:
    """Decides on each request to the operator's port."""

    def __init__(
        self,
        token: str,
        *,
        read_needs_token: bool,
        warnings: ThrottledLog,
        rules_tokens: Sequence[RulesToken] = (),
        clock: Clock = steady_clock,
    ) -> None:
        self.token = token.encode()
        """Empty if there is none: then only who may write to a unix socket may change anything."""
        self._rules_tokens = rules_tokens
        self._read_needs_token = read_needs_token
        self._warnings = warnings
        self._limit = WrongTokens(clock)
        self._wrong = 0
        self._refused = 0

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Respond 401, 403 or 429 to a request that may not be made, before its body is read."""
        return self._refusal(request) or await handler(request)

    async def show(self, request: web.Request) -> web.Response:
        """Respond whether the client may write, with the token if there is one; and why not."""
        why = "" if self.token or _by_unix_socket(request) else _NO_CHANGES
        text = json.dumps({"write": not why, "why": why}) + "\n"
        return web.Response(text=text, headers=HEADERS, content_type="application/json")

    def caller(self, request: web.Request) -> Caller:
        """The client of a request that was not refused, and needed a token."""
        return self._caller(_token_of(request.headers.get("Authorization", ""))) or Caller()

    def metrics(self) -> Sequence[Metric]:
        """Metrics of tokens that were wrong, or refused unseen."""
        unseen = "Requests to the debug port rejected because too many tokens from their address were wrong."
        return (
            counter(
                "ratelimit_http_wrong_tokens_total",
                "Requests to the debug port with a wrong token.",
                self._wrong,
            ),
            counter("ratelimit_http_tokens_refused_total", unseen, self._refused),
        )

    def _refusal(self, request: web.Request) -> web.Response | None:
        writes = request.method not in SAFE_METHODS and request.path not in _READING_BY_POST
        if not writes and not self._read_needs_token:
            return None
        given = _token_of(request.headers.get("Authorization", ""))
        if not self.token and not (given and self._rules_tokens):
            return None if _by_unix_socket(request) else refusal(403, _NO_CHANGES)
        caller = self._caller(given)
        right = caller is not None
        remote = request.remote or ""
        if given and (wait := self._limit.check(remote, right=right, local=_is_local(request))):
            self._refused += 1
            self._warnings.warn("too many wrong tokens: rejecting all tokens from this address for now", remote)
            response = refusal(429, f"too many wrong tokens came from this address: it may try again in {wait} s")
            response.headers["Retry-After"] = str(wait)
            return response
        if caller is not None:
            if writes and caller.token is not None and not request.path.startswith(f"{_OF_RULES}/"):
                return refusal(403, f"the token of {caller.name} changes rules alone")
            return None
        if given:
            self._wrong += 1
            self._warnings.warn("a request to the debug port has a wrong token", remote)
        response = refusal(401, "that is not the token of this service" if given else _HOW_TO_SEND)
        for challenge in _CHALLENGES:
            response.headers.add("WWW-Authenticate", challenge)
        return response

    def _caller(self, given: bytes) -> Caller | None:
        """The client that has this token; None if it is wrong. All are compared, so that time tells nothing."""
        found = Caller() if self.token and hmac.compare_digest(given, self.token) else None
        for each in self._rules_tokens:
            if hmac.compare_digest(given, each.token.encode()):
                found = found or Caller(each.name, each)
        return found


_NO_CHANGES: Final = (
    "this service has no token, so nothing is changed over TCP: set ADMIN_TOKEN, or DEBUG_UDS; see docs/security.md"
)
_HOW_TO_SEND: Final = "this needs the header Authorization: Bearer, with the token of the service; see docs/http.md"


def _token_of(authorization: str) -> bytes:
    """The token that a header has; empty if none."""
    scheme, _, rest = authorization.partition(" ")
    # aiohttp reads bytes that are not UTF-8 as surrogates.
    text = rest.strip(" \t").encode("utf-8", "surrogateescape")
    match scheme.lower():
        case "bearer":
            return text
        case "basic":
            try:
                return base64.b64decode(text, validate=True).partition(b":")[2]
            except ValueError:
                return b""
    return b""


def client_of(request: web.Request) -> str:
    """The origin of a request, for the log."""
    return request.remote or ("the unix socket" if _by_unix_socket(request) else "an unknown address")


def _by_unix_socket(request: web.Request) -> bool:
    return request.transport is not None and isinstance(request.transport.get_extra_info("sockname"), str)


def _is_local(request: web.Request) -> bool:
    """Whether the client is on this machine, or behind a proxy that is: there a right token never waits."""
    if _by_unix_socket(request):
        return True
    remote = request.remote
    if remote is None:
        return False  # the client has reset the connection: where it came from is no longer known
    address = ip_address(remote.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
