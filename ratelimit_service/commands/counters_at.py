"""`ratelimit counters --reset --at`: counters of a running service, which resets them by its own rules."""

import http.client
import json
from typing import Any, Final

from ratelimit_service.commands.operator_port import NOT_THERE, OperatorPort, PortAccess, PortReply, entries_as_json
from ratelimit_service.errors import StoreError, UnreachableError
from ratelimit_service.rules.problems import printable
from ratelimit_service.rules.rule import Entries

_PATH: Final = "/counters/reset"

_WITH_REASON: Final = {
    http.client.BAD_REQUEST,
    http.client.FORBIDDEN,
    http.client.NOT_FOUND,
    http.client.SERVICE_UNAVAILABLE,
}
"""The statuses of responses whose one line says what is wrong."""


def reset_at(url: str, access: PortAccess, domain: str, entries: Entries) -> dict[str, Any]:
    """Reset the counters of a descriptor; the response. Raises StoreError, with one line that names the URL."""
    port = OperatorPort(url, access)
    try:
        reply = port.ask("POST", _PATH, json.dumps(entries_as_json(domain, entries)))
    except StoreError as error:
        raise type(error)(f"{url}: {error}") from error
    found = reply.json()
    if found is None or not {"entries", "reset", "store"} <= found.keys():
        raise _problem(url, reply)
    return found


def _problem(url: str, reply: PortReply) -> StoreError:
    if reply.status in NOT_THERE and "/rlconfig" in reply.text:
        return StoreError(f"{url}: that service is older than this command: it has no POST {_PATH}")
    if reply.status in _WITH_REASON:
        return StoreError(f"{url}: {printable(reply.text.strip())}")
    return UnreachableError(f"{url}: it answers {reply.status} to POST {_PATH}: is that the debug port of a service?")
