"""A document of rules as JSON: it means what it means as YAML, and its places are paths in it."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.checks.diff import diff
from ratelimit_service.rules.problems import Report
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources import open_document
from ratelimit_service.rules.sources.json_text import JsonText
from ratelimit_service.rules.sources.yaml_text import YamlText

RULES = """\
domain: shop
descriptors:
  - key: user
    value: "017"
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: a/b
    rate_limits:
      - {unit: hour, requests_per_unit: 1_000}
"""
AS_JSON = {
    "domain": "shop",
    "descriptors": [
        {
            "key": "user",
            "value": "017",
            "shadow_mode": True,
            "rate_limit": {"unit": "minute", "requests_per_unit": 3},
        },
        {"key": "a/b", "rate_limits": [{"unit": "hour", "requests_per_unit": 1000}]},
    ],
}


def problems(text: bytes | str) -> list[str]:
    """What is wrong with a document."""
    with pytest.raises(RulesError) as raised:
        parse([JsonText("api:shop", text.encode() if isinstance(text, str) else text)])
    return [str(problem) for problem in raised.value.problems]


def test_it_means_what_it_means_as_yaml() -> None:
    book = parse([open_document("json", "api", "api:shop", json.dumps(AS_JSON).encode())])

    assert diff(parse([YamlText("shop.yaml", RULES.encode())]), book) == []
    assert [str(rule.place) for rule in book.rules] == [
        "api:shop/descriptors/0/rate_limit",
        "api:shop/descriptors/1/rate_limits/0",
    ]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "api:shop:1:2: is not valid JSON: Expecting property name enclosed in double quotes"),
        ("[]", "api:shop: a rules file is a map with domain and descriptors, not a list"),
        (b'{"domain": "\xff"}', "api:shop: byte 0xff is not UTF-8"),
        ('{"domain": "\\ud800"}', "api:shop/domain: half of a surrogate pair is not a character"),
        ("[" * 5000, "api:shop: lists and objects are nested deeper than 100"),
        ('{"domain": ' + "[" * 200 + "]" * 200 + "}", "api:shop: lists and objects are nested deeper than 100"),
        (
            '{"domain": "a", "domain": "b"}',
            'api:shop/domain: key "domain" is given twice in this object',
        ),
        (
            '{"domain": "a", "descriptors": [{"key": "x", "a/b~": 1}]}',
            'api:shop/descriptors/0/a~1b~0: unknown key "a/b~"',
        ),
        (
            '{"domain": "a", "descriptors": [{"key": "x", "rate_limit": {"unit": 1.5}}]}',
            "api:shop/descriptors/0/rate_limit/unit: unit must be text, and 1.5 is a number",
        ),
    ],
)
def test_every_problem_has_its_path(text: bytes | str, wrong: str) -> None:
    found = problems(text)

    assert any(problem.startswith(wrong) for problem in found), found


@given(
    st.binary() | st.text().map(str.encode) | st.recursive(st.text(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    report = Report("api:shop")
    with suppress(RulesError):
        JsonText("api:shop", text).nodes(report)
        return

    assert report.problems
