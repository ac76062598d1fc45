"""What stands in a rate_limit becomes a limit and its algorithm, or an error at its place."""

import pytest

from ratelimit_service.algorithms.kinds import Block, Places
from ratelimit_service.model import PLAIN, Limit, Unit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.system.clock import DAY, HOUR, MINUTE, SECOND
from tests.books import book
from tests.rules.test_parse import limit, problems


def rule(text: str) -> Rule:
    """The one rule of a file with this rate_limit."""
    (found,) = book(limit(text)).rules
    return found


@pytest.mark.parametrize(
    ("written", "unit", "window"),
    [
        ("unit: 5 minutes", Unit.MINUTE, 5 * MINUTE),
        ("unit: 5 minute", Unit.MINUTE, 5 * MINUTE),
        ("unit: 5minutes", Unit.MINUTE, 5 * MINUTE),
        ("unit: 5 MINUTES", Unit.MINUTE, 5 * MINUTE),
        ("unit: 1 minute", Unit.MINUTE, MINUTE),
        ("unit: 90 seconds", Unit.SECOND, 90 * SECOND),
        ("unit: 60 seconds", Unit.MINUTE, MINUTE),
        ("unit: 24 hours", Unit.DAY, DAY),
        ("unit: 14 days", Unit.WEEK, 14 * DAY),
        ("unit: 60 days", Unit.MONTH, 60 * DAY),
        ("unit: 36 hours", Unit.HOUR, 36 * HOUR),
        ("unit: 100 years", Unit.YEAR, 36_500 * DAY),
        ("unit: minute, unit_multiplier: 5", Unit.MINUTE, 5 * MINUTE),
        ("unit: second, unit_multiplier: 3600", Unit.HOUR, HOUR),
        ("unit: minute, unit_multiplier: ~", Unit.MINUTE, MINUTE),
    ],
)
def test_a_window_is_several_units_and_has_the_largest_that_divides_it(written: str, unit: Unit, window: int) -> None:
    assert rule(f"{{{written}, requests_per_unit: 7}}").limit == Limit(7, unit, window)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "unit: minutes",
            '4:22: unit "minutes" is not one of second, minute, hour, day, week, month, year; did you mean minute?',
        ),
        (
            "unit: 5 fortnights",
            (
                '4:22: unit "5 fortnights" is not a multiple of second, minute, hour, day, week, month, year, '
                'such as 10m or "5 minutes"'
            ),
        ),
        (
            "unit: 1500ms",
            (
                '4:22: unit "1500ms" is not a multiple of second, minute, hour, day, week, month, year, '
                'such as 10m or "5 minutes"'
            ),
        ),
        ("unit: 0 minutes", '4:22: unit "0 minutes" is not a length of time'),
        ("unit: 101 years", '4:22: unit "101 years" is longer than 100 years'),
        (
            "unit: 5 minutes, unit_multiplier: 5",
            '4:33: unit_multiplier contradicts unit "5 minutes": remove one of the numbers',
        ),
        (
            "unit: 1 minute, unit_multiplier: 5",
            '4:32: unit_multiplier contradicts unit "1 minute": remove one of the numbers',
        ),
        (
            "unit: day, unit_multiplier: 0",
            "4:44: unit_multiplier must be a whole number from 1 to 4294967295, not the number 0",
        ),
        (
            "unit: day, unit_multiplier: 36501",
            "4:44: unit_multiplier 36501: a window of so many days is longer than 100 years",
        ),
    ],
)
def test_a_malformed_window_is_refused_at_its_place(text: str, expected: str) -> None:
    assert problems(limit(f"{{{text}, requests_per_unit: 1}}")) == [f"1.yaml:{expected}"]


