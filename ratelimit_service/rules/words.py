"""Rules as one says them."""

from collections.abc import Iterator

from ratelimit_service.model import Limit
from ratelimit_service.rules.rule import REQUEST, Rule


def limit_in_words(limit: Limit | None) -> str:
    """`10 requests per minute`."""
    if limit is None:
        return "unlimited"
    if limit.requests == 0:
        return f"no requests at all (0 per {window_in_words(limit)})"
    return f"{counted(limit.requests, 'request')} per {window_in_words(limit)}"


def window_in_words(limit: Limit) -> str:
    """`minute`, or `5 minutes`."""
    return units_in_words(limit.unit.name, limit.window // limit.unit.window)


def units_in_words(unit: str, times: int) -> str:
    """The same, of a unit by its name."""
    return unit.lower() if times == 1 else f"{times} {unit.lower()}s"


def counted(number: int, noun: str) -> str:
    """`1 rule`, or `2,000 rules`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def counting_in_words(rule: Rule) -> list[str]:
    """How the rule counts, where it does not as Envoy does: the algorithm, and what it was told."""
    return list(_counting(rule))


def _counting(rule: Rule) -> Iterator[str]:
    limit = rule.limit
    if limit is None:
        return
    algorithm = rule.algorithm.name
    fixed = algorithm == "fixed_window"
    if not fixed:
        yield algorithm.replace("_", " ")
    if limit.burst:
        yield f"burst {limit.burst:,}"
    if algorithm == "sub_windows":
        yield f"{limit.parts} parts"
    if limit.first_request:
        yield "from the first request"
    if limit.count_refused != fixed:
        yield "refused count too" if limit.count_refused else "refused do not count"
    if limit.exceed:
        yield f"may exceed by {limit.exceed:,}"
    if rule.together == REQUEST:
        yield "charged together"
    if rule.on_store_failure:
        yield f"{rule.on_store_failure} without Redis"
