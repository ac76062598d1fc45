"""`/rules` on the operator's port: the rules of each domain as a document that is read, checked, changed, rolled back.

A version is the ETag of a document. A change names the one that it replaces by If-Match, or If-None-Match: * for a
domain without a document, and loses against another change that came before (RFC 9110, 13.1). It is made only if all
rules load with it.
"""

import json
import logging
import re
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from aiohttp import web

from ratelimit_service.errors import ApiError, RuleConflictError, RulesError, StoreError
from ratelimit_service.rules.loading import Loading
from ratelimit_service.rules.problems import printable, quoted
from ratelimit_service.rules.versions import (
    MAX_ALL_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_NOTE_LENGTH,
    RuleStore,
    RuleVersion,
)
from ratelimit_service.server.admin.access import Access, client_of
from ratelimit_service.server.admin.json_api import HEADERS, escape_control, read_body
from ratelimit_service.server.admin.openapi import DESCRIPTION
from ratelimit_service.server.admin.problem import problem
from ratelimit_service.server.admin.rules_trial import Draft, RulesTrial, TrialOptions, problems_as_json
from ratelimit_service.system.clock import SECOND, system_clock
from ratelimit_service.telemetry.logs import about

log = logging.getLogger(__name__)

MAX_DOMAIN_LENGTH: Final = 255
"""Characters of the domain of a document."""

_KINDS: Final = {
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
    "text/x-yaml": "yaml",
    "application/json": "json",
}
_TYPES: Final = {"yaml": "application/yaml", "json": "application/json"}
_ETAG: Final = re.compile(r'\s*(?:(W/)?"([^"]*)"|(\*))\s*(?:,|$)')
_RETRY_SECONDS: Final = "1"

_NO_STORE: Final = "this service changes no rules: RULES_STORE is not set; see docs/rules-api.md"

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Route(NamedTuple):
    """A verb at a path, and what it does."""

    verb: str
    path: str
    handle: Handle
    help: str


