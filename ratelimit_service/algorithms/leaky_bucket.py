"""Leaky bucket, as a meter: requests pour in what they cost, it leaks without pause, what would overflow is refused.

It leaks L a window and holds B (`burst`, by default L). It is a token bucket seen from the other side: what is missing
there is what is in this one. So both are one function. Under endless overload exactly the outflow is let through, at
any cadence of requests.

State: as token_bucket's: the moment when it is empty. Hot path.
"""

from typing import Final

from ratelimit_service.algorithms.token_bucket import STATE, hit, problem

__all__ = ["STATE", "hit", "name", "problem"]

name: Final = "leaky_bucket"
