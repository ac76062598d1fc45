"""Rules need no YAML: a document is a tree of nodes, and its places are what its maker says."""

import json
from typing import Any, NamedTuple

import pytest

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.problems import Report
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.syntax.document import Field, Scalar, YamlList, YamlMap, YamlNode
from ratelimit_service.settings.fields import SourceKind
from tests.books import matched


class JsonRules(NamedTuple):
    """A document that is JSON, whose places are JSON pointers, as an API would have them."""

    name: str
    text: bytes
    source: SourceKind = SourceKind.API

    @property
    def kind(self) -> str:
        return "json"

    def nodes(self, report: Report) -> YamlNode | None:
        pointers: dict[int, str] = {}
        report.pointers = pointers

        def node(value: Any, pointer: str) -> YamlNode:
            number = len(pointers)
            pointers[number] = pointer
            match value:
                case dict():
                    values = {key: node(each, f"{pointer}/{key}") for key, each in value.items()}
                    return YamlMap(
                        number,
                        0,
                        {key: Field(Scalar(each.line, 0, key, key), each) for key, each in values.items()},
                    )
                case list():
                    return YamlList(number, 0, [node(each, f"{pointer}/{at}") for at, each in enumerate(value)])
            return Scalar(number, 0, value if isinstance(value, str) else json.dumps(value), value)

        return node(json.loads(self.text), "")


def limit(requests: int, unit: str = "day") -> dict[str, Any]:
    return {"unit": unit, "requests_per_unit": requests}


def book(*documents: object, **options: Any) -> RuleBook:
    return parse(
        [JsonRules(f"api:{number}", json.dumps(rules).encode()) for number, rules in enumerate(documents)], **options
    )


def test_a_book_is_made_of_nodes_that_were_no_yaml() -> None:
    rules = book({"domain": "shop", "descriptors": [{"key": "user", "rate_limit": limit(5)}, {"key": "ip"}]})

    assert matched(rules, "shop", (("user", "ada"),)) == ("shop.user", "shop|user=ada")
    (place,) = [rule.place for rule in rules.rules]
    assert place is not None
    assert str(place) == place.short == "api:0/descriptors/0/rate_limit"


def test_each_error_has_the_path_of_its_node_and_of_another_that_it_names() -> None:
    user = {"key": "user", "rate_limit": limit(5)}
    wrong = {"domain": "shop", "descriptors": [user, user, {"key": "ip", "rate_limit": limit(1, "fortnight")}]}
    with pytest.raises(RulesError) as raised:
        book(wrong, None, {"domain": "shop", "descriptors": [], "color": 1})

    units = "second, minute, hour, day, week, month, year"
    twice = 'descriptor "user" is given twice at this level, first at api:0/descriptors/0/key; join them'
    assert str(raised.value).split("\n") == [
        f"api:0/descriptors/1/key: {twice}",
        f'api:0/descriptors/2/rate_limit/unit: unit "fortnight" is not one of {units}',
        "api:1: the file is empty; it must begin with a domain",
        'api:2/color: unknown key "color"; did you mean floor, which belongs in rate_limit?',
        'api:2/domain: domain "shop" is already in api:0/domain; MERGE_DOMAIN_CONFIG joins files',
    ]


def test_a_warning_names_other_places_by_their_paths() -> None:
    months = [{"key": key, "rate_limit": limit(5, "month")} for key in ("user", "ip", "plan")]
    (warning,) = book({"domain": "shop", "descriptors": months}).warnings

    assert str(warning).startswith("api:0/descriptors/0/rate_limit/unit: warning: ")
    assert "(also at /descriptors/1/rate_limit/unit, /descriptors/2/rate_limit/unit)" in str(warning)
