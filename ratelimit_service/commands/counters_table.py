"""Counters as a table, the fullest first, and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from typing import Any, Final, NamedTuple

from ratelimit_service.rules.report import printable
from ratelimit_service.rules.rule import Entries, limit_in_words, plural
from ratelimit_service.stores.redis.counters_decode import Content, Counter
from ratelimit_service.system.clock import DAY, HOUR, MINUTE, SECOND

_DIGEST: Final = "(too long: a digest)"


class Row(NamedTuple):
    """A counter in the table. Rows are ordered by fullness, then by what is used: heapq evicts the least of them."""

    fullness: float
    used: int
    number: int
    counter: Counter
    content: Content


@dataclass
class Listing:
    """The fullest counters, `most` of them, and how many there are of each kind."""

    most: int
    rows: list[Row] = field(default_factory=list)
    total: int = 0
    untouched: int = 0
    """Not in `total`: keys of which nothing is used, because the window is over or all was refunded. They expire."""
    without_rule: int = 0
    digests: int = 0
    left_out: int = 0
    slots_moved: bool = False

    def add(self, counter: Counter, content: Content) -> None:
        """Count the counter, and keep it if it is among the fullest."""
        if content.used == 0:
            self.untouched += 1
            return
        self.total += 1
        if not counter.descriptor:
            self.digests += 1
        elif counter.rule is None:
            self.without_rule += 1
        row = Row(content.fullness, content.used or 0, -self.total, counter, content)
        if len(self.rows) < self.most:
            heappush(self.rows, row)
        elif self.most:
            heappushpop(self.rows, row)

    @property
    def fullest(self) -> list[Row]:
        """The rows in the order of the table."""
        return sorted(self.rows, key=lambda row: (-row.fullness, -row.used, row.counter.key))


def as_table(listing: Listing) -> str:
    """The table as text; there is at least one counter."""
    rows = [_HEADER, *(_cells(row.counter, row.content) for row in listing.fullest)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(cells, widths) for cells in rows] if listing.rows else []
    lines.append(f"{counters_in_words(listing.total)}{_shown(len(listing.rows), listing.total)}")
    if listing.without_rule:
        lines.append(
            f"{listing.without_rule:,} of them charged by none of the present rules: by limits sent with requests, or "
            "by rules that were changed or are gone"
        )
    if listing.digests:
        lines.append(f"{listing.digests:,} of them under a digest: the name was too long to tell the descriptor")
    return "\n".join(
        [*lines, *notes(untouched=listing.untouched, left_out=listing.left_out, slots_moved=listing.slots_moved)]
    )


def _shown(rows: int, total: int) -> str:
    if rows == total:
        return ""
    if rows == 0:
        return ", none of them shown"
    return ", the fullest is shown" if rows == 1 else f", the {rows:,} fullest are shown"


def notes(*, untouched: int = 0, left_out: int, slots_moved: bool) -> Iterator[str]:
    """Lines below the table."""
    if untouched:
        yield f"{untouched:,} more to which nothing is charged now: Redis drops such by itself"
    if left_out:
        yield (
            f"{counters_in_words(left_out)} besides may be of that rule: a digest stands for too long a descriptor. "
            "Ask for the descriptor itself, or for the whole domain"
        )
    if slots_moved:
        yield "Slots of the cluster moved meanwhile: some counters may have been missed. Run it again"


def as_json(domain: str, listing: Listing) -> dict[str, Any]:
    """The listing as JSON; times are seconds."""
    return {
        "domain": domain,
        "total": listing.total,
        "untouched": listing.untouched,
        "without_rule": listing.without_rule,
        "digests": listing.digests,
        "left_out": listing.left_out,
        "slots_moved": listing.slots_moved,
        "counters": [_row_as_json(row.counter, row.content) for row in listing.fullest],
    }


def counters_in_words(count: int) -> str:
    """`1,234 counters`."""
    return plural(count, "counter")


def entries_in_words(entries: Entries) -> str:
    """`user=ada path=/cart`."""
    return printable(" ".join(f"{key}={value}" for key, value in entries))


_HEADER: Final = ("used", "left", "resets in", "expires in", "algorithm", "rule", "descriptor")
_RIGHT: Final = 4
"""The first columns, numbers and times, are aligned to the right."""


def _cells(counter: Counter, content: Content) -> tuple[str, ...]:
    rule, limit = counter.rule, counter.limit
    used = "?" if content.used is None else f"{content.used:,}"
    if rule is not None:
        name = ".".join(rule.path)
    else:
        name = "(sent with requests?)" if counter.may_be_sent else "(none)"
    return (
        used if rule is None else f"{used} of {limit.burst or limit.requests:,}",
        "?" if content.remaining is None else f"{content.remaining:,}",
        span(content.reset_after),
        "never" if content.expires_after is None else span(content.expires_after),
        counter.algorithm.replace("_", " ") or "?",
        printable(name),
        printable(counter.descriptor) or _DIGEST,
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.rjust(width) if index < _RIGHT else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


_SPANS: Final = ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", SECOND, "s"))


def span(microseconds: int) -> str:
    """`41 s`, `2 min 5 s`, `3 d 4 h`; rounded up."""
    for unit, name, part, part_name in _SPANS:
        if microseconds >= unit:
            whole, rest = divmod(-(-microseconds // part), unit // part)
            return f"{whole:,} {name} {rest} {part_name}" if rest else f"{whole:,} {name}"
    return f"{-(-microseconds // SECOND)} s"


def _row_as_json(counter: Counter, content: Content) -> dict[str, Any]:
    rule, limit = counter.rule, counter.limit
    return {
        "key": counter.key.decode(errors="replace"),
        "descriptor": counter.descriptor or None,
        "rule": None if rule is None else ".".join(rule.path),
        "place": str(rule.place) if rule is not None and rule.place else None,
        "algorithm": counter.algorithm or None,
        "limit": None if rule is None else limit_in_words(limit),
        "capacity": None if rule is None else limit.burst or limit.requests,
        "used": content.used,
        "remaining": content.remaining,
        "reset_after": content.reset_after / SECOND,
        "retry_after": _retry(content.retry_after),
        "expires_after": None if content.expires_after is None else content.expires_after / SECOND,
    }


def _retry(microseconds: int | None) -> float | None:
    """Seconds until a hit of cost 1 is allowed; None if it never is, or if that is not known."""
    return None if microseconds is None or microseconds < 0 else microseconds / SECOND
