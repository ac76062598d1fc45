"""A map of a rules file, read by the options that may stand in it."""

from typing import Any

from ratelimit_service.rules.nodes import Fields, Scalar, kind_of
from ratelimit_service.rules.options import BY_BLOCK, OPTIONS, Block
from ratelimit_service.rules.report import Report, nearest, quoted

_REQUIRED = {block: [option for option in options.values() if option.missing] for block, options in BY_BLOCK.items()}

_KEYS = frozenset(option.key for option in OPTIONS)


def read_block(fields: Fields, block: Block, report: Report) -> dict[str, Any]:
    """The values of the options that the map gives; what does not belong there, or is malformed, is reported."""
    known = BY_BLOCK[block]
    values: dict[str, Any] = {}
    for key, (at, node) in fields.fields.items():
        option = known.get(key)
        if not isinstance(at.value, str):
            report.add(at, f"a key must be text, not {kind_of(at)}; write it in quotes")
        elif option is None:
            report.add(at, _stray(key, block))
        elif not (isinstance(node, Scalar) and node.value is None):
            value = option.kind.read(node, key, report)
            if value is not None:
                values[key] = value
    for option in _REQUIRED[block]:
        if missing(fields, option.key, block):
            report.add(fields, option.missing)
    return values


def given(fields: Fields, key: str) -> bool:
    """Whether the map has the key with any value, also a malformed one; null is none."""
    field = fields.fields.get(key)
    return field is not None and not (isinstance(field.value, Scalar) and field.value.value is None)


def missing(fields: Fields, key: str, block: Block) -> bool:
    """Whether the map has neither the key nor a misspelt one that was meant for it: that is reported already."""
    return not given(fields, key) and all(other in _KEYS or _meant(other, block) != key for other in fields.fields)


def _stray(key: str, block: Block) -> str:
    if homes := _homes(key):
        return f"{key} does not belong {block}, but {homes}"
    if near := _meant(key, block):
        where = "" if near in BY_BLOCK[block] else f", which belongs {_homes(near)}"
        return f"unknown key {quoted(key)}; did you mean {near}{where}?"
    return f"unknown key {quoted(key)}; {block} there may be {', '.join(BY_BLOCK[block])}"


def _meant(key: str, block: Block) -> str:
    """The known key that is nearest to an unknown one: of those that belong here, else of all; or none."""
    return nearest(key, BY_BLOCK[block]) or nearest(key, _KEYS)


def _homes(key: str) -> str:
    return " or ".join(block for block in Block if key in BY_BLOCK[block])
