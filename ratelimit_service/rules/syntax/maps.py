"""Reads the options in the maps of a rules file, with a hint for each key that is unknown or in the wrong place."""

from collections.abc import Mapping
from typing import Any

from ratelimit_service.rules.problems import Report, nearest, quoted
from ratelimit_service.rules.syntax.document import Scalar, YamlMap, kind_of
from ratelimit_service.rules.syntax.options import BY_MAP, OPTIONS, MapType

_RULE_FIELDS = tuple((option.key, option.rule_field) for option in OPTIONS if option.rule_field)
_LIMIT_FIELDS = tuple((option.key, option.limit_field) for option in OPTIONS if option.limit_field)
_REQUIRED = {where: [option for option in options.values() if option.missing] for where, options in BY_MAP.items()}
_KEYS = frozenset(option.key for option in OPTIONS)
_FORMER = {where: [option for option in options.values() if option.former] for where, options in BY_MAP.items()}


def read_options(fields: YamlMap, where: MapType, report: Report) -> dict[str, Any]:
    """The values of the options in a map. Unknown, misplaced and malformed keys are reported."""
    known = BY_MAP[where]
    _rename_former(fields, where, report)
    values: dict[str, Any] = {}
    for key, (at, node) in fields.fields.items():
        option = known.get(key)
        if not isinstance(at.value, str):
            report.add(at, f"a key must be text, not {kind_of(at)}; write it in quotes")
        elif option is None:
            report.add(at, _stray(key, where))
        elif not (isinstance(node, Scalar) and node.value is None):
            value = option.type.read(node, at.text, report)
            if value is not None:
                values[key] = value
    for option in _REQUIRED[where]:
        if missing(fields, option.key, where):
            report.add(fields, option.missing)
    return values


def _rename_former(fields: YamlMap, where: MapType, report: Report) -> None:
    """Give options that have an earlier name their present one. Messages have the word that the file has."""
    for option in _FORMER[where]:
        field = fields.fields.pop(option.former, None)
        if field is not None and fields.fields.setdefault(option.key, field) is not field:
            report.add(field.key, f"{option.former} is another word for {option.key}: remove one of them")


def rule_fields(*options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Rule that these options set; of an option that is given twice the last value counts."""
    return {field: found[key] for found in options for key, field in _RULE_FIELDS if key in found}


def limit_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Limit that these options set."""
    return {field: options[key] for key, field in _LIMIT_FIELDS if key in options}


def given(fields: YamlMap, key: str) -> bool:
    """Whether the map has the key with any value, also a malformed one; null counts as absent."""
    field = fields.fields.get(key)
    return field is not None and not (isinstance(field.value, Scalar) and field.value.value is None)


def missing(fields: YamlMap, key: str, where: MapType) -> bool:
    """Whether the map has neither the key nor a misspelt form of it, which is reported already."""
    return not given(fields, key) and all(other in _KEYS or _meant(other, where) != key for other in fields.fields)


def _stray(key: str, where: MapType) -> str:
    if homes := _homes(key):
        return f"{key} does not belong {where}, but {homes}"
    if near := _meant(key, where):
        belongs = "" if near in BY_MAP[where] else f", which belongs {_homes(near)}"
        return f"unknown key {quoted(key)}; did you mean {near}{belongs}?"
    return f"unknown key {quoted(key)}; {where} there may be {', '.join(BY_MAP[where])}"


def _meant(key: str, where: MapType) -> str:
    """The known key that is most similar to an unknown one: of this map, else of any map; or empty."""
    return nearest(key, BY_MAP[where]) or nearest(key, _KEYS)


def _homes(key: str) -> str:
    return " or ".join(where for where in MapType if key in BY_MAP[where])
