"""The tree that a YAML document is read into; every node knows its place. Line and column count from 1."""

from typing import NamedTuple

from ratelimit_service.rules.report import quoted
from ratelimit_service.rules.scalar import Value


class At(NamedTuple):
    """A place that no node stands at."""

    line: int
    column: int


class Scalar(NamedTuple):
    """One value: its text as it is written, and what YAML makes of it."""

    line: int
    column: int
    text: str
    value: Value


class Items(NamedTuple):
    """A list."""

    line: int
    column: int
    items: "list[YamlNode]"


class Field(NamedTuple):
    """A key of a map and its value."""

    key: Scalar
    value: "YamlNode"


class Fields(NamedTuple):
    """A map by the texts of its keys, without duplicates, merge keys resolved."""

    line: int
    column: int
    fields: dict[str, Field]


YamlNode = Scalar | Items | Fields


def kind_of(node: YamlNode) -> str:
    """What the node is, in the words of a message."""
    match node:
        case Items():
            return "a list"
        case Fields():
            return "a map"
        case Scalar(value=None):
            return "null"
        case Scalar(value=bool()):
            return f"the boolean {node.text}"
        case Scalar(value=int() | float()):
            return f"the number {quoted(node.text)[1:-1]}"
        case _:
            return f"the text {quoted(node.text)}"


def dismantle(node: YamlNode) -> None:
    """Take the tree apart, piece by piece. Freed as a whole, a large one would hold up all threads for 20 ms."""
    match node:
        case Items():
            while node.items:
                dismantle(node.items.pop())
        case Fields():
            while node.fields:
                dismantle(node.fields.popitem()[1].value)
