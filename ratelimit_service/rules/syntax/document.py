"""A document of rules: a tree of nodes with a name. What it was written in, such as YAML, its reader alone knows."""

import math
from decimal import Decimal
from typing import NamedTuple, Protocol

from ratelimit_service.rules.problems import Report, quoted, shortened
from ratelimit_service.settings.fields import SourceKind

Value = str | bool | int | float | None
"""The value of a scalar."""


class Scalar(NamedTuple):
    """One value: its text in the document, and its meaning there."""

    line: int
    column: int
    text: str
    value: Value


class YamlList(NamedTuple):
    """A list."""

    line: int
    column: int
    items: "list[YamlNode]"


class Field(NamedTuple):
    """A key of a map and its value."""

    key: Scalar
    value: "YamlNode"


class YamlMap(NamedTuple):
    """A map by the text of its keys; duplicates are removed, merge keys are resolved."""

    line: int
    column: int
    fields: dict[str, Field]


YamlNode = Scalar | YamlList | YamlMap


class Document(Protocol):
    """One document, which has rules of one domain."""

    @property
    def name(self) -> str:
        """The name for messages: the path of a file. Data files that it names are relative to it."""

    @property
    def text(self) -> bytes:
        """Its text. Workers are sent this and make nodes of it again, as `open_document` does for `kind`."""

    @property
    def kind(self) -> str:
        """The kind of `text`, such as `yaml`."""

    @property
    def source(self) -> SourceKind:
        """The source that has it. Only rules files may name data files."""

    def nodes(self, report: Report) -> YamlNode | None:
        """Its root, made anew, or None if it is empty. Raises RulesError, with a reason in the report, if it has none.

        In what has no lines a node has a number of its own as its line, and `report.pointers` gets its path by that.
        """


def kind_of(node: YamlNode) -> str:
    """The type of the node, for a message."""
    match node:
        case YamlList():
            return "a list"
        case YamlMap():
            return "a map"
        case Scalar(value=None):
            return "null"
        case Scalar(value=bool()):
            return f"the boolean {node.text}"
        case Scalar(value=int() | float()):
            return f"the number {shortened(node.text)}"
        case _:
            return f"the text {quoted(node.text)}"


def free_nodes(node: YamlNode) -> None:
    """Free the tree piece by piece. Freed at once, a large one would stop all threads for 20 ms."""
    match node:
        case YamlList():
            while node.items:
                free_nodes(node.items.pop())
        case YamlMap():
            while node.fields:
                free_nodes(node.fields.popitem()[1].value)


def printed(value: Value) -> str:
    """The value in the format of Go's `%v`: `1.50` is `1.5`, `1e3` is `1000`, `1e6` is `1e+06`, null is `<nil>`."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case float():
            return _printed_float(value)
    return str(value)


def _printed_float(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:+f}".replace("inf", "Inf")
    mantissa, _, exponent = f"{Decimal(repr(value)).normalize():e}".partition("e")
    power = int(exponent)
    # The bounds of Go's strconv for the shortest text that is read as this float.
    if value and not -4 <= power < 6:
        return f"{mantissa}e{power:+03d}"
    return f"{Decimal(repr(value)).normalize():f}"
