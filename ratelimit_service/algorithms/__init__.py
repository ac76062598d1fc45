"""The algorithms, by their names in rules. To add one: its module, its Lua twin, its name and its case here."""

from ratelimit_service.algorithms.algorithm import Algorithm, expiry
from ratelimit_service.model import State

__all__ = ["BUCKETS", "NAMES", "PLACES", "Algorithm", "State", "expiry", "open_algorithm"]

PLACES = "places"
"""The algorithm of limits with `concurrency`; no rule chooses it by name."""

BUCKETS = ("token_bucket", "leaky_bucket")
"""Those that have a burst."""

NAMES = ("fixed_window", "sliding_window", "sub_windows", "sliding_log", *BUCKETS)


def open_algorithm(name: str) -> Algorithm:
    """The algorithm of that name; KeyError for any other."""
    match name:
        case "fixed_window":
            from ratelimit_service.algorithms import fixed_window

            return fixed_window
        case "sliding_window":
            from ratelimit_service.algorithms import sliding_window

            return sliding_window
        case "sub_windows":
            from ratelimit_service.algorithms import sub_windows

            return sub_windows
        case "sliding_log":
            from ratelimit_service.algorithms import sliding_log

            return sliding_log
        case "token_bucket":
            from ratelimit_service.algorithms import token_bucket

            return token_bucket
        case "leaky_bucket":
            from ratelimit_service.algorithms import leaky_bucket

            return leaky_bucket
        case "places":
            from ratelimit_service.algorithms.kinds import places

            return places
        case _:
            raise KeyError(name)
