"""The options of a domain's responses: what is read, what is wrong, what wins."""

import pytest

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.checks.lint import lint
from ratelimit_service.rules.response import (
    MAX_NAME_LENGTH,
    NO_JITTER,
    SHARES,
    SILENT,
    Jitter,
    ResponseOptions,
    header_text,
    limit_name,
    quoted_string,
    response_in_words,
    response_options,
)
from ratelimit_service.rules.syntax.schema import json_schema
from ratelimit_service.settings import Settings
from tests.books import book

WRONG_JITTER = "retry_after_jitter must be a share up to 100% or a time up to 1 day, such as 10% or 5s"
BY_SETTINGS = ResponseOptions(("ratelimit",), True, Jitter(percent=10), problem_body=True, rule_metadata=True)


def read(*tops: str, response: ResponseOptions = SILENT) -> ResponseOptions | None:
    """The options of a domain in files with these lines at the top."""
    files = (f"domain: shop\n{top}\n" for top in tops)
    return book(*files, merge_domains=True, response=response).domains["shop"].response


def problems(*tops: str) -> list[str]:
    with pytest.raises(RulesError) as caught:
        read(*tops)
    return [str(problem) for problem in caught.value.problems]


def test_without_a_word_responses_have_nothing_beside_the_decision() -> None:
    assert read("") is None
    assert read("headers: []\nretry_after: false\nretry_after_jitter: 0%") is None


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ("headers: [ietf, ratelimit]", ResponseOptions(headers=("ietf", "ratelimit"))),
        ("headers: ietf", ResponseOptions(headers=("ietf",))),
        ("retry_after: true", ResponseOptions(retry_after=True)),
        ("retry_after_jitter: 10%", ResponseOptions(retry_after_jitter=Jitter(percent=10))),
        ("retry_after_jitter: 100 %", ResponseOptions(retry_after_jitter=Jitter(percent=100))),
        ("retry_after_jitter: 5 seconds", ResponseOptions(retry_after_jitter=Jitter(most=5_000_000))),
        ("retry_after_jitter: 5s", ResponseOptions(retry_after_jitter=Jitter(most=5_000_000))),
        ("retry_after_jitter: minute", ResponseOptions(retry_after_jitter=Jitter(most=60_000_000))),
        ("retry_after_jitter: 1 day", ResponseOptions(retry_after_jitter=Jitter(most=86_400_000_000))),
        ("problem_body: true", ResponseOptions(problem_body=True)),
        ("rule_metadata: true", ResponseOptions(rule_metadata=True)),
    ],
)
def test_each_option_is_read(top: str, expected: ResponseOptions) -> None:
    assert read(top) == expected


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        (
            "headers: ietff",
            '1.yaml:2:10: headers "ietff" is not one of ratelimit, x_ratelimit, ietf; did you mean ietf?',
        ),
        (
            "headers: [ietff]",
            '1.yaml:2:11: each of headers "ietff" is not one of ratelimit, x_ratelimit, ietf; did you mean ietf?',
        ),
        ("headers: [ietf, ratelimit, ietf]", "1.yaml:2:28: headers has ietf twice"),
        ("headers: [[ietf]]", "1.yaml:2:11: each of headers must be text, not a list"),
        ("retry_after: 5", "1.yaml:2:14: retry_after must be true or false, not the number 5"),
        ("problem_body: {}", "1.yaml:2:15: problem_body must be true or false, not a map"),
        *(
            (
                f"retry_after_jitter: {wrong}",
                f"1.yaml:2:21: {WRONG_JITTER}",
            )
            for wrong in ("101%", "-1%", "10", "25 hours", "2 days", "0 seconds", "9999999999 days", "much")
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(top: str, expected: str) -> None:
    assert problems(top) == [expected]


def test_the_domain_wins_over_the_settings_option_by_option() -> None:
    assert read("", response=BY_SETTINGS) == BY_SETTINGS
    assert read("headers: [ietf]\nproblem_body: false", response=BY_SETTINGS) == ResponseOptions(
        ("ietf",), True, Jitter(percent=10), problem_body=False, rule_metadata=True
    )
    assert (
        read(
            "headers: []\nretry_after: false\nretry_after_jitter: 0%\nproblem_body: false\nrule_metadata: false",
            response=BY_SETTINGS,
        )
        is None
    )


def test_files_of_one_domain_add_up() -> None:
    assert read("headers: [ietf]", "retry_after: true", "headers: [ietf]") == ResponseOptions(("ietf",), True)


def test_files_of_one_domain_must_not_say_different_things() -> None:
    assert problems("retry_after: true\nheaders: [ietf]", "headers: [ratelimit]\nretry_after: true") == [
        '2.yaml:2:1: headers of domain "shop" has another value at 1.yaml:3:1'
    ]


def test_the_settings_of_envoyproxy_are_those_of_ratelimit() -> None:
    def options(**values: str) -> ResponseOptions:
        return response_options(Settings.model_validate(values))

    assert options() == SILENT
    assert options(limit_response_headers_enabled="true").headers == ("ratelimit",)
    assert options(limit_response_headers_enabled="true", response_headers="ietf").headers == ("ratelimit", "ietf")
    assert options(limit_response_headers_enabled="true", response_headers="ratelimit").headers == ("ratelimit",)
    assert options(
        response_headers="x_ratelimit, ietf",
        response_retry_after="true",
        response_retry_after_jitter="250ms",
        response_problem_body="1",
        response_rule_metadata="t",
    ) == ResponseOptions(("x_ratelimit", "ietf"), True, Jitter(most=250_000), problem_body=True, rule_metadata=True)


def test_the_options_in_words() -> None:
    assert response_in_words(SILENT) == []
    assert response_in_words(BY_SETTINGS) == [
        "headers ratelimit",
        "Retry-After",
        "waits of refusals up to 10% longer",
        "a body of application/problem+json",
        "the rule as metadata",
    ]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (
            "{unit: day, requests_per_unit: 0, for: 1 hour}",
            "3:58: for has no meaning without deny: of a limit it follows from the counter",
        ),
        (
            "{allow: true, for: 1 hour}",
            "3:38: for has no meaning without deny: of a limit it follows from the counter",
        ),
        (
            "{deny: true, for: true}",
            '3:42: for "true" must be a time from a second to 100 years, such as 10m or "15 minutes"',
        ),
        (
            "{deny: true, retry_after: 0 hours}",
            '3:50: retry_after "0 hours" must be a time from a second to 100 years, such as 10m or "15 minutes"',
        ),
    ],
)
def test_only_what_denies_always_has_a_time_to_wait_of_its_own(limit: str, expected: str) -> None:
    with pytest.raises(RulesError) as caught:
        book(f"domain: shop\ndescriptors:\n- {{key: a, rate_limit: {limit}}}\n")

    assert [str(problem) for problem in caught.value.problems] == [f"1.yaml:{expected}"]


