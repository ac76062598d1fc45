"""What stands in a calendar becomes the windows of a limit, or an error at its place."""

import pytest

from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.reasons import explain, explanation_as_json
from ratelimit_service.rules.rule import Rule, counter_key, rule_in_words
from ratelimit_service.server.admin.envoyproxy_pages import rules_text
from ratelimit_service.system.calendar import Calendar
from ratelimit_service.system.clock import DAY
from tests.books import book
from tests.rules.test_parse import limit, problems
from tests.test_calendar import moment

ADA = (("user", "ada"),)


def rules(text: str, defaults: str = "") -> tuple[Rule, ...]:
    """The rules of a file with this rate_limit, or with these rate_limits."""
    key = "rate_limits" if text.startswith("[") else "rate_limit"
    found = book(f"domain: shop\n{defaults}\ndescriptors:\n- key: user\n  {key}: {text}\n")
    assert lint(found) == []
    return tuple(found.rules)


@pytest.mark.parametrize(
    ("written", "unit", "days", "calendar"),
    [
        ("unit: day", Unit.DAY, 1, Calendar("day", "00:00", "UTC")),
        ("unit: day, start: 06:00", Unit.DAY, 1, Calendar("day", "06:00")),
        ("unit: day, start: '6:00'", Unit.DAY, 1, Calendar("day", "06:00")),
        ("unit: week", Unit.WEEK, 7, Calendar("week", "monday")),
        ("unit: week, week: sunday", Unit.WEEK, 7, Calendar("week", "sunday")),
        ("unit: month", Unit.MONTH, 30, Calendar("month", "1")),
        ("unit: month, start: 31", Unit.MONTH, 30, Calendar("month", "31")),
        ("unit: month, start: 08", Unit.MONTH, 30, Calendar("month", "8")),
        ("unit: month, start: ~, zone: ~, week: ~", Unit.MONTH, 30, Calendar("month", "1")),
        ("unit: quarter, start: 02-01", Unit.MONTH, 90, Calendar("quarter", "02-01")),
        ("unit: year, start: 02-29, zone: Europe/Berlin", Unit.YEAR, 365, Calendar("year", "02-29", "Europe/Berlin")),
        ("unit: year, start: 4-6", Unit.YEAR, 365, Calendar("year", "04-06")),
    ],
)
def test_a_calendar_is_in_the_limit_with_the_nearest_unit_of_envoy(
    written: str, unit: Unit, days: int, calendar: Calendar
) -> None:
    [rule] = rules(f"{{calendar: {{{written}}}, requests_per_unit: 7}}")

    assert rule.limit == Limit(7, unit, days * DAY, calendar=calendar)
    assert rule.algorithm.name == "fixed_window"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("calendar: {unit: month, start: 32}", '4:47: start "32" is not a day of a month, 1 to 31'),
        ("calendar: {unit: day, start: 26:00}", '4:45: start "26:00" is not a time of day, such as "06:00"'),
        ("calendar: {unit: day, start: 1}", '4:45: start "1" is not a time of day, such as "06:00"'),
        ("calendar: {unit: year, start: 02-30}", '4:46: start "02-30" is not a date: month 2 has 29 days at most'),
        ("calendar: {unit: quarter, start: 15}", '4:49: start "15" is not a month and day, such as "04-06"'),
        ("calendar: {unit: month, start: [1]}", "4:47: start must be text, not a list"),
        (
            "calendar: {unit: week, start: sunday}",
            "4:39: start has no meaning for the unit week; write week: monday or another day",
        ),
        ("calendar: {unit: month, week: monday}", "4:40: week has no meaning for the unit month, only for week"),
        (
            "calendar: {unit: week, week: funday}",
            (
                '4:45: week "funday" is not one of monday, tuesday, wednesday, thursday, friday, saturday, sunday; '
                "did you mean sunday?"
            ),
        ),
        (
            "calendar: {unit: month, zone: Europe/Brelin}",
            '4:46: zone "Europe/Brelin" is not a time zone; did you mean Europe/Berlin?',
        ),
        (
            "calendar: {unit: month, zone: berlin}",
            '4:46: zone "berlin" is not a time zone; did you mean Europe/Berlin?',
        ),
        (
            "calendar: {unit: month, zone: ../../etc/passwd}",
            '4:46: zone "../../etc/passwd" is not a time zone; names are such as Europe/Berlin',
        ),
        ("calendar: {unit: month, zone: 1.5}", "4:46: zone must be text, and 1.5 is a number; write it in quotes"),
        ("calendar: {unit: hour}", '4:33: unit "hour" is not one of day, week, month, quarter, year'),
        ("calendar: {zone: UTC}", "4:26: calendar has no unit; write one, such as unit: month"),
        ("calendar: {unit: month, strat: 1}", '4:40: unknown key "strat"; did you mean start?'),
        ("calendar: month", '4:26: calendar must be a map, not the text "month"'),
        ("calendar: {unit: month}, unit: month", "4:41: unit contradicts calendar: remove one of them"),
        (
            "calendar: {unit: month}, unit_multiplier: 2",
            "4:41: unit_multiplier contradicts calendar: remove one of them",
        ),
        (
            "calendar: {unit: month}, algorithm: token_bucket",
            "4:16: calendar has no meaning for token_bucket, only for fixed_window",
        ),
        (
            "calendar: {unit: month}, anchor: first_request",
            "4:49: first_request contradicts calendar: remove one of them",
        ),
        ("calender: {unit: month}", '4:16: unknown key "calender"; did you mean calendar?'),
    ],
)
def test_a_calendar_that_is_none_is_an_error_at_its_place(text: str, expected: str) -> None:
    assert problems(limit(f"{{{text}, requests_per_unit: 7}}")) == [f"1.yaml:{expected}"]