@pytest.mark.parametrize(
    ("written", "algorithm", "expected"),
    [
        ("algorithm: fixed_window", "fixed_window", Limit(100, Unit.DAY, DAY)),
        ("anchor: calendar", "fixed_window", Limit(100, Unit.DAY, DAY)),
        ("anchor: first_request", "fixed_window", Limit(100, Unit.DAY, DAY, first_request=True)),
        ("count_refused: no", "fixed_window", Limit(100, Unit.DAY, DAY, count_refused=False)),
        ("exceed: 10%", "fixed_window", Limit(100, Unit.DAY, DAY, exceed=10)),
        ("exceed: 150 %", "fixed_window", Limit(100, Unit.DAY, DAY, exceed=150)),
        ("exceed: 7", "fixed_window", Limit(100, Unit.DAY, DAY, exceed=7)),
        ("algorithm: sliding_window", "sliding_window", Limit(100, Unit.DAY, DAY, count_refused=False)),
        ("algorithm: sliding_log", "sliding_log", Limit(100, Unit.DAY, DAY, count_refused=False)),
        (
            "algorithm: sub_windows, parts: 24",
            "sub_windows",
            Limit(100, Unit.DAY, DAY, parts=24, count_refused=False),
        ),
        (
            "algorithm: sub_windows, count_refused: true",
            "sub_windows",
            Limit(100, Unit.DAY, DAY, count_refused=True),
        ),
        ("algorithm: token_bucket", "token_bucket", Limit(100, Unit.DAY, DAY, count_refused=False)),
        (
            "algorithm: token_bucket, burst: 5",
            "token_bucket",
            Limit(100, Unit.DAY, DAY, burst=5, count_refused=False),
        ),
        (
            "algorithm: leaky_bucket, burst: 500",
            "leaky_bucket",
            Limit(100, Unit.DAY, DAY, burst=500, count_refused=False),
        ),
    ],
)
def test_every_option_reaches_the_limit(written: str, algorithm: str, expected: Limit) -> None:
    found = rule(f"{{unit: day, requests_per_unit: 100, {written}}}")

    assert (found.algorithm.name, found.limit) == (algorithm, expected)


def test_of_a_share_that_is_no_whole_number_the_whole_part_counts() -> None:
    found = rule("{unit: day, requests_per_unit: 19, exceed: 10%}").limit

    assert found == Limit(19, Unit.DAY, DAY, exceed=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "algorithm: sliding_windw",
            (
                '4:64: algorithm "sliding_windw" is not one of fixed_window, sliding_window, sub_windows, sliding_log, '
                "token_bucket, leaky_bucket; did you mean sliding_window?"
            ),
        ),
        (
            "algorithm: GCRA, burst: 3",
            (
                '4:64: algorithm "GCRA" is not one of fixed_window, sliding_window, sub_windows, sliding_log, '
                "token_bucket, leaky_bucket"
            ),
        ),
        ("algorithm: [a]", "4:64: algorithm must be text, not a list"),
        ("burst: 5", "4:53: burst has no meaning for fixed_window, only for token_bucket and leaky_bucket"),
        ("parts: 5", "4:53: parts has no meaning for fixed_window, only for sub_windows"),
        (
            "anchor: calendar, algorithm: sliding_log",
            "4:53: anchor has no meaning for sliding_log, only for fixed_window",
        ),
        (
            "algorithm: token_bucket, burst: 0",
            "4:85: burst must be a whole number from 1 to 1125899906842624, not the number 0",
        ),
        (
            "algorithm: sub_windows, parts: 1",
            "4:84: parts must be a whole number from 2 to 1000, not the number 1",
        ),
        (
            "algorithm: sub_windows, parts: 1001",
            "4:84: parts must be a whole number from 2 to 1000, not the number 1001",
        ),
        (
            "quota_unit: Tokens",
            (
                "4:65: quota_unit must be a word of a-z, 0-9 and -, of 32 characters at most, such as tokens or "
                'content-bytes, not the text "Tokens"'
            ),
        ),
        ("anchor: noon", '4:61: anchor "noon" is not one of calendar, first_request'),
        (
            "exceed: 1.5%",
            (
                "4:61: exceed must be a whole number from 0 to 1125899906842624 or a share such as 10%, "
                'not the text "1.5%"'
            ),
        ),
        ("exceed: 1125899906842624", "4:3: the limit and exceed add up to more than 1125899906842624"),
        (
            "charge: each",
            "4:53: charge does not belong in rate_limit, but at the top of the file or in a descriptor or in otherwise",
        ),
    ],
)
def test_a_malformed_option_is_refused_at_its_place(text: str, expected: str) -> None:
    assert problems(limit(f"{{unit: second, requests_per_unit: 10, {text}}}")) == [f"1.yaml:{expected}"]


