"""A document of rules as YAML: text -> a tree of nodes that know their places in it.

Laws:

1. Any bytes give a tree, or a report of what is wrong and where.
2. Time and memory grow with the bytes. Nesting is bounded, against deep recursion. What aliases expand to is bounded,
   against documents of a few lines that stand for billions of nodes.
3. libyaml parses one event at a time and reads 16 KiB at a time. A load runs in a thread beside the event loop, and a C
   call that parsed a whole file would delay every request for as long.

A scalar without quotes is read as Go's yaml.v2 reads it, which is YAML 1.1: `yes` is a boolean, `0o17` and `017` are
fifteen, `1_000` is a thousand, `08` is a float, a date is text. A scalar in quotes is always text.
"""

import codecs
import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import yaml

from ratelimit_service.rules.problems import Position, Report, quoted, shortened
from ratelimit_service.rules.syntax.document import Field, Scalar, Value, YamlList, YamlMap, YamlNode, kind_of
from ratelimit_service.settings.fields import SourceKind

try:
    from yaml._yaml import CParser as EventParser
except ImportError:  # PyYAML was built without libyaml; its own parser gives the same events, ten times slower
    from yaml import SafeLoader as EventParser  # type: ignore[assignment]  # both have get_event

MAX_BYTES = 16 * 2**20
"""Enough for a hundred thousand rules."""
MAX_NODES = 2_000_000
"""A hundred thousand rules have about a million nodes. An alias counts as all nodes that it stands for."""
MAX_DEPTH = 100

_CHUNK = 16 * 1024
_MAX_TAG_DIRECTIVES = 100
"""libyaml compares each directive with all before it: a file full of them would take half an hour."""
_CONTROL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_TAGS = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class YamlText:
    """A document of rules that is YAML, such as a rules file: its name, which is its path, and its bytes."""

    name: str
    text: bytes
    source: SourceKind = SourceKind.FILES
    kind: ClassVar[str] = "yaml"

    def nodes(self, report: Report) -> YamlNode | None:
        """The only document of the text, or None if it is empty. Raises RulesError if reading must stop."""
        _check_text(self.text, report)
        return Composer(self.text, report).document()


def _check_text(text: bytes, report: Report) -> None:
    if len(text) > MAX_BYTES:
        report.stop(Position(0, 0), f"is larger than {MAX_BYTES >> 20} MiB; split it")
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        report.stop(Position(1, 1), "is written in UTF-16; save it as UTF-8")
    if text.count(b"%TAG") > _MAX_TAG_DIRECTIVES:
        report.stop(Position(0, 0), f"has more than {_MAX_TAG_DIRECTIVES} %TAG directives, and needs none")
    decode = codecs.getincrementaldecoder("utf-8")().decode
    line = column = 1
    before = ""
    for start in range(0, len(text), _CHUNK):
        problem = None
        try:
            part = decode(text[start : start + _CHUNK], start + _CHUNK >= len(text))
        except UnicodeDecodeError as error:
            part = error.object[: error.start].decode()
            problem = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        if start == 0:
            part = part.removeprefix("\ufeff")
        if found := _CONTROL.search(part):
            problem = f"the control character U+{ord(found[0]):04X} is not allowed in YAML"
            part = part[: found.start()]
        if before.endswith("\r"):
            part = part.removeprefix("\n")  # a line break split over two chunks
        before = part or before
        *lines, rest = _BREAK.split(part)
        if lines:
            line, column = line + len(lines), 1
        column += len(rest)
        if problem:
            report.stop(Position(line, column), problem)


class _Chunks:
    """The text in chunks, as libyaml reads it. Between two reads the interpreter can switch to another thread."""

    name = "<rules>"

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0

    def read(self, size: int = _CHUNK) -> bytes:
        """The next bytes, empty at the end."""
        part = self._text[self._at : self._at + min(size, _CHUNK)]
        self._at += len(part)
        return part


class _Anchor(NamedTuple):
    node: YamlNode | None
    """None until the node is complete: an alias to it before would be a cycle."""
    size: int


