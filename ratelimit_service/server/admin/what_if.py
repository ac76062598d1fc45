"""An estimate of what another number in place of a rule's limit would have refused lately, from the sketches of hits.

They have, of each descriptor that asks much, its hits of the last five to ten minutes, and how many were refused; not
when they came. So it is taken that the hits of a descriptor

- that was refused came evenly in those windows in which it was refused: what such a window allows grows with the limit;
- that was not refused came evenly in all windows. A higher limit would not have refused it either, which is exact;
- of a rule in shadow mode, of which the sketches do not know what it would have refused, came evenly in all windows.

Of a window that is longer than that time, one is taken to be under way.
"""

from collections.abc import Iterable
from math import ceil
from typing import Any, NamedTuple

from ratelimit_service.errors import RpcError, Status
from ratelimit_service.model import MAX_REQUESTS
from ratelimit_service.rules.rule import amount_in_words
from ratelimit_service.server.history import rule_named
from ratelimit_service.server.state import ServiceState
from ratelimit_service.server.top_descriptors import TopDescriptors, of_rule
from ratelimit_service.system.clock import SECOND


class Asked(NamedTuple):
    """The cost that a descriptor has asked lately."""

    hits: float
    refused: float


def would_refuse(asked: Asked, limit: int, requests: int, windows: float) -> float:
    """The cost that another limit of `requests` would have refused of what was asked, in so many windows."""
    hits, refused = asked
    allowed = hits - refused
    if not refused:
        return 0 if requests >= limit else evenly_refused(hits, requests, windows)
    if windows > 1:
        allowed = allowed * requests / limit if limit else requests * windows
    else:
        allowed = max(0, allowed + requests - limit)
    return hits - min(hits, allowed)


def evenly_refused(hits: float, requests: int, windows: float) -> float:
    """The cost that a limit of `requests` refuses of hits that came evenly in so many windows."""
    return max(0, hits - requests * max(1, windows))


class WhatIf:
    """Answers what other limits would have refused."""

    def __init__(self, state: ServiceState, hot: TopDescriptors) -> None:
        self._state = state
        self._hot = hot

    async def answer(self, domain: str, name: str, wanted: str | None) -> dict[str, Any]:
        """As JSON, for the rule of this name and so many requests, or as many as it allows.

        RpcError if there is no such rule, it has no such limit, or that is not a number.
        """
        rule = await rule_named(self._state.counted.book, domain, name)
        limit = rule.limit
        if limit is None or limit.kind.only_counted_so:
            why = "this is known only for a limit that counts by itself in a window"
            raise RpcError(Status.INVALID_ARGUMENT, f"{domain} {name}: {why}")
        requests = limit.requests if wanted is None else _number(wanted)
        counts, seconds = self._hot.recent()
        is_of_rule = of_rule(domain, name)
        asked = [
            Asked(counts.allowed.counts.get(key, 0) + refused, refused)
            for key in filter(is_of_rule, {**counts.allowed.counts, **counts.refused.counts})
            for refused in [counts.refused.counts.get(key, 0)]
        ]
        windows, now, then = seconds * SECOND / limit.window, limit.ceiling, requests + limit.exceed
        if rule.shadow:
            was, would = ([evenly_refused(one.hits, most, windows) for one in asked] for most in (now, then))
        else:
            was, would = [one.refused for one in asked], [would_refuse(one, now, then, windows) for one in asked]
        return {
            "seconds": round(seconds),
            "limit": amount_in_words(limit),
            "requests": requests,
            "keys": len(asked),
            "hits": ceil(sum(one.hits for one in asked)),
            "was": _summed(was),
            "would": _summed(was if requests == limit.requests else would),
            "estimate": rule.shadow or requests < limit.requests or (requests > limit.requests and any(was)),
            "error": ceil(counts.error),
            "skipped": counts.allowed.skipped + counts.refused.skipped,
            "place": "" if rule.place is None else rule.place.short,
            "yaml": f"requests_per_unit: {requests}",
        }


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) > MAX_REQUESTS:
        raise RpcError(Status.INVALID_ARGUMENT, f"requests={text[:20]} is not a number from 0 to {MAX_REQUESTS}")
    return int(text)


def _summed(refused: Iterable[float]) -> dict[str, int]:
    """The cost that is refused, and of how many descriptors."""
    found = [round(one) for one in refused if one >= 0.5]
    return {"refused": sum(found), "keys": len(found)}
