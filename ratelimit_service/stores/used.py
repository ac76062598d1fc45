"""How much of a counter is used, also above its limit, by the decision on a look at it. Pure."""

from dataclasses import replace
from typing import Final

from ratelimit_service.algorithms import BUCKETS
from ratelimit_service.algorithms.token_bucket import missing_tokens
from ratelimit_service.model import Decision, Limit

_MANY: Final = 2**52
"""A limit above any count: what is missing from it is the count."""


def endless(limit: Limit, algorithm: str) -> Limit:
    """The limit by which a look tells all that is used."""
    return limit if algorithm in BUCKETS else replace(limit, requests=_MANY, exceed=0)


def used_of(limit: Limit, algorithm: str, look: Decision) -> int:
    """What is used by a look by that limit; 1,700 of 1,000 of one in debt."""
    if algorithm not in BUCKETS:
        return _MANY - look.remaining
    used = limit.most - look.remaining
    return used if look.remaining else max(used, missing_tokens(limit, look.reset_after))
