"""Counters as a table, the fullest first, and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from typing import Any, Final, NamedTuple

from ratelimit_service.rules.report import printable
from ratelimit_service.rules.rule import Entries, counted, limit_in_words
from ratelimit_service.stores.redis.counters_decode import Content, Counter
from ratelimit_service.system.clock import DAY, HOUR, MINUTE, SECOND

_DIGEST: Final = "(too long: a digest)"


class Row(NamedTuple):
    """A counter that is shown; the least interesting comes first."""

    fullness: float
    used: int
    number: int
    counter: Counter
    content: Content


@dataclass
class Seen:
    """What was found."""

    most: int
    rows: list[Row] = field(default_factory=list)
    total: int = 0
    untouched: int = 0
    """Keys besides whose windows are over, or to which all was given back: Redis keeps them a while."""
    without_rule: int = 0
    digests: int = 0
    left_out: int = 0
    moved: bool = False

    def add(self, counter: Counter, content: Content) -> None:
        """Count it, and keep it if it is among the fullest."""
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
        """What is shown, in order."""
        return sorted(self.rows, key=lambda row: (-row.fullness, -row.used, row.counter.key))


def table(seen: Seen) -> str:
    """For people; there is one at least."""
    rows = [_HEADER, *(_cells(row.counter, row.content) for row in seen.fullest)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(cells, widths) for cells in rows] if seen.rows else []
    lines.append(f"{many(seen.total)}{_shown(len(seen.rows), seen.total)}")
    if seen.without_rule:
        lines.append(
            f"{seen.without_rule:,} of them charged by none of the present rules: by limits sent with requests, or by "
            "rules that were changed or are gone"
        )
    if seen.digests:
        lines.append(f"{seen.digests:,} of them under a digest: the name was too long to tell the descriptor")
    return "\n".join([*lines, *notes(untouched=seen.untouched, left_out=seen.left_out, moved=seen.moved)])


def _shown(rows: int, total: int) -> str:
    if rows == total:
        return ""
    if rows == 0:
        return ", none of them shown"
    return ", the fullest is shown" if rows == 1 else f", the {rows:,} fullest are shown"


def notes(*, untouched: int = 0, left_out: int, moved: bool) -> Iterator[str]:
    """What else has to be said of what was found."""
    if untouched:
        yield f"{untouched:,} more to which nothing is charged now: Redis drops such by itself"
    if left_out:
        yield (
            f"{many(left_out)} besides may be of that rule: a digest stands for too long a descriptor. "
            "Ask for the descriptor itself, or for the whole domain"
        )
    if moved:
        yield "Slots of the cluster moved meanwhile: some counters may have been missed. Run it again"


def as_json(domain: str, seen: Seen) -> dict[str, Any]:
    """For programs; times are seconds."""
    return {
        "domain": domain,
        "total": seen.total,
        "untouched": seen.untouched,
        "without_rule": seen.without_rule,
        "digests": seen.digests,
        "left_out": seen.left_out,
        "slots_moved": seen.moved,
        "counters": [_row_as_json(row.counter, row.content) for row in seen.fullest],
    }


def many(count: int) -> str:
    """`1,234 counters`."""
    return counted(count, "counter")


def entries_in_words(entries: Entries) -> str:
    """`user=ada path=/cart`."""
    return printable(" ".join(f"{key}={value}" for key, value in entries))


_HEADER: Final = ("used", "left", "resets in", "expires in", "algorithm", "rule", "descriptor")
_RIGHT: Final = 4
"""So many columns of numbers, and times, are aligned to the right."""


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
    """`41 s`, `2 min 5 s`, `3 d 4 h`; what has begun counts."""
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
    """Seconds until a hit of 1 is allowed; None where it never is, or where nobody knows."""
    return None if microseconds is None or microseconds < 0 else microseconds / SECOND
