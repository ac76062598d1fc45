"""Windows of calendars: tables of cases, and a naive calendar that watches the clocks of a zone go."""

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.system.calendar import WEEKDAYS, Calendar, open_zone
from ratelimit_service.system.clock import DAY, MINUTE, SECOND
from tests.sampled import sampled

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(text: str) -> int:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def window(calendar: Calendar, now: str) -> tuple[str, str]:
    """Its begin and its end, as the clocks of the zone show them; seconds are 0."""
    begin, end = (calendar.local_text(edge) for edge in calendar.edges(moment(now))[:2])
    assert begin[16:19] == end[16:19] == ":00"
    return begin[:16] + begin[19:], end[:16] + end[19:]


@pytest.mark.parametrize(
    ("unit", "start", "now", "begin", "end"),
    [
        ("day", "", "2026-11-22T13:40Z", "2026-11-22 00:00+00:00", "2026-11-23 00:00+00:00"),
        ("day", "06:00", "2026-11-22T05:59Z", "2026-11-21 06:00+00:00", "2026-11-22 06:00+00:00"),
        ("day", "6:30", "2026-11-22T06:30Z", "2026-11-22 06:30+00:00", "2026-11-23 06:30+00:00"),
        ("week", "", "2026-11-22T13:40Z", "2026-11-16 00:00+00:00", "2026-11-23 00:00+00:00"),
        ("week", "sunday", "2026-11-22T13:40Z", "2026-11-22 00:00+00:00", "2026-11-29 00:00+00:00"),
        ("week", "thursday", "2026-12-31T13:40Z", "2026-12-31 00:00+00:00", "2027-01-07 00:00+00:00"),
        ("month", "", "2026-11-22T13:40Z", "2026-11-01 00:00+00:00", "2026-12-01 00:00+00:00"),
        ("month", "15", "2026-11-14T23:59:59Z", "2026-10-15 00:00+00:00", "2026-11-15 00:00+00:00"),
        ("month", "15", "2026-11-15T00:00Z", "2026-11-15 00:00+00:00", "2026-12-15 00:00+00:00"),
        ("month", "15", "2026-12-31T00:00Z", "2026-12-15 00:00+00:00", "2027-01-15 00:00+00:00"),
        # A month that is too short has its start on its last day.
        ("month", "31", "2027-02-27T00:00Z", "2027-01-31 00:00+00:00", "2027-02-28 00:00+00:00"),
        ("month", "31", "2027-02-28T00:00Z", "2027-02-28 00:00+00:00", "2027-03-31 00:00+00:00"),
        ("month", "30", "2028-02-28T00:00Z", "2028-01-30 00:00+00:00", "2028-02-29 00:00+00:00"),
        ("month", "29", "2100-02-28T00:00Z", "2100-02-28 00:00+00:00", "2100-03-29 00:00+00:00"),
        ("quarter", "", "2026-11-22T13:40Z", "2026-10-01 00:00+00:00", "2027-01-01 00:00+00:00"),
        ("quarter", "02-01", "2026-11-22T13:40Z", "2026-11-01 00:00+00:00", "2027-02-01 00:00+00:00"),
        ("quarter", "11-01", "2027-01-31T13:40Z", "2026-11-01 00:00+00:00", "2027-02-01 00:00+00:00"),
        ("quarter", "05-31", "2027-02-28T13:40Z", "2027-02-28 00:00+00:00", "2027-05-31 00:00+00:00"),
        ("year", "", "2026-11-22T13:40Z", "2026-01-01 00:00+00:00", "2027-01-01 00:00+00:00"),
        ("year", "04-06", "2026-04-05T23:59:59Z", "2025-04-06 00:00+00:00", "2026-04-06 00:00+00:00"),
        ("year", "2-29", "2027-03-01T00:00Z", "2027-02-28 00:00+00:00", "2028-02-29 00:00+00:00"),
        ("year", "02-29", "2028-02-29T00:00Z", "2028-02-29 00:00+00:00", "2029-02-28 00:00+00:00"),
        ("year", "12-31", "1970-01-01T00:00Z", "1969-12-31 00:00+00:00", "1970-12-31 00:00+00:00"),
    ],
)
def test_each_unit_begins_where_it_is_said_to(unit: str, start: str, now: str, begin: str, end: str) -> None:
    assert window(Calendar(unit, start), now) == (begin, end)


