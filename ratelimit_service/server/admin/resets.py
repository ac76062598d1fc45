"""Resets the counters of a descriptor for `/counters/reset`, in an engine, of one worker if there are several.

Request and answer are JSON in bytes, as those of `/bans`.
"""

import json
import logging
from functools import partial
from typing import Any, Final

from ratelimit_service.errors import RpcError, Status, StoreError
from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.rules.address import from_operator
from ratelimit_service.rules.problems import printable, shortened
from ratelimit_service.rules.rule import Entries, entries_in_words, plural
from ratelimit_service.server.admin.answers import TaskMethod
from ratelimit_service.server.admin.changes import read_change
from ratelimit_service.stores.descriptor import limiting_rules, looks
from ratelimit_service.telemetry.logs import about

log = logging.getLogger(__name__)

_MAX_WAITING: Final = 64
"""Requests that wait for the store."""


def reset_method(limiter: Limiter) -> TaskMethod:
    """The method that resets counters of a limiter's store, as `resetting` asks for."""
    busy, failed = "too many resets at once", "counters could not be reset"
    return TaskMethod(partial(_reset, limiter), _MAX_WAITING, busy=busy, failed=failed)


async def _reset(limiter: Limiter, body: bytes) -> bytes:
    domain, pairs, who = json.loads(body)
    book, store = limiter.book, limiter.store
    if book is None:
        raise RpcError(Status.UNAVAILABLE, "no rate limit configuration loaded")
    entries: Entries = from_operator(tuple([(key, value) for key, value in pairs]))
    shown = book.shown(domain, entries)
    rules = limiting_rules(book, domain, entries)
    words = f"{shortened(entries_in_words(shown))} in domain {shortened(domain)}"
    try:
        reset = await store.reset(list(looks(book, domain, entries, rules)))
    except StoreError as error:
        log.warning("resetting %s for %s failed, perhaps in part: %s", words, printable(who), error)
        raise RpcError(Status.UNAVAILABLE, f"counters cannot be reset: {error}") from error
    if not rules and not reset:
        raise RpcError(Status.NOT_FOUND, f"no rule limits {words}, and it has no counter; /explain says why")
    fields = about("counters_reset", domain=domain, entries=[f"{key}={value}" for key, value in shown], who=who)
    log.info("reset by %s: %s of %s", printable(who), plural(reset, "counter"), words, extra=fields)
    found: dict[str, Any] = {
        "domain": domain,
        "entries": [{"key": key, "value": value} for key, value in shown],
        "rules": [".".join(rule.path) for rule in rules],
        "reset": reset,
        "store": store.name,
    }
    return json.dumps(found, ensure_ascii=False).encode()


def resetting(body: bytes, remote: str) -> bytes:
    """A request to reset the counters of the descriptor of a JSON body. RpcError if the body is wrong."""
    found = read_change("a reset of counters", body, {"domain", "entries"}, remote)
    if not found["domain"] or not found["entries"]:
        raise RpcError(Status.INVALID_ARGUMENT, "a reset needs a domain and an entry: it is for one descriptor")
    return json.dumps([found["domain"], found["entries"], found["who"]], ensure_ascii=True).encode()
