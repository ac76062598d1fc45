"""Ways of counting, by the name a rule gives them. To add one: its module, its Lua twin, one line here."""

from ratelimit_service.algorithms.algorithm import Algorithm, State

__all__ = ["NAMES", "Algorithm", "State", "open_algorithm"]

NAMES = ("fixed_window",)


def open_algorithm(name: str) -> Algorithm:
    """The algorithm of that name; KeyError for any other."""
    match name:
        case "fixed_window":
            from ratelimit_service.algorithms import fixed_window

            return fixed_window
        case _:
            raise KeyError(name)
