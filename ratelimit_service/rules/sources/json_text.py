"""A document of rules as JSON. Its places are paths such as `/descriptors/3/rate_limit`: JSON Pointers (RFC 6901).

A number has the meaning that it has in YAML. Depth and nodes are bounded as there.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from ratelimit_service.rules.problems import Position, Report, quoted
from ratelimit_service.rules.sources.yaml_text import MAX_BYTES, MAX_DEPTH, MAX_NODES, resolve
from ratelimit_service.rules.syntax.document import Field, Scalar, Value, YamlList, YamlMap, YamlNode
from ratelimit_service.settings.fields import SourceKind

_WORDS: Final = {True: "true", False: "false", None: "null"}


@dataclass(frozen=True, slots=True)
class JsonText:
    """A document of rules that is JSON: its name, and its bytes."""

    name: str
    text: bytes
    source: SourceKind = SourceKind.API
    kind: ClassVar[str] = "json"

    def nodes(self, report: Report) -> YamlNode | None:
        """The root. Raises RulesError if the text cannot be read."""
        if len(self.text) > MAX_BYTES:
            report.stop(Position(0, 0), f"is larger than {MAX_BYTES >> 20} MiB; split it")
        try:
            text = self.text.decode()
            found = json.loads(text, object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number)
            text.encode()
        except UnicodeDecodeError as error:
            report.stop(Position(0, 0), f"byte 0x{self.text[error.start]:02x} is not UTF-8")
        except json.JSONDecodeError as error:
            report.stop(Position(error.lineno, error.colno), f"is not valid JSON: {error.msg}")
        except RecursionError:
            report.stop(Position(0, 0), f"lists and objects are nested deeper than {MAX_DEPTH}")
        return _JsonReader(report).node(found, "", 0)


class _Object(list[tuple[str, Any]]):
    """The members of an object, also those that have the same name."""


class _Number(str):
    """The text of a number."""

    __slots__ = ()


class _Numbered(NamedTuple):
    """A position for the report: the number of a node."""

    line: int
    column: int = 0


class _JsonReader:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._pointers: dict[int, str] = {0: ""}
        report.pointers = self._pointers

    def node(self, found: Any, pointer: str, depth: int) -> YamlNode:
        number = len(self._pointers)
        self._pointers[number] = pointer
        if number > MAX_NODES:
            self._report.stop(_Numbered(number), f"the document has more than {MAX_NODES:,} nodes; split it")
        if depth > MAX_DEPTH:
            self._report.stop(_Numbered(0), f"lists and objects are nested deeper than {MAX_DEPTH}")
        match found:
            case _Object():
                return YamlMap(number, 0, self._fields(found, pointer, depth))
            case list():
                items = [self.node(item, f"{pointer}/{index}", depth + 1) for index, item in enumerate(found)]
                return YamlList(number, 0, items)
            case _Number():
                return Scalar(number, 0, str(found), resolve(found))
            case bool() | None:
                return Scalar(number, 0, _WORDS[found], found)
        return self._text(number, str(found))

    def _fields(self, members: Sequence[tuple[str, Any]], pointer: str, depth: int) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        for name, found in members:
            path = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
            value = self.node(found, path, depth + 1)
            key = self._text(value.line, name)
            if name in fields:
                self._report.add(key, f"key {quoted(name)} is given twice in this object")
            else:
                fields[name] = Field(key, value)
        return fields

    def _text(self, number: int, text: str) -> Scalar:
        value: Value = text
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                self._report.stop(_Numbered(number), "half of a surrogate pair is not a character")
        return Scalar(number, 0, text, value)