def test_a_jitter_only_lengthens_and_at_most_by_what_it_says() -> None:
    assert NO_JITTER.of(10**15, SHARES - 1) == 0
    assert [Jitter(percent=10).of(1000, share) for share in (0, SHARES // 2, SHARES - 1)] == [0, 50, 99]
    assert [Jitter(most=1000).of(7, share) for share in (0, SHARES // 2, SHARES - 1)] == [0, 500, 999]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("per user", "per user"),
        ('a"b\\c', 'a"b\\c'),
        ("a\r\nX-Evil: 1", "a%0D%0AX-Evil: 1"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("\x00\x7f", "%00%7F"),
        ("n" * 129, "n" * 128),
        ("é" * 500, "%C3%A9" * 21 + "%C"),
    ],
)
def test_the_text_of_a_header_is_printable_ascii_of_bounded_length(text: str, expected: str) -> None:
    assert header_text(text) == expected
    assert len(expected) <= MAX_NAME_LENGTH


def test_a_quoted_string_ends_where_it_ends() -> None:
    assert quoted_string('a"b\\') == r'"a\"b\\"'


def test_a_limit_is_named_by_its_name_or_by_its_levels() -> None:
    rules = book(
        """
        domain: shop
        descriptors:
          - key: plan
            value: free
            descriptors:
              - key: user
                detailed_metric: true
                rate_limits:
                  - {unit: minute, requests_per_unit: 1}
                  - {unit: day, requests_per_unit: 1, name: daily}
        """
    ).rules

    assert [limit_name(rule) for rule in rules] == ["plan_free.user.per_minute", "daily"]


@pytest.mark.parametrize(("headers", "warned"), [("[ietf]", True), ("[ratelimit]", False), ("[]", False)])
def test_limits_of_a_list_with_one_name_are_warned_of_where_clients_see_it(headers: str, warned: bool) -> None:
    found = lint(
        book(
            f"""
            domain: shop
            headers: {headers}
            descriptors:
              - key: user
                rate_limits:
                  - {{unit: minute, requests_per_unit: 1, name: users}}
                  - {{unit: day, requests_per_unit: 1, name: users}}
            """
        )
    )

    expected = (
        '1.yaml:8:9: warning: "users" is the name of the limit at 1.yaml:7:9 too; in the header RateLimit-Policy a '
        "client cannot tell one from the other [same-name]"
    )
    assert [str(warning) for warning in found] == ([expected] if warned else [])


def test_the_schema_has_what_the_parser_reads() -> None:
    properties = json_schema()["properties"]

    one, several = properties["headers"]["anyOf"]
    assert one == several["items"] == {"enum": ["ratelimit", "x_ratelimit", "ietf"]}
    assert several["uniqueItems"] is True
    assert properties["retry_after"]["type"] == ["boolean", "null"]
    assert len(properties["retry_after_jitter"]["anyOf"]) == 2