class Composer:
    """Builds a tree from the events of a YAML parser: libyaml's, or PyYAML's own."""

    def __init__(self, text: bytes, report: Report, parser: Any = EventParser) -> None:
        # If the parser removed the byte order mark itself, it would count it as a column.
        self._get_event = parser(_Chunks(text.removeprefix(codecs.BOM_UTF8))).get_event
        self._report = report
        self._anchors: dict[str, _Anchor] = {}
        self._nodes = 0

    def document(self) -> YamlNode | None:
        """The first document. A second one that is not empty is an error."""
        root: YamlNode | None = None
        documents = 0
        while True:
            match self._event():
                case yaml.DocumentStartEvent() as start:
                    event = self._event()
                    if documents and not _empty(event):
                        self._report.stop(
                            _at(start),
                            "a second YAML document begins here, but a rules file has one; make it another file",
                        )
                    self._anchors.clear()
                    node = self._node(event, 0)
                    if not documents:
                        root = node
                    documents += 1
                case yaml.StreamEndEvent():
                    return root

    def _event(self) -> Any:
        try:
            return self._get_event()
        except yaml.MarkedYAMLError as error:
            self._report.stop(_mark(error.problem_mark or error.context_mark), _syntax(error))
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            # After _check_text, libyaml does not raise these. PyYAML's own parser fails on some escapes.
            self._report.stop(Position(0, 0), f"is not valid YAML: {error}")

    def _node(self, event: Any, depth: int) -> YamlNode:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._report.stop(_at(event), f"the file has more than {MAX_NODES:,} nodes; split it")
        match event:
            case yaml.AliasEvent():
                return self._alias(event)
            case yaml.ScalarEvent():
                node: YamlNode = self._scalar(event)
                if event.anchor is not None:
                    self._anchors[event.anchor] = _Anchor(node, 1)
                return node
        if depth >= MAX_DEPTH:
            self._report.stop(_at(event), f"lists and maps are nested deeper than {MAX_DEPTH}")
        before = self._nodes
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(None, 0)
        node = self._items(event, depth) if isinstance(event, yaml.SequenceStartEvent) else self._fields(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(node, self._nodes - before + 1)
        return node

    def _alias(self, event: Any) -> YamlNode:
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            self._report.stop(_at(event), f"alias *{event.anchor} has no anchor &{event.anchor} before it")
        if anchor.node is None:
            self._report.stop(_at(event), f"alias *{event.anchor} stands inside its own anchor &{event.anchor}")
        self._nodes += anchor.size
        if self._nodes > MAX_NODES:
            self._report.stop(_at(event), f"aliases expand the file to more than {MAX_NODES:,} nodes; split it")
        return anchor.node

    def _scalar(self, event: Any) -> Scalar:
        mark = event.start_mark
        text = event.value
        tag = event.tag
        if tag is not None:
            value = self._tagged(event, tag, text)
        else:
            value = resolve(text) if event.implicit[0] else text
        if not text.isascii() and _SURROGATE.search(text):  # PyYAML's own parser accepts such an escape
            self._report.stop(_at(event), "is not valid YAML: half of a surrogate pair is not a character")
        return Scalar(mark.line + 1, mark.column + 1, text, value)

    def _tagged(self, event: Any, tag: str, text: str) -> Value:
        if tag in ("!", _TAGS + "str"):
            return str(text)
        value = resolve(text)
        fits: bool
        match tag.removeprefix(_TAGS):
            case "null":
                fits = value is None
            case "bool":
                fits = isinstance(value, bool)
            case "int":
                fits = isinstance(value, int) and not isinstance(value, bool)
            case "float":
                fits = isinstance(value, int | float) and not isinstance(value, bool)
                value = float(value) if isinstance(value, int) and fits else value
            case "timestamp" | "merge":
                return text
            case _:
                self._report.add(_at(event), f"tag {_short(tag)} is not known; remove it")
                return text
        if not fits:
            self._report.add(_at(event), f"{quoted(text)} is not what its tag {_short(tag)} says")
        return value

    def _items(self, event: Any, depth: int) -> YamlList:
        self._check_tag(event, "seq")
        items: list[YamlNode] = []
        while not isinstance(inner := self._event(), yaml.SequenceEndEvent):
            items.append(self._node(inner, depth + 1))
        return YamlList(event.start_mark.line + 1, event.start_mark.column + 1, items)

    def _fields(self, event: Any, depth: int) -> YamlMap:
        self._check_tag(event, "map")
        fields: dict[str, Field] = {}
        written: dict[str, Scalar] = {}
        while not isinstance(inner := self._event(), yaml.MappingEndEvent):
            key = self._node(inner, depth + 1)
            value = self._node(self._event(), depth + 1)
            if not isinstance(key, Scalar):
                self._report.add(_at(inner), f"a key must be text, not {kind_of(key)}")
            elif key.text in written:
                first = written[key.text]
                message = f"key {quoted(key.text)} is given twice in this map, first at {first.line}:{first.column}"
                self._report.add(_at(inner), message)
            else:
                written[key.text] = key
                if key.text == "<<" and _is_merge(inner):
                    self._merge(value, fields)
                else:
                    fields[key.text] = Field(key, value)
        return YamlMap(event.start_mark.line + 1, event.start_mark.column + 1, fields)

    def _merge(self, value: YamlNode, fields: dict[str, Field]) -> None:
        """Add the fields of other maps (`<<`). Of a list the first map wins; of a merge and a key the later one."""
        maps = value.items if isinstance(value, YamlList) else [value]
        for one in reversed(maps):
            if isinstance(one, YamlMap):
                fields.update(one.fields)
            else:
                self._report.add(one, f"<< takes a map or a list of maps, not {kind_of(one)}")

    def _check_tag(self, event: Any, known: str) -> None:
        if event.tag not in (None, "!", _TAGS + known):
            self._report.add(_at(event), f"tag {_short(event.tag)} is not known here; remove it")


def _is_merge(event: Any) -> bool:
    """Whether a key `<<` is a merge key: written without quotes. An alias to such a scalar is a text."""
    if not isinstance(event, yaml.ScalarEvent):
        return False
    return bool(event.implicit[0]) or event.tag == _TAGS + "merge"


def _empty(event: Any) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == "" and event.tag is None and event.implicit[0]


def _short(tag: str) -> str:
    return shortened("!!" + tag.removeprefix(_TAGS) if tag.startswith(_TAGS) else tag)


def _at(event: Any) -> Position:
    return _mark(event.start_mark)


def _mark(mark: Any) -> Position:
    return Position(0, 0) if mark is None else Position(mark.line + 1, mark.column + 1)


def _syntax(error: yaml.MarkedYAMLError) -> str:
    message = f"is not valid YAML: {error.problem}"
    if error.context and error.context_mark is not None:
        begun = _mark(error.context_mark)
        message += f" {error.context}, begun at {begun.line}:{begun.column}"
    if error.problem and ("cannot start any token" in error.problem or "tab character" in error.problem):
        message += " (a tab? indent with spaces)"
    return message


_WORDS: dict[str, Value] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}

_NUMERIC = frozenset("+-.0123456789")
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|([1-9][0-9]*|0))")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_BASES = (16, 2, 8, 10)

_MAX_INTEGER_LENGTH = 70
"""Enough for a sign, `0b` and 64 digits. Python raises an error for integers with thousands of digits."""


def resolve(text: str) -> Value:
    """The value of a scalar that has no quotes and no tag."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC:
        return text
    plain = text.replace("_", "") if text[0] != "." else text
    if len(plain) <= _MAX_INTEGER_LENGTH and (match := _INTEGER.fullmatch(plain)):
        sign, *digits = match.groups()
        number = next(int(part, base) for part, base in zip(digits, _BASES, strict=True) if part)
        number = -number if sign == "-" else number
        # In Go an integer has 64 bits; a larger one is read as a float, or else as text.
        if -(2**63) <= number < (2**63 if sign else 2**64):
            return number
    if _FLOAT.fullmatch(plain) and math.isfinite(real := float(plain)):
        return real
    return text
