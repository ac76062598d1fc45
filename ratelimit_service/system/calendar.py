"""Windows of a calendar: days, weeks, months, quarters and years as the clocks of a time zone show them.

Laws:

1. A window begins when the clocks of its zone first show its start, or a later time. So a midnight that they skip is
   the first moment after it, and of a midnight that they show twice the first one counts.
2. Windows follow each other without a gap, and none is empty: a day that a zone skips whole has none.
3. In a month that is too short for the day on which windows begin, they begin on its last day.
"""

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from ratelimit_service.system.clock import DAY, SECOND

UNITS: Final = {"day": DAY, "week": 7 * DAY, "month": 30 * DAY, "quarter": 90 * DAY, "year": 365 * DAY}
"""The units, with the length that Envoy's units give them. Their windows may be longer or shorter."""

WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_DEFAULT_STARTS: Final = {"day": "00:00", "week": "monday", "month": "1", "quarter": "01-01", "year": "01-01"}
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}

Edges = tuple[int, int, int, int]
"""The begin and the end of a window, and the ends of the next two."""


class Calendar:
    """The windows of one unit in one zone; ValueError if there are none such.

    `start` is the time of a day, `06:00`; the day of a week, `monday`; the day of a month, `15`; month and day of a
    year, `04-06`, or of any quarter. Empty: midnight, Monday, the first.
    """

    __slots__ = ("_edges", "_first", "_zone", "start", "unit", "zone")

    def __init__(self, unit: str, start: str = "", zone: str = "UTC") -> None:
        self.unit = unit
        self._first = _read_start(unit, start or _DEFAULT_STARTS[unit])
        self.start = _start_text(unit, *self._first)
        self.zone = zone
        """By its IANA name."""
        self._zone = open_zone(zone)
        self._edges: Edges = (0, 0, 0, 0)

    @property
    def length(self) -> int:
        """About how long a window is: a month 30 days, a quarter 90."""
        return UNITS[self.unit]

    @property
    def key(self) -> str:
        """All that the windows depend on."""
        return f"{self.unit}/{self.start}/{self.zone}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calendar) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<Calendar {self.key}>"

    def __str__(self) -> str:
        start = "" if self.start == _DEFAULT_STARTS[self.unit] else f" from {self.start}"
        match self.unit:
            case "week":
                start = f" from {self.start.capitalize()}"
            case "month" if start:
                start = f" from the {_ordinal(int(self.start))}"
        return f"calendar {self.unit}{start}, {self.zone}"

    def edges(self, now: int) -> Edges:
        """The edges of the window that `now` is in, and of the next two."""
        edges = self._edges
        if not edges[0] <= now < edges[1]:
            # Once in a window. Threads that do so at the same time find the same.
            self._edges = edges = self._edges_at(now)
        return edges

    def local_text(self, moment: int) -> str:
        """The time that the clocks of the zone show, such as `2026-11-15 00:00:00+01:00`."""
        return datetime.fromtimestamp(moment // SECOND, self._zone).isoformat(" ")

    def _edges_at(self, now: int) -> Edges:
        number = self._window_of(self._shown(now // SECOND))
        edges = [self._first_shown(self._start_of(number))]
        while len(edges) < 4:
            number += 1
            edge = self._first_shown(self._start_of(number))
            if edge <= now:  # the clocks went back, to before a start that they had shown
                edges = [edge]
            elif edge > edges[-1]:
                edges.append(edge)
        return edges[0], edges[1], edges[2], edges[3]

    def _window_of(self, shown: datetime) -> int:
        """The number of the last window whose start is not after the time that a clock shows."""
        month, first = self._first
        match self.unit:
            case "day":
                return (shown - timedelta(minutes=first)).toordinal()
            case "week":
                return (shown.toordinal() - 1 - first) // 7
        months = shown.year * 12 + shown.month - 1
        if shown.day < _day_in(months, first):
            months -= 1
        return (months - month) // _MONTHS[self.unit]

    def _start_of(self, number: int) -> datetime:
        """The time that the clocks show when the window with this number begins."""
        month, first = self._first
        match self.unit:
            case "day":
                return datetime.fromordinal(number) + timedelta(minutes=first)
            case "week":
                return datetime.fromordinal(number * 7 + 1 + first)
        months = number * _MONTHS[self.unit] + month
        return datetime(months // 12, months % 12 + 1, _day_in(months, first))  # noqa: DTZ001 - what a clock shows

    def _first_shown(self, time: datetime) -> int:
        """The moment at which the clocks show this time for the first time, or skip it."""
        local = time.replace(tzinfo=self._zone)
        second = int(local.timestamp())
        if self._shown(second) != time:
            # Skipped. Python takes it as shown by the clocks before the change, and with `fold` by those after it: the
            # one is later than the change, the other earlier.
            earliest = int(local.replace(fold=1).timestamp())
            second = earliest + bisect_left(range(earliest, second), time, key=self._shown)
        return second * SECOND

    def _shown(self, second: int) -> datetime:
        return datetime.fromtimestamp(second, self._zone).replace(tzinfo=None, fold=0)


@lru_cache(1000)
def calendar_of(unit: str, start: str, zone: str) -> Calendar:
    """The calendar with these windows: one object for all limits, so that an edge is computed once for all of them."""
    return Calendar(unit, start, zone)


def open_zone(name: str) -> ZoneInfo:
    """The time zone with this IANA name, as the system has it or else the package tzdata; ValueError if none has."""
    # The system has folders and files beside the zones: those with leap seconds, and what depends on the machine.
    if _ZONE.fullmatch(name) and name.partition("/")[0] not in _NO_ZONES:
        with suppress(LookupError, ValueError, OSError):
            return ZoneInfo(name)
    raise ValueError(f"no time zone has the name {name}")


@cache
def zone_names() -> Mapping[str, str]:
    """The names of all zones, by what may be meant by them in small letters: the name, or the city alone."""
    # Reads hundreds of files, once: a rules file may have a thousand mistakes.
    names = sorted(available_timezones())
    return {name.lower().rpartition("/")[2]: name for name in names} | {name.lower(): name for name in names}


_ZONE: Final = re.compile("[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")
_NO_ZONES: Final = frozenset({"posix", "right", "posixrules", "localtime", "Factory"})


def _read_start(unit: str, text: str) -> tuple[int, int]:
    """The month of a year, counted from 0, and its day; or 0, and the day of a week or the minute of a day."""
    match unit:
        case "day":
            found = re.fullmatch("([0-9]{1,2}):([0-9]{2})", text)
            if found and int(found[1]) < 24 and int(found[2]) < 60:
                return 0, int(found[1]) * 60 + int(found[2])
            raise ValueError('is not a time of day, such as "06:00"')
        case "week":
            return 0, WEEKDAYS.index(text)
        case "month":
            if re.fullmatch("[0-9]{1,2}", text) and 1 <= int(text) <= 31:
                return 0, int(text)
            raise ValueError("is not a day of a month, 1 to 31")
    found = re.fullmatch("([0-9]{1,2})-([0-9]{1,2})", text)
    if not found or not 1 <= int(found[1]) <= 12 or not int(found[2]):
        raise ValueError('is not a month and day, such as "04-06"')
    month, day = int(found[1]), int(found[2])
    days = monthrange(_LEAP_YEAR, month)[1]
    if day > days:
        raise ValueError(f"is not a date: month {month} has {days} days at most")
    return month - 1, day


_LEAP_YEAR: Final = 2000


def _start_text(unit: str, month: int, first: int) -> str:
    match unit:
        case "day":
            return f"{first // 60:02}:{first % 60:02}"
        case "week":
            return WEEKDAYS[first]
        case "month":
            return str(first)
    return f"{month + 1:02}-{first:02}"


def _day_in(months: int, day: int) -> int:
    """The day, or the last one of the month if that is shorter. Months are counted from the year 0."""
    return day if day <= 28 else min(day, monthrange(months // 12, months % 12 + 1)[1])


def _ordinal(number: int) -> str:
    """`1st`, `22nd`, `15th`."""
    suffix = "th" if 11 <= number <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
