"""The JSON body of a request that changes something: whom it is about, and who asks for it."""

from collections.abc import Iterable
from typing import Any, Final

from ratelimit_service.errors import RpcError, Status
from ratelimit_service.server.admin.json_text import read_json

_MAX_NAME_LENGTH: Final = 50
"""Characters of the name that a client gives: a longer one would leave no room for its address."""


def read_change(what: str, body: bytes, names: set[str], remote: str) -> dict[str, Any]:
    """The fields of a body, which must have these names, and `who`, which may be missing. RpcError if it is wrong.

    All but `entries` are texts. `who` becomes the name that the client gives, which it may have made up, and its
    address, which it has not.
    """

    def invalid(wrong: str) -> RpcError:
        return RpcError(Status.INVALID_ARGUMENT, f"the body is not {what}: {wrong}")

    try:
        found = read_json(body)
    except ValueError as error:
        raise invalid(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise invalid("it is not a JSON object")
    found.setdefault("who", "")
    fields = names | {"who"}
    if found.keys() != fields:
        raise invalid(f"it has the fields {', '.join(sorted(fields))}, and who is optional")
    texts = fields - {"entries"}
    if not all(isinstance(found[name], str) for name in texts):
        raise invalid(f"{', '.join(sorted(texts))} must be strings")
    entries = list(_entries(found["entries"]))
    if None in entries:
        raise invalid('entries must be a list such as [{"key": "user", "value": "ada"}]')
    who = found["who"][:_MAX_NAME_LENGTH]
    return found | {"entries": entries, "who": f"{who} from {remote}" if who else remote}


def _entries(found: object) -> Iterable[tuple[str, str] | None]:
    for entry in found if isinstance(found, list) else (None,):
        match entry:
            case {"key": str(key), "value": str(value), **rest} if not rest:
                yield key, value
            case _:
                yield None
