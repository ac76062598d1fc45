"""The description of the rules API as OpenAPI 3.1, which `/openapi.json` shows."""

from collections.abc import Mapping
from typing import Any, Final

from ratelimit_service import __version__

_Described = dict[str, Any]


def _ref(name: str) -> _Described:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str, **properties: _Described) -> _Described:
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: _Described, description: str = "") -> _Described:
    return {"type": "array", "items": items} | ({"description": description} if description else {})


def _text(description: str = "") -> _Described:
    return {"type": "string"} | ({"description": description} if description else {})


_INTEGER: Final[_Described] = {"type": "integer"}
_MAYBE_TEXT: Final[_Described] = {"type": ["string", "null"]}
_MAYBE_INTEGER: Final[_Described] = {"type": ["integer", "null"]}

_VERSION: Final = _object(
    "domain number version at who address why replaces restores format deleted bytes",
    domain=_text(),
    number=_INTEGER | {"description": "Counts up by one with each version of the domain."},
    version=_text("The ETag, without its quotes."),
    at={"type": "number", "description": "Seconds since the epoch."},
    who=_text("The name of the token, and the name that the client gave, which it may have made up."),
    address=_text("The address that the change came from."),
    why=_text(),
    replaces=_MAYBE_TEXT | {"description": "The version before."},
    restores=_MAYBE_TEXT | {"description": "The version that was rolled back to."},
    format={"type": ["string", "null"], "enum": ["yaml", "json", None], "description": "null for a deletion."},
    deleted={"type": "boolean"},
    bytes=_INTEGER,
    changed={"type": "boolean", "description": "false: the rules were the same, and no version was made."},
)
_FINDING: Final = _object(
    "file line column message",
    file=_text("The path of a file; of a document of the API `api:DOMAIN`, in JSON with a pointer."),
    line=_INTEGER | {"description": "From 1; 0 if there is no such place."},
    column=_INTEGER,
    message=_text(),
    kind=_text("Of a warning."),
    pointer=_text("In JSON: the place as a JSON Pointer (RFC 6901)."),
)
_PROBLEM: Final = _object(
    "type title status detail",
    type=_text(),
    title=_text(),
    status=_INTEGER,
    detail=_text(),
    version=_text("The present version, where the request named another one."),
    owner=_text("The source that has the domain, where it is not the API."),
    errors=_list(_ref("Finding")),
)
_LIMIT: Final = {
    "type": ["object", "null"],
    "properties": {"rule": _text(), "place": _MAYBE_TEXT, "limit": _text(), "requests": _MAYBE_INTEGER},
}
_SCHEMAS: Final = {
    "Version": _VERSION,
    "Finding": _FINDING,
    "Problem": _PROBLEM,
    "Documents": _object(
        "store trouble documents",
        store=_MAYBE_TEXT | {"description": "Where they are kept; null: nowhere, and none can be made."},
        trouble=_MAYBE_TEXT | {"description": "Why they cannot be read or written now."},
        documents=_list(_ref("Version")),
    ),
    "History": _object("domain versions", domain=_text(), versions=_list(_ref("Version"))),
    "Check": _object(
        "rules domains errors warnings notes",
        rules=_MAYBE_INTEGER | {"description": "Of all sources together; null: there are errors."},
        domains=_MAYBE_INTEGER,
        errors=_list(_ref("Finding")),
        warnings=_list(_ref("Finding")),
        notes=_list(_ref("Finding")),
    ),
    "Diff": _object(
        "same added removed changed rules changes",
        same={"type": "boolean", "description": "No descriptor gets another limit."},
        added=_INTEGER,
        removed=_INTEGER,
        changed=_INTEGER,
        rules=_list(_INTEGER) | {"description": "How many there are now, and how many there would be."},
        changes=_list(
            description="The first 1,000.",
            items=_object(
                "kind domain descriptors request old new differences counters",
                kind={"type": "string", "enum": ["added", "removed", "changed"]},
                domain=_text(),
                descriptors=_list(_text()),
                request=_list(_object("key value", key=_text(), value=_text())),
                old=_LIMIT,
                new=_LIMIT,
                differences=_list(_object("what old new", what=_text(), old=_text(), new=_text())),
                counters={"type": ["string", "null"], "enum": ["kept", "afresh", None]},
            ),
        ),
    ),
}

_ETAG: Final = {"ETag": {"schema": {"type": "string"}, "description": "The version, in quotes."}}
_RULES: Final = {"application/yaml": {"schema": {"type": "string"}}, "application/json": {"schema": {"type": "object"}}}
_BODY: Final = {"required": True, "description": "The rules, with `domain` in them.", "content": _RULES}


def _parameter(name: str, where: str, description: str, *, required: bool = False) -> _Described:
    return {
        "name": name,
        "in": where,
        "required": required,
        "description": description,
        "schema": {"type": "string"},
    }


_DOMAIN: Final = _parameter("domain", "path", "The domain; `/` in it is `%2F`.", required=True)
_IF_MATCH: Final = _parameter("If-Match", "header", 'The version that this replaces: `"7-3f9a2c1b04d5e6f7"`, or `*`.')
_NOTES: Final = [
    _parameter("why", "query", "The reason, for the history and the log."),
    _parameter("who", "query", "The name of who does it, beside that of the token."),
]


