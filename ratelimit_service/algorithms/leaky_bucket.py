"""Leaky bucket, as a meter: requests pour in what they cost, it leaks without pause, what would overflow is refused.

It leaks L a window and holds B (`burst`, by default L). What is missing from a token bucket is what is in this one: the
same bucket seen from the other side, so it is the same function, and exactly the outflow is let through under endless
overload, at any cadence of requests.

State: as token_bucket's: the moment when it is empty. Hot path.
"""

from typing import Final

from ratelimit_service.algorithms.token_bucket import STATE, hit, problem

__all__ = ["STATE", "hit", "name", "problem"]

name: Final = "leaky_bucket"
