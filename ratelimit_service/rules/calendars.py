"""Warns of fixed windows of months, weeks and years: they are not what a calendar has."""

from typing import Final

from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.kinds import Span
from ratelimit_service.rules.report import Placed, Report
from ratelimit_service.rules.words import units_in_words
from ratelimit_service.system.clock import DAY

_MOST_LINES: Final = 10


class Calendars:
    """Those of one file. All that say the same get one warning: a file of monthly quotas has hundreds."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, Placed]] = {}
        """Where, by message and line."""

    def add(self, limit: Limit, span: Span, at: Placed) -> None:
        """Take in the limit of a fixed window that follows the clock; `span` is what its unit says."""
        times = limit.window // span.unit.window
        words = units_in_words(span.unit.name, times) if times > 1 else f"a {span.unit.name.lower()}"
        days = limit.window // DAY
        match span.unit:
            case Unit.WEEK:
                really = (
                    f"{words} {'begin' if times > 1 else 'begins'} on a Thursday at 00:00 UTC, as 1970-01-01 was one"
                )
            case Unit.MONTH | Unit.YEAR:
                really = f"{words} {'are' if times > 1 else 'is'} {days} days, counted from 1970-01-01, in no calendar"
            case _:
                return
        message = f"{really}; if that is meant, write unit: {days} days, which counts the same"
        self._found.setdefault(message, {}).setdefault(at.line, at)

    def warn(self, report: Report) -> None:
        """Report what was found."""
        for message, places in self._found.items():
            first, *others = places.values()
            lines = [str(other.line) for other in others[:_MOST_LINES]]
            if len(others) > _MOST_LINES:
                lines.append("…")
            more = f" (also in line{'s' if len(others) > 1 else ''} {', '.join(lines)})" if others else ""
            report.warn(first, "calendar", f"{message}{more}")