def test_a_limit_that_its_algorithm_cannot_keep_is_refused_with_the_reason() -> None:
    found = problems(limit("{unit: day, requests_per_unit: 65_536, algorithm: sliding_log}"))
    by_default = problems(
        "domain: d\ndefaults: {algorithm: sliding_log}\n"
        "descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 65_535, exceed: 1}}]"
    )

    assert found == [
        (
            "1.yaml:4:54: sliding_log: it would remember 65536 moments for each counter, the maximum is 65535; "
            "use sub_windows"
        )
    ]
    assert by_default == [
        (
            "1.yaml:3:24: sliding_log: it would remember 65536 moments for each counter, the maximum is 65535; "
            "use sub_windows"
        )
    ]


NO_TIME = 'must be a time from a second to 100 years, such as 10m or "15 minutes"'


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("block_up_to: day", ["1.yaml:4:52: block_up_to has no meaning without block_for"]),
        ("block_for: often, block_up_to: day", [f'1.yaml:4:63: block_for "often" {NO_TIME}']),
        ("block_for: 2 days, block_up_to: day", ["1.yaml:4:71: block_up_to is shorter than block_for"]),
        *(
            (f"block_for: {wrong}", [f'1.yaml:4:63: block_for "{wrong}" {NO_TIME}'])
            for wrong in ("0 minutes", "999ms", "101 years", "15 minuts", "10")
        ),
    ],
)
def test_a_block_that_cannot_be_is_refused(options: str, expected: list[str]) -> None:
    assert problems(limit(f"{{unit: minute, requests_per_unit: 5, {options}}}")) == expected


def test_times_are_written_alike_in_every_option() -> None:
    rules = book("""
        domain: d
        descriptors:
          - {key: a, rate_limit: {unit: 90s, requests_per_unit: 5, block_for: 10m, block_up_to: 1h30m}}
          - {key: b, rate_limit: {unit: 2d, requests_per_unit: 5}}
          - {key: c, rate_limit: {unit: 1h30m, requests_per_unit: 5}}
          - {key: d, rate_limit: {deny: true, for: 1h 30m}}
          - {key: e, rate_limit: {concurrency: 5, hold: 1 minute 30 seconds, place: e}}
        """).rules

    limits = [rule.limit for rule in rules if rule.limit is not None]
    windows = [(limit.window, limit.unit, limit.kind) for limit in limits]
    assert windows == [
        (90 * SECOND, Unit.SECOND, Block(10 * MINUTE, 90 * MINUTE)),
        (2 * DAY, Unit.DAY, PLAIN),
        (90 * MINUTE, Unit.MINUTE, PLAIN),
        (90 * SECOND, Unit.SECOND, Places()),
    ]
    assert rules[3].retry_after == 90 * MINUTE


def test_blocks_are_read_and_may_be_defaults() -> None:
    rules = book("""
        domain: d
        defaults: {block_for: 15 minutes, block_up_to: day}
        descriptors:
          - {key: a, rate_limit: {unit: minute, requests_per_unit: 5}}
          - {key: b, rate_limit: {unit: minute, requests_per_unit: 5, block_for: hour, algorithm: sliding_log}}
          - {key: c, rate_limit: {deny: true}}
        """).rules

    assert [rule.limit and rule.limit.kind for rule in rules] == [
        Block(15 * MINUTE, DAY),
        Block(HOUR, DAY),
        None,
    ]


def test_a_default_that_a_limit_s_own_option_contradicts_is_told_at_the_limit() -> None:
    text = """
        domain: d
        defaults: {block_up_to: hour}
        descriptors:
          - {key: a, rate_limit: {unit: minute, requests_per_unit: 5}}
          - {key: b, rate_limit: {unit: minute, requests_per_unit: 5, block_for: day}}
        """

    assert problems(text) == ["1.yaml:6:63: block_up_to is shorter than block_for"]