class RulesApi:
    """The endpoints; without a `store` there are no documents, and none can be made."""

    def __init__(
        self,
        loading: Loading,
        store: RuleStore | None,
        options: TrialOptions,
        access: Access,
    ) -> None:
        self._store = store
        self._caller = access.caller
        self._trial = RulesTrial(loading, store, options)

    def routes(self) -> list[Route]:
        """All of them."""
        document = "/rules/{domain}"
        of_document = [
            ("GET", "", self._get, "the rules of a domain as they were put, with their version as ETag"),
            ("PUT", "", self._put, "change them: If-Match: VERSION, or If-None-Match: * to create"),
            ("DELETE", "", self._delete, "delete them: If-Match: VERSION"),
            ("POST", "/check", self._check, "what `ratelimit check` says of the rules in the body"),
            (
                "POST",
                "/diff",
                self._diff,
                "what `ratelimit diff` says of those in force and these",
            ),
            ("GET", "/history", self._history, "the last versions: who, when, from where, why"),
            ("GET", "/history/{version}", self._old, "the rules of a version"),
            (
                "POST",
                "/rollback",
                self._roll_back,
                "put the rules of version ?to= again: If-Match: VERSION",
            ),
        ]
        return [
            Route("GET", "/openapi.json", _describe, "the description of /rules, for programs"),
            Route("GET", "/rules", _answering(self._list), "the domains whose rules are kept here"),
            *(Route(verb, document + path, _answering(handle), text) for verb, path, handle, text in of_document),
        ]

    async def _list(self, _: web.Request) -> web.Response:
        store = self._store
        if store is None:
            return _json({"store": None, "trouble": _NO_STORE, "documents": []})
        if store.known is None:
            raise StoreError(store.trouble or "they were not read yet")
        documents = [_described(made) for _, made in sorted(store.known.items()) if not made.deleted]
        return _json({"store": store.name, "trouble": store.trouble or None, "documents": documents})

    async def _get(self, request: web.Request) -> web.Response:
        domain, store = _domain(request), self._opened()
        try:
            made = await store.present(domain)
        except StoreError:
            if store.known is None:
                raise
            made = store.known.get(domain)
        if made is None or made.deleted:
            self._trial.check_owner(domain)
            raise ApiError(404, f"there are no rules of domain {quoted(domain)} here")
        if any(weak in {"*", made.version} for _, weak in _etags(request, "If-None-Match")):
            return web.Response(status=304, headers=HEADERS | {"ETag": f'"{made.version}"'})
        return _text(made)

    async def _put(self, request: web.Request) -> web.Response:
        domain, store = self._changed_domain(request)
        kind, text = await _body(request)
        before = await store.present(domain)
        _check_preconditions(request, before)
        draft = Draft(domain, kind, text)
        await self._try(draft)
        if before is not None and (before.kind, before.text.encode()) == (kind, text):
            return _json(_described(before) | {"changed": False}, before)
        made = self._version(request, domain, before, kind=kind, text=text.decode())
        return await self._change(made, "put", 201 if before is None or before.deleted else 200)

    async def _delete(self, request: web.Request) -> web.Response:
        domain, store = self._changed_domain(request)
        before = await store.present(domain)
        if before is None or before.deleted:
            raise ApiError(404, f"there are no rules of domain {quoted(domain)} here")
        _check_preconditions(request, before)
        await self._try(Draft(domain, "", b""))
        return await self._change(self._version(request, domain, before, kind="", text=""), "deleted", 200)

    async def _roll_back(self, request: web.Request) -> web.Response:
        domain, store = self._changed_domain(request)
        before = await store.present(domain)
        _check_preconditions(request, before)
        old = await self._past(domain, request.query.get("to", ""))
        if old.deleted:
            raise ApiError(409, f"version {old.version} is a deletion: DELETE does the same")
        await self._try(Draft(domain, old.kind, old.text.encode()))
        made = self._version(request, domain, before, kind=old.kind, text=old.text, restores=old.version)
        return await self._change(made, "rolled back", 200)

    async def _check(self, request: web.Request) -> web.Response:
        domain = _domain(request)
        kind, text = await _body(request)
        self._trial.check_owner(domain)
        return _json(await self._trial.check(Draft(domain, kind, text)))

    async def _diff(self, request: web.Request) -> web.Response:
        draft = Draft(_domain(request), *await _body(request))
        self._trial.check_owner(draft.domain)
        try:
            return _json(await self._trial.diff(draft))
        except RulesError as error:
            return _unprocessable(draft, error)

    async def _history(self, request: web.Request) -> web.Response:
        domain = _domain(request)
        past = await self._opened().past(domain)
        if not past:
            raise ApiError(404, f"there were no rules of domain {quoted(domain)} here")
        return _json({"domain": domain, "versions": [_described(made) for made in past]})

    async def _old(self, request: web.Request) -> web.Response:
        made = await self._past(_domain(request), request.match_info["version"])
        if made.deleted:
            raise ApiError(404, f"version {made.version} is a deletion")
        return _text(made)

    def _opened(self) -> RuleStore:
        if self._store is None:
            raise ApiError(501, _NO_STORE)
        return self._store

    def _changed_domain(self, request: web.Request) -> tuple[str, RuleStore]:
        """The domain that the request may change, and the store."""
        domain, store, caller = _domain(request), self._opened(), self._caller(request)
        if not caller.may_change(domain):
            raise ApiError(403, f"the token of {caller.name} may not change the rules of domain {quoted(domain)}")
        self._trial.check_owner(domain)
        return domain, store

    async def _past(self, domain: str, version: str) -> RuleVersion:
        """The version of this name, or number."""
        past = await self._opened().past(domain)
        for made in past:
            if version in {made.version, str(made.number)}:
                return made
        raise ApiError(404, f"domain {quoted(domain)} has no version {quoted(version)} here, or no longer")

    async def _try(self, draft: Draft) -> None:
        if self._store is not None and self._store.known is not None:
            known = self._store.known.values()
            size = len(draft.text) + sum(made.size for made in known if made.domain != draft.domain)
            if size > MAX_ALL_BYTES:
                raise ApiError(413, f"all documents together would be larger than {MAX_ALL_BYTES >> 20} MiB")
        try:
            await self._trial.load(draft)
        except RulesError as error:
            raise ApiError(
                422,
                "the rules cannot be loaded with this document"
                if draft.kind
                else "the rules cannot be loaded without it",
                errors=problems_as_json(draft, error.problems),
            ) from error

    def _version(
        self, request: web.Request, domain: str, before: RuleVersion | None, *, kind: str, text: str, restores: str = ""
    ) -> RuleVersion:
        """The version that this request makes."""
        why, named = (request.query.get(name, "") for name in ("why", "who"))
        for note in (why, named):
            if len(note) > MAX_NOTE_LENGTH or not note.isprintable():
                raise ApiError(400, f"why and who are one line of at most {MAX_NOTE_LENGTH} characters each")
        caller = self._caller(request).name
        return RuleVersion(
            domain,
            1 if before is None else before.number + 1,
            kind,
            text,
            system_clock(),
            who=f"{named} by the token of {caller}" if named and caller else named or caller,
            address=client_of(request),
            why=why,
            replaces="" if before is None else before.version,
            restores=restores,
        )

    async def _change(self, made: RuleVersion, what: str, status: int) -> web.Response:
        store = self._opened()
        try:
            await store.put(made)
        except RuleConflictError:
            return _lost(await store.present(made.domain))
        who = f"{made.who} from {made.address}" if made.who else made.address
        log.info(
            "rules of domain %s %s by %s: version %s in place of %s%s",
            *(printable(made.domain), what, printable(who), made.version, made.replaces or "none"),
            f": {made.why}" if made.why else "",
            extra=about(
                "rules_changed",
                domain=made.domain,
                action=what,
                who=who,
                version=made.version,
                replaces=made.replaces,
                why=made.why,
            ),
        )
        return _json(_described(made) | {"changed": True}, made, status)