@pytest.mark.parametrize(
    ("zone", "now", "begin", "end", "hours"),
    [
        # The clocks go forward, and back.
        ("Europe/Berlin", "2026-03-29T12:00Z", "2026-03-29 00:00+01:00", "2026-03-30 00:00+02:00", 23),
        ("Europe/Berlin", "2026-10-25T12:00Z", "2026-10-25 00:00+02:00", "2026-10-26 00:00+01:00", 25),
        ("America/New_York", "2026-03-08T12:00Z", "2026-03-08 00:00-05:00", "2026-03-09 00:00-04:00", 23),
        ("America/New_York", "2026-11-01T12:00Z", "2026-11-01 00:00-04:00", "2026-11-02 00:00-05:00", 25),
        # By half an hour.
        ("Australia/Lord_Howe", "2026-10-04T01:00Z", "2026-10-04 00:00+10:30", "2026-10-05 00:00+11:00", 23.5),
        ("Australia/Lord_Howe", "2026-04-05T01:00Z", "2026-04-05 00:00+11:00", "2026-04-06 00:00+10:30", 24.5),
        # By two.
        ("Antarctica/Troll", "2026-03-29T12:00Z", "2026-03-29 00:00+00:00", "2026-03-30 00:00+02:00", 22),
        # From midnight to one, so that the day has no midnight.
        ("Asia/Beirut", "2022-03-27T12:00Z", "2022-03-27 01:00+03:00", "2022-03-28 00:00+03:00", 23),
        ("America/Sao_Paulo", "2018-11-04T12:00Z", "2018-11-04 01:00-02:00", "2018-11-05 00:00-02:00", 23),
        # Back to an hour before midnight, which comes only then; the day before is longer.
        ("America/Sao_Paulo", "2018-02-17T12:00Z", "2018-02-17 00:00-02:00", "2018-02-18 00:00-03:00", 25),
        # From one to midnight, which comes twice; also in the hour that is repeated.
        ("America/Havana", "2026-11-01T04:00Z", "2026-11-01 00:00-04:00", "2026-11-02 00:00-05:00", 25),
        ("America/Havana", "2026-11-01T05:00Z", "2026-11-01 00:00-04:00", "2026-11-02 00:00-05:00", 25),
        # One minute past midnight back to the day before, whose last hour belongs to the day that had begun.
        ("America/St_Johns", "2010-11-07T02:45Z", "2010-11-07 00:00-02:30", "2010-11-08 00:00-03:30", 25),
        # A whole day that Samoa skipped, on its way to the other side of the date line.
        ("Pacific/Apia", "2011-12-30T09:59Z", "2011-12-29 00:00-10:00", "2011-12-31 00:00+14:00", 24),
        ("Pacific/Apia", "2011-12-30T10:00Z", "2011-12-31 00:00+14:00", "2012-01-01 00:00+14:00", 24),
    ],
)
def test_a_day_is_as_long_as_the_clocks_of_its_zone_make_it(
    zone: str, now: str, begin: str, end: str, hours: float
) -> None:
    calendar = Calendar("day", "", zone)
    first, second = calendar.edges(moment(now))[:2]

    assert window(calendar, now) == (begin, end)
    assert (second - first) / (60 * MINUTE) == hours


@pytest.mark.parametrize(
    ("unit", "start", "zone", "now", "begin", "end"),
    [
        ("month", "15", "Europe/Berlin", "2026-03-29T12:00Z", "2026-03-15 00:00+01:00", "2026-04-15 00:00+02:00"),
        ("month", "", "Asia/Tokyo", "2026-10-31T15:00Z", "2026-11-01 00:00+09:00", "2026-12-01 00:00+09:00"),
        ("week", "", "America/New_York", "2026-11-02T04:59Z", "2026-10-26 00:00-04:00", "2026-11-02 00:00-05:00"),
        ("year", "04-06", "Europe/London", "2026-11-22T00:00Z", "2026-04-06 00:00+01:00", "2027-04-06 00:00+01:00"),
        ("week", "friday", "Pacific/Apia", "2012-01-01T00:00Z", "2011-12-31 00:00+14:00", "2012-01-06 00:00+14:00"),
        ("month", "30", "Pacific/Apia", "2012-01-01T00:00Z", "2011-12-31 00:00+14:00", "2012-01-30 00:00+14:00"),
        # The start is skipped, or shown twice.
        ("day", "02:30", "Europe/Berlin", "2026-03-29T01:00Z", "2026-03-29 03:00+02:00", "2026-03-30 02:30+02:00"),
        ("day", "02:30", "Europe/Berlin", "2026-10-25T01:00Z", "2026-10-25 02:30+02:00", "2026-10-26 02:30+01:00"),
        ("day", "06:00", "Pacific/Apia", "2011-12-30T10:00Z", "2011-12-31 00:00+14:00", "2011-12-31 06:00+14:00"),
    ],
)  # fmt: skip
def test_longer_windows_and_other_starts_follow_the_zone_too(
    unit: str, start: str, zone: str, now: str, begin: str, end: str
) -> None:
    assert window(Calendar(unit, start, zone), now) == (begin, end)