def _json(name: str, description: str, *, etag: bool = False) -> _Described:
    found = {"description": description, "content": {"application/json": {"schema": _ref(name)}}}
    return found | ({"headers": _ETAG} if etag else {})


def _problems(statuses: str) -> dict[str, _Described]:
    content = {"application/problem+json": {"schema": _ref("Problem")}}
    return {status: {"description": _WHY[status], "content": content} for status in statuses.split()}


_WHY: Final = {
    "400": "The domain or a parameter is wrong.",
    "401": "The token is missing, or wrong.",
    "403": "The token may not change this domain, or a page of another site asks.",
    "404": "There is no such document or version.",
    "408": "The body did not arrive in time.",
    "409": "Another source has the domain, or the version is a deletion.",
    "412": "Another version is present.",
    "413": "The document is too large.",
    "415": "The body is neither YAML nor JSON.",
    "422": "The rules cannot be loaded with it; `errors` has everything that is wrong.",
    "428": "Neither If-Match nor If-None-Match is there.",
    "429": "Too many wrong tokens came from the address.",
    "501": "RULES_STORE is not set.",
    "503": "What keeps the rules cannot be reached; those in force stay.",
}
_CHANGES: Final = "400 401 403 404 409 412 413 422 428 429 501 503"


def _operation(name: str, summary: str, responses: Mapping[str, _Described], **more: Any) -> dict[str, Any]:
    return {"operationId": name, "summary": summary, "responses": responses, **more}


_TEXT: Final[_Described] = {"description": "The rules as they were put.", "headers": _ETAG, "content": _RULES}

DESCRIPTION: Final[_Described] = {
    "openapi": "3.1.0",
    "info": {
        "title": "ratelimit: rules",
        "version": __version__,
        "description": "The rules of each domain as a document, on the operator's port; see docs/rules-api.md.",
    },
    "servers": [{"url": "/"}],
    "security": [{"bearer": []}],
    "paths": {
        "/rules": {
            "get": _operation(
                "listRules",
                "The domains whose rules are kept here",
                {"200": _json("Documents", "The documents.")} | _problems("401 503"),
            )
        },
        "/rules/{domain}": {
            "parameters": [_DOMAIN],
            "get": _operation(
                "getRules",
                "The rules of a domain as they were put",
                {"200": _TEXT, "304": {"description": "The version is the one of If-None-Match."}}
                | _problems("400 401 404 409 501 503"),
                parameters=[_parameter("If-None-Match", "header", "A version that the client has.")],
            ),
            "put": _operation(
                "putRules",
                "Change the rules of a domain",
                {
                    "200": _json("Version", "The new version.", etag=True),
                    "201": _json("Version", "The first version, or the first after a deletion.", etag=True),
                }
                | _problems(f"{_CHANGES} 408 415"),
                parameters=[
                    _IF_MATCH,
                    _parameter("If-None-Match", "header", "`*`: the domain has no rules here."),
                    *_NOTES,
                ],
                requestBody=_BODY,
            ),
            "delete": _operation(
                "deleteRules",
                "Delete the rules of a domain; the history stays for 30 days",
                {"200": _json("Version", "The deletion.", etag=True)} | _problems(_CHANGES),
                parameters=[_IF_MATCH, *_NOTES],
            ),
        },
        "/rules/{domain}/check": {
            "parameters": [_DOMAIN],
            "post": _operation(
                "checkRules",
                "What `ratelimit check` says of rules, which are not changed",
                {"200": _json("Check", "The findings; errors too.")} | _problems("400 401 403 408 409 413 415 429 503"),
                requestBody=_BODY,
            ),
        },
        "/rules/{domain}/diff": {
            "parameters": [_DOMAIN],
            "post": _operation(
                "diffRules",
                "What `ratelimit diff` says of rules, against those in force, which are not changed",
                {"200": _json("Diff", "The descriptors that would get another limit.")}
                | _problems("400 401 403 408 409 413 415 422 429 503"),
                requestBody=_BODY,
            ),
        },
        "/rules/{domain}/history": {
            "parameters": [_DOMAIN],
            "get": _operation(
                "listVersions",
                "The last versions, the newest first",
                {"200": _json("History", "The versions.")} | _problems("400 401 404 501 503"),
            ),
        },
        "/rules/{domain}/history/{version}": {
            "parameters": [_DOMAIN, _parameter("version", "path", "A version, or its number.", required=True)],
            "get": _operation(
                "getVersion", "The rules of a version", {"200": _TEXT} | _problems("400 401 404 501 503")
            ),
        },
        "/rules/{domain}/rollback": {
            "parameters": [_DOMAIN],
            "post": _operation(
                "rollBackRules",
                "Make the rules of an old version the present ones, as a new version",
                {"200": _json("Version", "The new version.", etag=True)} | _problems(_CHANGES),
                parameters=[
                    _IF_MATCH,
                    _parameter("to", "query", "The old version, or its number.", required=True),
                    *_NOTES,
                ],
            ),
        },
    },
    "components": {
        "schemas": _SCHEMAS,
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
    },
}