def test_a_default_that_means_nothing_for_a_calendar_is_ignored_and_others_apply() -> None:
    [rule] = rules(
        "{calendar: {unit: month}, requests_per_unit: 7}",
        "defaults: {anchor: first_request, burst: 9, count_refused: false, exceed: 3}",
    )

    assert rule.limit == Limit(7, Unit.MONTH, 30 * DAY, count_refused=False, exceed=3, calendar=Calendar("month"))


def test_an_algorithm_by_default_that_cannot_count_so_is_an_error() -> None:
    file = limit("{calendar: {unit: month}, requests_per_unit: 7}").replace(
        "shop\n", "shop\ndefaults: {algorithm: sliding_window}\n"
    )

    assert problems(file) == ["1.yaml:5:16: calendar has no meaning for sliding_window, only for fixed_window"]


def test_a_counter_belongs_to_one_calendar() -> None:
    texts = [
        "unit: month",
        "calendar: {unit: month}",
        "calendar: {unit: month, start: 15}",
        "calendar: {unit: month, start: 15, zone: Europe/Berlin}",
        "calendar: {unit: month, start: 15, zone: Europe/Paris}",
    ]
    keys = [
        counter_key(book(limit(f"{{{text}, requests_per_unit: 7}}")).rules[0], ADA)
        for text in (*texts, "calendar: {unit: month, start: '01', zone: UTC}")
    ]

    assert keys == [
        "shop|user=ada|fixed_window/2592000000000",
        "shop|user=ada|fixed_window/2592000000000/month/1/UTC",
        "shop|user=ada|fixed_window/2592000000000/month/15/UTC",
        "shop|user=ada|fixed_window/2592000000000/month/15/Europe/Berlin",
        "shop|user=ada|fixed_window/2592000000000/month/15/Europe/Paris",
        "shop|user=ada|fixed_window/2592000000000/month/1/UTC",
    ]


def test_limits_with_the_same_calendar_share_it_so_that_an_edge_is_computed_once() -> None:
    one = "calendar: {unit: month, start: 15, zone: Europe/Berlin}, requests_per_unit: 7"
    other = "requests_per_unit: 8, calendar: {zone: Europe/Berlin, start: '15', unit: month}"

    limits = [rule.limit for text in (one, other) for rule in book(limit(f"{{{text}}}")).rules]

    assert len({id(each.calendar) for each in limits if each}) == 1


def test_limits_of_a_list_have_names_of_their_own() -> None:
    found = rules(
        "[{calendar: {unit: month}, requests_per_unit: 7}, {calendar: {unit: month, start: 15}, requests_per_unit: 7},"
        " {calendar: {unit: day, zone: Asia/Tokyo}, requests_per_unit: 1}, {unit: day, requests_per_unit: 2}]"
    )

    assert [rule.path_suffix for rule in found] == [
        ("per_calendar_month",),
        ("per_calendar_month_15_UTC",),
        ("per_calendar_day",),
        ("per_day",),
    ]


@pytest.mark.parametrize("limits", ["calendar: {unit: month, start: 15}", "unit: day, algorithm: sub_windows"])
def test_the_same_limit_twice_in_a_list_is_an_error_also_behind_another_of_that_length(limits: str) -> None:
    other = limits.replace("15", "3").replace("sub_windows", "sliding_log")
    of = "fixed_window per calendar month from the 15th, UTC" if "month" in limits else "sub_windows per day"

    [found] = problems(
        "domain: shop\ndescriptors:\n- key: user\n  rate_limits:\n"
        + "".join(f"  - {{{text}, requests_per_unit: 7}}\n" for text in (other, limits, limits))
    )

    assert found == f"1.yaml:7:5: a {of} is given twice in rate_limits, first at 1.yaml:6:5"


def test_a_calendar_is_told_wherever_a_limit_is() -> None:
    [rule] = rules("{calendar: {unit: month, start: 15, zone: Europe/Berlin}, requests_per_unit: 1000}")

    assert rule_in_words(rule) == "1,000 requests per calendar month from the 15th, Europe/Berlin"
    assert "".join(rules_text([rule])) == (
        "shop.user: unit=MONTH requests_per_unit=1000, shadow_mode: false, quota_mode: false, "
        "calendar month from the 15th, Europe/Berlin\n"
    )


def test_an_explanation_has_the_edges_of_the_window_in_the_time_of_its_zone() -> None:
    found = book(limit("{calendar: {unit: month, start: 15, zone: Europe/Berlin}, requests_per_unit: 1000}"))
    explained = explain(found, Request("shop", [Descriptor(ADA)]))

    [described] = explanation_as_json(explained, moment("2026-03-29T12:00Z"))["descriptors"][0]["rules"]

    assert described["window"] == {
        "begins": "2026-03-15 00:00:00+01:00",
        "ends": "2026-04-15 00:00:00+02:00",
        "zone": "Europe/Berlin",
    }
    assert (described["unit"], described["unit_multiplier"]) == ("month", 1)
