"""The JSON Schema says of every option what the parser does."""

import json
import re
import subprocess
import sys
from collections import ChainMap
from collections.abc import Sequence
from itertools import product

import pytest

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.syntax.options import OPTIONS, MapType
from ratelimit_service.rules.syntax.schema import json_schema
from tests import peers
from tests.books import book


def test_the_schema_has_every_option_where_it_belongs_with_its_help() -> None:
    schema = json_schema()
    blocks = {where: schema if where is MapType.FILE else schema["$defs"][where.name.lower()] for where in MapType}

    for option in OPTIONS:
        for block in option.maps:
            assert blocks[block]["properties"][option.key]["description"] == option.help
    assert all(block["additionalProperties"] is False for block in blocks.values())


def test_the_schema_says_what_must_be_there() -> None:
    schema = json_schema()

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["domain"]
    assert schema["$defs"]["descriptor"]["required"] == ["key"]
    limited = schema["$defs"]["rate_limit"]["else"]
    assert limited["if"] == {"properties": {"concurrency": {"type": "integer"}}, "required": ["concurrency"]}
    assert limited["then"]["required"] == ["hold", "place"]
    assert limited["else"] == {
        "required": ["requests_per_unit"],
        "oneOf": [{"required": ["unit"]}, {"required": ["calendar"]}],
        "properties": {"hold": {"type": "null"}, "place": {"type": "null"}},
    }
    assert schema["$defs"]["calendar"]["required"] == ["unit"]
    assert schema["$defs"]["replaces"]["required"] == ["name"]


def test_the_schema_bounds_what_the_parser_bounds() -> None:
    properties = json_schema()["$defs"]["rate_limit"]["properties"]

    assert properties["requests_per_unit"]["maximum"] == 1125899906842624
    assert (properties["parts"]["minimum"], properties["parts"]["maximum"]) == (2, 1000)
    assert properties["unit"]["anyOf"][0]["enum"] == [
        "second", "minute", "hour", "day", "week", "month", "year", None,
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["Day", "5 minutes", "5minutes", "1 MINUTE"])
def test_the_schema_has_every_way_to_write_a_window(unit: str) -> None:
    pattern = json_schema()["$defs"]["rate_limit"]["properties"]["unit"]["anyOf"][1]["pattern"]

    assert re.search(pattern, unit)
    assert not re.search(pattern, f"{unit} or so")


def test_what_contradicts_unlimited_does_so_in_the_schema() -> None:
    rate_limit = json_schema()["$defs"]["rate_limit"]
    then = rate_limit["then"]

    assert [branch["required"] for branch in rate_limit["if"]["anyOf"]] == [["unlimited"], ["allow"], ["deny"]]
    assert then["properties"] == {
        key: {"type": "null"}
        for key in (
            "unit", "unit_multiplier", "requests_per_unit", "concurrency", "hold", "place", "algorithm", "burst",
            "queue", "reserve", "parts", "anchor", "calendar", "count_refused", "exceed", "elastic", "block_for",
            "block_up_to", "on_store_failure", "lease", "regions", "floor", "quota_unit",
        )
    }  # fmt: skip


def test_what_contradicts_concurrency_does_so_in_the_schema() -> None:
    then = json_schema()["$defs"]["rate_limit"]["else"]["then"]

    assert then["properties"] == {
        key: {"type": "null"}
        for key in (
            "unit", "unit_multiplier", "requests_per_unit", "algorithm", "burst", "queue", "reserve", "parts", "anchor",
            "calendar", "count_refused", "exceed", "elastic", "block_for", "block_up_to", "lease", "floor",
            "quota_unit",
        )
    }  # fmt: skip


VALID = """
import json, sys
from jsonschema import Draft202012Validator

schema, files = json.load(sys.stdin)
print(json.dumps([Draft202012Validator(schema).is_valid(file) for file in files]))
"""


def test_what_a_descriptor_compares_values_with_excludes_all_else_in_the_schema_too() -> None:
    ways: dict[str, list[dict[str, object]]] = {
        "value": [{"value": "a"}, {"value": None}, {"value": ""}],
        "values": [{"values": ["a"]}, {"values": None}],
        "values_from": [{"values_from": "list"}, {}],
        "cidr": [{"cidr": "10.0.0.0/8"}, {"cidr": None}],
        "regex": [{"regex": "a+"}, {}],
    }
    also: dict[str, object] = {"key": "ip", "rate_limit": {"unit": "day", "requests_per_unit": 1}}
    files = [{"domain": "shop", "descriptors": [dict(ChainMap(also, *chosen))]} for chosen in product(*ways.values())]

    read = is_accepted_alike(files)
    assert read.count(True) == 11


def test_floors_belong_to_leased_limits_in_the_schema_too() -> None:
    limit = {"unit": "day", "requests_per_unit": 100}
    ways: list[dict[str, object]] = [
        {"regions": "leased", "floor": "10%"},
        {"regions": "leased", "floor": None},
        {"regions": "leased"},
        {"floor": None},
        {"regions": "split", "floor": "10%"},
        {"floor": "10%"},
        {"regions": "leased", "floor": "50%"},
        {"regions": "leased", "floor": 10},
        {"regions": "all"},
    ]
    files = [{"domain": "shop", "descriptors": [{"key": "a", "rate_limit": {**limit, **way}}]} for way in ways]

    assert is_accepted_alike(files) == [True] * 4 + [False] * 5


def test_a_quota_unit_is_a_short_word_in_the_schema_too() -> None:
    units = ["requests", "content-bytes", "tokens", "micro-usd", "k8s", "a" * 32, None]
    others = ["", "Tokens", "micro usd", "a" * 33, "€", 5, True]
    limit = {"unit": "day", "requests_per_unit": 100}

    assert (
        is_accepted_alike(
            [
                {"domain": "shop", "descriptors": [{"key": "a", "rate_limit": {**limit, "quota_unit": unit}}]}
                for unit in [*units, *others]
            ]
        )
        == [True] * 7 + [False] * 7
    )


def test_the_schema_accepts_an_earlier_word_and_calls_it_deprecated() -> None:
    denied, limit = {"deny": True, "retry_after": "1 hour"}, {"unit": "day", "requests_per_unit": 1}
    descriptors = [{"key": "a", "rate_limit": denied}, {"key": "b", "group": {"ipv6": 64}, "rate_limit": limit}]
    properties = json_schema()["properties"]

    assert is_accepted_alike([{"domain": "d", "default": {"rate_limit": denied}, "descriptors": descriptors}]) == [True]
    assert properties["default"]["deprecated"]
    assert "deprecated" not in properties["otherwise"]


def is_accepted_alike(files: Sequence[object]) -> list[bool]:
    """Whether each file is good, by the schema and by the service, which agree."""

    def is_read(file: object) -> bool:
        try:
            book(json.dumps(file), read_data=lambda _: b"a\n")
        except RulesError:
            return False
        return True

    path = {"PYTHONPATH": str(peers.kubernetes_validate())}
    given = json.dumps([json_schema(), files])
    done = subprocess.run(
        [sys.executable, "-c", VALID], input=given, env=path, capture_output=True, text=True, check=False
    )

    read = [is_read(file) for file in files]
    assert json.loads(done.stdout) == read, done.stderr
    return read