@pytest.mark.parametrize("option", ["algorithm: token_bucket", "exceed: 1", "count_refused: true", "parts: 3"])
def test_whatever_limits_contradicts_unlimited(option: str) -> None:
    key = option.partition(":")[0]

    assert problems(limit(f"{{unlimited: true, {option}}}")) == [
        f"1.yaml:4:33: {key} contradicts unlimited: remove one of them"
    ]


DEFAULTS = """\
    domain: d
    defaults: {algorithm: token_bucket, burst: 5, parts: 4, anchor: first_request, exceed: 10%, count_refused: true}
    descriptors:
      - {key: a, rate_limit: {unit: day, requests_per_unit: 100}}
      - {key: b, rate_limit: {unit: day, requests_per_unit: 200, burst: 7, exceed: 0, count_refused: false}}
      - {key: c, rate_limit: {unit: day, requests_per_unit: 100, algorithm: fixed_window}}
      - {key: d, rate_limit: {unit: day, requests_per_unit: 100, algorithm: sub_windows}}
      - {key: e, rate_limit: {unlimited: true}}
    """


def test_defaults_hold_where_a_limit_says_nothing_else_and_where_they_mean_something() -> None:
    found = [(rule.algorithm.name, rule.limit) for rule in book(DEFAULTS).rules]

    assert found == [
        ("token_bucket", Limit(100, Unit.DAY, DAY, burst=5, exceed=10)),
        ("token_bucket", Limit(200, Unit.DAY, DAY, burst=7, count_refused=False)),
        ("fixed_window", Limit(100, Unit.DAY, DAY, first_request=True, exceed=10)),
        ("sub_windows", Limit(100, Unit.DAY, DAY, parts=4, exceed=10)),
        ("fixed_window", None),
    ]


def test_defaults_hold_for_their_file_only() -> None:
    merged = book(
        "domain: d\ndefaults: {algorithm: sliding_log}\n"
        "descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]",
        "domain: d\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]",
        merge_domains=True,
    )

    assert [rule.algorithm.name for rule in merged.rules] == ["sliding_log", "fixed_window"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unit: day", "unit does not belong in defaults, but in rate_limit or in calendar or in pools"),
        ("calendar: {unit: day}", "calendar does not belong in defaults, but in rate_limit"),
        ("deny: true", "deny does not belong in defaults, but in rate_limit"),
        ("allow: true", "allow does not belong in defaults, but in rate_limit"),
        ("algoritm: x", 'unknown key "algoritm"; did you mean algorithm?'),
        (
            "zzz: x",
            (
                'unknown key "zzz"; in defaults there may be algorithm, burst, reserve, parts, anchor, count_refused, '
                "exceed, "
                "block_for, block_up_to, on_store_failure, lease, quota_unit"
            ),
        ),
    ],
)
def test_what_is_no_default_is_refused(text: str, expected: str) -> None:
    assert problems(f"domain: d\ndefaults: {{{text}}}") == [f"1.yaml:2:12: {expected}"]


@pytest.mark.parametrize(
    ("written", "ending"),
    [
        ("{unit: minute, requests_per_unit: 5}", "fixed_window/60000000"),
        ("{unit: 60 seconds, requests_per_unit: 9, exceed: 1, count_refused: no}", "fixed_window/60000000"),
        ("{unit: minute, requests_per_unit: 5, anchor: first_request}", "fixed_window/60000000/first_request"),
        ("{unit: minute, requests_per_unit: 5, algorithm: sub_windows}", "sub_windows/60000000/10"),
        ("{unit: minute, requests_per_unit: 5, algorithm: token_bucket, burst: 9}", "token_bucket/60000000"),
    ],
)
def test_a_counters_key_ends_with_what_changes_the_meaning_of_its_state(written: str, ending: str) -> None:
    assert rule(written).key_suffix == f"|{ending}"
