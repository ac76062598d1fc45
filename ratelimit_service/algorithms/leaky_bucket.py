"""Leaky bucket, as a meter: a request adds its cost, the bucket leaks at a constant rate, an overflow is denied.

The bucket leaks L per window and holds B (`burst`, by default L). Its content is what is missing in a token bucket, so
both are one function. Under continuous overload exactly the outflow is allowed, at any rate of requests.

State: as for token_bucket: the moment when the bucket is empty.
"""

from typing import Final

from ratelimit_service.algorithms.token_bucket import (
    STATE,
    give,
    hit,
    leased_from,
    leases,
    owe,
    problem,
    room_after,
    staggered,
    term,
    term_end,
)

__all__ = [
    "STATE",
    "give",
    "hit",
    "leased_from",
    "leases",
    "name",
    "owe",
    "problem",
    "room_after",
    "staggered",
    "term",
    "term_end",
]

name: Final = "leaky_bucket"