CHANGES = [
    ("UTC", "2026-03-29T01:00Z"),
    ("Europe/Berlin", "2026-03-29T01:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00Z"),
    ("America/New_York", "2026-03-08T07:00Z"),
    ("America/New_York", "2026-11-01T06:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00Z"),
    ("America/Sao_Paulo", "2018-11-04T03:00Z"),
    ("America/Sao_Paulo", "2018-02-18T02:00Z"),
    ("Asia/Beirut", "2022-03-26T22:00Z"),
    ("Africa/Cairo", "2023-10-26T21:00Z"),
    ("Asia/Tehran", "2022-03-21T20:30Z"),
    ("America/Havana", "2026-11-01T05:00Z"),
    ("America/St_Johns", "2010-11-07T02:31Z"),
    ("Antarctica/Troll", "2026-03-29T01:00Z"),
    ("Asia/Kathmandu", "2026-01-01T00:00Z"),
    ("Pacific/Chatham", "2026-04-04T14:00Z"),
    ("Africa/Casablanca", "2026-02-15T02:00Z"),
    ("America/Scoresbysund", "2024-03-31T01:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00Z"),
    ("Pacific/Kwajalein", "1993-08-21T12:00Z"),
]
"""A zone, and a moment at which it changes its clocks, if it ever does."""

STARTS_OF_DAYS = ["00:00", "00:15", "02:30", "06:00", "23:30"]

months_and_days = st.tuples(st.integers(1, 12), st.integers(1, 31) | st.integers(28, 31)).filter(
    lambda date: date[1] <= {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}.get(date[0], 31)
)
STARTS = {
    "day": st.sampled_from(["00:00", "00:15", "02:00", "02:30", "03:00", "06:00", "23:30"]),
    "week": st.sampled_from(WEEKDAYS),
    "month": st.integers(1, 31).map(str) | st.integers(28, 31).map(str),
    "quarter": months_and_days.map(lambda date: f"{date[0]:02}-{date[1]:02}"),
    "year": months_and_days.map(lambda date: f"{date[0]:02}-{date[1]:02}"),
}
anytime = st.integers(moment("1990-01-01T00:00Z"), moment("2037-01-01T00:00Z"))
ends_of_months = st.builds(
    lambda year, month, hours: moment(f"{year}-{month:02}-01T00:00Z") + hours * 60 * MINUTE,
    st.integers(1991, 2036),
    st.integers(1, 12),
    st.integers(-5 * 24, 24),
)


@st.composite
def calendars_and_moments(draw: st.DrawFn, unit: str = "") -> tuple[Calendar, int]:
    """Mostly at the end of a month, or when the clocks are changed."""
    zone, change = draw(st.sampled_from(CHANGES))
    unit = unit or draw(st.sampled_from([*STARTS]))
    change_of_clocks = st.integers(-30 * 60, 30 * 60).map(lambda minutes: moment(change) + minutes * MINUTE)
    return Calendar(unit, draw(STARTS[unit]), zone), draw(anytime | ends_of_months | change_of_clocks)


def the_day(year: int, month: int, day: int) -> datetime:
    """Or the last one before it that there is."""
    while True:
        try:
            return datetime(year, month, day)  # noqa: DTZ001 - what a clock shows
        except ValueError:
            day -= 1


def days_with_starts(calendar: Calendar, year: int) -> Iterator[datetime]:
    every_day = (datetime(year, 1, 1) + timedelta(days=day) for day in range(366))  # noqa: DTZ001 - as above
    match calendar.unit:
        case "day":
            hour, minute = map(int, calendar.start.split(":"))
            yield from (day + timedelta(hours=hour, minutes=minute) for day in every_day)
        case "week":
            yield from (day for day in every_day if WEEKDAYS[day.weekday()] == calendar.start)
        case "month":
            yield from (the_day(year, month, int(calendar.start)) for month in range(1, 13))
        case "quarter":
            first, day = map(int, calendar.start.split("-"))
            yield from (the_day(year, month, day) for month in range(1, 13) if month % 3 == first % 3)
        case "year":
            yield the_day(year, *map(int, calendar.start.split("-")))


@lru_cache(100)
def starts_about(calendar: Calendar, year: int) -> list[datetime]:
    return sorted(day for each in (year - 1, year, year + 1) for day in days_with_starts(calendar, each))