def _answering(handle: Handle) -> Handle:
    """Respond with a problem to what cannot be done."""

    @wraps(handle)
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handle(request)
        except ApiError as error:
            response = problem(error.status, str(error), **error.fields)
        except StoreError as error:
            response = problem(503, f"rules cannot be read or written now: {error}; those in force stay")
        if response.status == 503:
            response.headers["Retry-After"] = _RETRY_SECONDS
        return response

    return answer


async def _describe(_: web.Request) -> web.StreamResponse:
    return _json(DESCRIPTION)


def _domain(request: web.Request) -> str:
    """The domain of the path."""
    domain = request.match_info["domain"]
    if len(domain) > MAX_DOMAIN_LENGTH or not domain.isprintable() or domain in {".", ".."}:
        raise ApiError(400, f"the domain is printable text of at most {MAX_DOMAIN_LENGTH} characters")
    return domain


async def _body(request: web.Request) -> tuple[str, bytes]:
    """The kind of the document in the body, and its text."""
    kind = _KINDS.get(request.content_type)
    if kind is None:
        raise ApiError(415, "send the rules with Content-Type: application/yaml, or application/json")
    body = await read_body(request.clone(client_max_size=MAX_DOCUMENT_BYTES + 1), MAX_DOCUMENT_BYTES)
    if isinstance(body, web.Response):
        raise ApiError(body.status, (body.text or "").rstrip("\n"))
    return kind, body


def _etags(request: web.Request, header: str) -> list[tuple[str, str]]:
    """The versions that a header has, each with `W/` if it is weak; `*` is any."""
    found = _ETAG.findall(", ".join(request.headers.getall(header, ())))
    return [(weak, version or any_version) for weak, version, any_version in found]


def _check_preconditions(request: web.Request, present: RuleVersion | None) -> None:
    """Raise ApiError unless the request names the version that it replaces."""
    exists = present is not None and not present.deleted
    if "If-Match" in request.headers:
        matches = [version for weak, version in _etags(request, "If-Match") if not weak]
        version = "" if present is None else present.version
        fits = ("*" in matches and exists) or (bool(version) and version in matches)
    elif "If-None-Match" in request.headers:
        fits = [version for _, version in _etags(request, "If-None-Match")] == ["*"] and not exists
    else:
        raise ApiError(
            428, 'name the version that this replaces by If-Match: "VERSION", or by If-None-Match: * if none'
        )
    if not fits:
        raise ApiError(412, _lost_words(present), **_version_of(present))


def _lost(present: RuleVersion | None) -> web.Response:
    response = problem(412, _lost_words(present), **_version_of(present))
    if present is not None:
        response.headers["ETag"] = f'"{present.version}"'
    return response


def _lost_words(present: RuleVersion | None) -> str:
    if present is None:
        return "there are no rules of this domain here"
    if present.deleted:
        return f"the rules of this domain were deleted, which is version {present.version}"
    return f"the present version is {present.version}, by {present.who or present.address}"


def _version_of(present: RuleVersion | None) -> dict[str, Any]:
    return {"version": None if present is None else present.version}


def _unprocessable(draft: Draft, error: RulesError) -> web.Response:
    return problem(422, "the rules cannot be loaded", errors=problems_as_json(draft, error.problems))


_SHOWN: Final = ("domain", "number", "version", "who", "address", "why")


def _described(made: RuleVersion) -> dict[str, Any]:
    """A version without its text."""
    found = {name: getattr(made, name) for name in _SHOWN}
    return found | {
        "at": made.at / SECOND,
        "format": made.kind or None,
        "deleted": made.deleted,
        "bytes": made.size,
        "replaces": made.replaces or None,
        "restores": made.restores or None,
    }


def _text(made: RuleVersion) -> web.Response:
    headers = HEADERS | {"ETag": f'"{made.version}"', "Content-Type": f"{_TYPES[made.kind]}; charset=utf-8"}
    return web.Response(body=made.text.encode(), headers=headers)


def _json(found: Any, made: RuleVersion | None = None, status: int = 200) -> web.Response:
    headers = dict(HEADERS)
    if made is not None:
        headers |= {"ETag": f'"{made.version}"', "Location": f"/rules/{quote(made.domain, safe='')}"}
    text = escape_control(json.dumps(found, ensure_ascii=False)) + "\n"
    return web.Response(status=status, text=text, headers=headers, content_type="application/json")