def watched(calendar: Calendar, now: int) -> tuple[int, int]:
    """The window that `now` is in: it begins when the clocks first show a start, or a later time.

    Near a start they are looked at each quarter of an hour: all offsets since 1990 are multiples of that.
    """
    zone = ZoneInfo(calendar.zone)
    at = now // (15 * MINUTE) * 15 * MINUTE
    at -= {"day": 3, "week": 9, "month": 33, "quarter": 95, "year": 368}[calendar.unit] * DAY
    latest = datetime.fromtimestamp(at // SECOND, zone).replace(tzinfo=None)
    begin, next_start = at, latest
    while True:
        at += DAY if next_start - latest > timedelta(days=3) else 15 * MINUTE
        latest = max(latest, datetime.fromtimestamp(at // SECOND, zone).replace(tzinfo=None, fold=0))
        if latest >= next_start:
            if at > now:
                return begin, at
            begin = at
            starts = starts_about(calendar, latest.year)
            next_start = starts[bisect_right(starts, latest)]


@pytest.mark.parametrize("unit", STARTS)
@given(data=st.data())
def test_windows_are_those_of_a_watch_on_the_clocks(unit: str, data: st.DataObject) -> None:
    calendar, now = data.draw(calendars_and_moments(unit))

    assert calendar.edges(now)[:2] == watched(calendar, now)


@pytest.mark.parametrize(
    ("zone", "change", "start"), sampled([(*change, start) for start in STARTS_OF_DAYS for change in CHANGES], 4)
)
def test_days_are_those_of_a_watch_around_each_change_of_the_clocks(zone: str, change: str, start: str) -> None:
    calendar = Calendar("day", start, zone)
    for hours in range(-28, 29, 4):
        now = moment(change) + hours * 60 * MINUTE + 7
        begin, end = watched(calendar, now)
        _, next_end = watched(calendar, end)
        assert calendar.edges(now)[:3] == (begin, end, next_end)


@given(calendars_and_moments(), st.integers(-400 * DAY, 400 * DAY))
def test_windows_follow_each_other_whatever_was_asked_before(asked: tuple[Calendar, int], other: int) -> None:
    calendar, now = asked
    begin, end, next_end, last_end = calendar.edges(now)
    calendar.edges(now + other)

    assert begin <= now < end < next_end < last_end
    assert calendar.edges(begin)[:2] == (begin, end)
    assert calendar.edges(begin - 1)[1] == begin
    assert calendar.edges(end - 1)[:2] == (begin, end)
    assert calendar.edges(end)[:3] == (end, next_end, last_end)


@pytest.mark.parametrize(
    ("unit", "start", "problem"),
    [
        ("day", "24:00", 'is not a time of day, such as "06:00"'),
        ("day", "6", 'is not a time of day, such as "06:00"'),
        ("month", "0", "is not a day of a month, 1 to 31"),
        ("month", "32", "is not a day of a month, 1 to 31"),
        ("year", "02-30", "is not a date: month 2 has 29 days at most"),
        ("quarter", "04-31", "is not a date: month 4 has 30 days at most"),
        ("year", "13-01", 'is not a month and day, such as "04-06"'),
        ("year", "4", 'is not a month and day, such as "04-06"'),
    ],
)
def test_a_start_that_no_unit_has_is_an_error(unit: str, start: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Calendar(unit, start)


@pytest.mark.parametrize(
    "name", ["Europe/Brelin", "", "Europe", "posix/UTC", "right/UTC", "localtime", "../zone.tab", "/etc/passwd", "a\0"]
)
def test_only_zones_of_the_database_can_be_opened(name: str) -> None:
    """Those with leap seconds, which the system may have too, would have the clocks half a minute early."""
    with pytest.raises(ValueError, match="no time zone has the name"):
        open_zone(name)


@pytest.mark.parametrize(
    ("calendar", "words"),
    [
        (Calendar("day"), "calendar day, UTC"),
        (Calendar("day", "6:00", "Asia/Tokyo"), "calendar day from 06:00, Asia/Tokyo"),
        (Calendar("week"), "calendar week from Monday, UTC"),
        (Calendar("month"), "calendar month, UTC"),
        (Calendar("month", "15", "Europe/Berlin"), "calendar month from the 15th, Europe/Berlin"),
        (Calendar("month", "22"), "calendar month from the 22nd, UTC"),
        (Calendar("month", "31"), "calendar month from the 31st, UTC"),
        (Calendar("month", "3"), "calendar month from the 3rd, UTC"),
        (Calendar("month", "12"), "calendar month from the 12th, UTC"),
        (Calendar("quarter"), "calendar quarter, UTC"),
        (Calendar("year", "4-6", "Europe/London"), "calendar year from 04-06, Europe/London"),
    ],
)
def test_a_calendar_is_told_in_words(calendar: Calendar, words: str) -> None:
    assert str(calendar) == words


def test_calendars_are_equal_that_have_the_same_windows() -> None:
    assert Calendar("month", "01") == Calendar("month")
    assert len({Calendar("year", "4-6"), Calendar("year", "04-06")}) == 1
    assert Calendar("month", "15", "Europe/Berlin") != Calendar("month", "15", "Europe/Paris")
