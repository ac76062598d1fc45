"""Data files: lists of values that rules name, a line each, kept out of the YAML because they are long.

A line is `value` or `value,name`. Spaces around both do not count. Either may stand in quotes, as in CSV: `"a,b"`, and
`""` within for a quote. `#` at the beginning of a line, or after a space, begins a comment; blank lines are skipped.
The text is UTF-8, with or without a byte order mark; lines end with LF or CRLF.

Laws:

1. Any bytes give entries, or a report of what is wrong and where.
2. Bytes and lines are bounded: of a line, of a file, and of all files of a load.
3. A load runs in a thread beside the event loop. So no step of it takes long: the text is decoded in chunks.
"""

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ratelimit_service.errors import Problem, RulesError
from ratelimit_service.rules.problems import LintWarning, Position, Positioned, Report, printable, quoted
from ratelimit_service.system.disk import read_file

MAX_BYTES: Final = 32 * 2**20
MAX_LINES: Final = 1_000_000
"""The most lines of one file. A value takes about 150 bytes of memory in each process."""
MAX_ALL_BYTES: Final = 64 * 2**20
MAX_ALL_LINES: Final = 2_000_000
MAX_FILES: Final = 1000
"""The most data files of one load. They are looked at once a second."""
MAX_LINE: Final = 64 * 1024
"""Bytes of one line, and of what is decoded at a time."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n|\Z)")
_QUOTED: Final = re.compile(r'"((?:[^"]|"")*)"')
_SPACES: Final = re.compile(r"\s*")
_PLAIN: Final = re.compile(r"(?:(?!\s#)[^,])*")

ReadData = Callable[[str], bytes]
"""Reads the data file at a path, at most one byte more than `MAX_BYTES`. Raises OSError."""


def read_data_file(path: str) -> bytes:
    """The bytes of a data file; one that is too large is not read whole. Raises OSError."""
    return read_file(path, MAX_BYTES + 1)


class DataFile:
    """A data file as it was read. Immutable."""

    __slots__ = ("entries", "lines", "path", "text", "warnings")

    def __init__(self, path: str, text: bytes, report: Report) -> None:
        """Read the text; RulesError with all that is wrong."""
        self.path = path
        self.text = text
        self.lines = _count_lines(text)
        self.entries: Mapping[str, str] = _read(text, report)
        """The name of each value, in the order of the file; empty for a value without a name."""
        if report.problems:
            raise RulesError(report.problems)
        self.warnings: Sequence[LintWarning] = tuple(report.warnings)

    def places(self) -> Mapping[str, Position]:
        """The place of each value. It reads the text again: ask once, and only when there is something to report."""
        return _places(self.text)


class DataFiles:
    """The data files of one load of the rules.

    Each is read once, however many rules name it. One that a `previous` load read with the same bytes is taken over.
    """

    def __init__(self, read: ReadData, previous: Mapping[str, DataFile]) -> None:
        self.files: dict[str, DataFile] = {}
        self._read = read
        self._previous = previous
        self._reports: dict[str, Report] = {}
        self._bytes = self._lines = 0

    def open(self, name: str, at: Positioned, key: str, report: Report) -> DataFile | None:
        """The file that an option names, relative to the rules file; `at` is the name's position, `key` the option's.

        None when it cannot be used, which is reported: where it is named, or at the line that is wrong.
        """
        if not report.is_file:
            report.add(at, f"{key}: only rules files can name data files; write the values here")
            return None
        path = str(Path(report.path).parent / name)
        shown = f'"{printable(path)}"'  # whole, or one could not find it
        if path in self.files:
            return self.files[path]
        if name.endswith((".yaml", ".yml")):
            report.add(at, f"{key} {shown} is named like a rules file, and would be read as one; rename it")
            return None
        own = self._reports.get(path)
        if own is None:
            if len(self._reports) >= MAX_FILES:
                report.add(at, f"{key}: the rules name more than {MAX_FILES:,} data files; join some")
                return None
            own = self._reports[path] = Report(path)
        if own.problems or self._bytes > MAX_ALL_BYTES or self._lines > MAX_ALL_LINES:
            return None  # which is reported already
        try:
            text = self._read(path)
        except OSError as error:
            report.add(at, f"{key} {shown} cannot be read: {(error.strerror or str(error)).lower()}")
            return None
        except ValueError:  # open() refuses a path with a NUL
            report.add(at, f"{key} {shown} is not a path")
            return None
        before = self._previous.get(path)
        try:
            found = before if before is not None and before.text == text else DataFile(path, text, own)
        except RulesError:
            return None
        own.warnings.update(dict.fromkeys(found.warnings))
        self.files[path] = found
        self._bytes += len(text)
        self._lines += found.lines
        if self._bytes > MAX_ALL_BYTES or self._lines > MAX_ALL_LINES:
            most = f"{MAX_ALL_BYTES >> 20} MiB or {MAX_ALL_LINES:,} lines"
            report.add(at, f"{key}: with {shown}, all data files together are larger than {most}")
        return found

    def report_of(self, file: DataFile) -> Report:
        """The report for problems of the file's values where they are used; `file.places()` has the positions."""
        return self._reports[file.path]

    @property
    def problems(self) -> list[Problem]:
        """The errors in all files."""
        return [problem for report in self._reports.values() for problem in report.problems]

    @property
    def warnings(self) -> list[LintWarning]:
        """The warnings about all files."""
        return [warning for report in self._reports.values() for warning in report.warnings]


_Entry = tuple[int, str, str, str]
"""The number of its line, the line, the value, the name. No class: it would take half of the time of a read."""


def _read(text: bytes, report: Report) -> dict[str, str]:
    """The name of each value; what is wrong is reported."""
    entries: dict[str, str] = {}
    names: dict[str, str] = {}
    count = 0
    twice: list[_Entry] = []
    with suppress(RulesError):  # the report has the reason
        _check_size(text, report)
        for entry in _entries(text, report):
            _, _, value, name = entry
            # Many values have the same few names: one object each.
            entries.setdefault(value, names.setdefault(name, name))
            if len(entries) == count:
                twice.append(entry)
            count = len(entries)
        if twice:
            _report_twice(twice, entries, _places(text), report)
    return entries


def _report_twice(
    twice: Sequence[_Entry], entries: Mapping[str, str], places: Mapping[str, Position], report: Report
) -> None:
    for number, line, value, name in twice:
        at = Position(number, _column(line))
        # The values may be secrets, and messages are logged.
        before = f"the value is given twice, first in line {places[value].line}"
        if name == entries[value]:
            report.warn(at, "duplicate", before)
        else:
            names = f"{quoted(entries[value])} there and {quoted(name)} here"
            report.add(at, f"{before}, with different names: {names}")


def _check_size(text: bytes, report: Report) -> None:
    if len(text) > MAX_BYTES:
        report.stop(Position(0, 0), f"is larger than {MAX_BYTES >> 20} MiB; split it")
    if _count_lines(text) > MAX_LINES:
        report.stop(Position(MAX_LINES + 1, 1), f"the file has more than {MAX_LINES:,} lines; split it")
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        report.stop(Position(1, 1), "is written in UTF-16; save it as UTF-8")


def _count_lines(text: bytes) -> int:
    return text.count(b"\n") + (not text.endswith(b"\n") and bool(text))


def _entries(text: bytes, report: Report) -> Iterator[_Entry]:
    """The entries; malformed lines are reported, and RulesError is raised for what no line is."""
    for number, line in enumerate(_lines(text, report), 1):
        # Most lines need no parser: this takes a third of the time.
        if '"' not in line and "#" not in line:
            value, comma, name = line.partition(",")
            value = value.strip()
            if value and "," not in name:
                yield number, line, value, name.strip()
                continue
            if not value and not comma:
                continue
        fields = _fields(number, line, report)
        if fields is not None:
            yield number, line, *fields


def _lines(text: bytes, report: Report) -> Iterator[str]:
    """The lines, each with its CR."""
    at = len(codecs.BOM_UTF8) if text.startswith(codecs.BOM_UTF8) else 0
    number = 0
    while at < len(text):
        end = text.rfind(b"\n", at, at + MAX_LINE) + 1
        if not end:
            if len(text) - at > MAX_LINE:
                report.stop(Position(number + 1, 1), f"the line is longer than {MAX_LINE >> 10} KiB")
            end = len(text)
        lines = _decoded(text[at:end], number, report).removesuffix("\n").split("\n")
        yield from lines
        number += len(lines)
        at = end


def _decoded(chunk: bytes, number: int, report: Report) -> str:
    """The chunk as text; `number` lines come before it."""
    problem = ""
    try:
        part = chunk.decode()
    except UnicodeDecodeError as error:
        part = chunk[: error.start].decode()
        problem = f"byte 0x{chunk[error.start]:02x} is not UTF-8"
    if found := _CONTROL.search(part):
        part = part[: found.start()]
        problem = f"the control character U+{ord(found[0]):04X} is not allowed"
    if problem:
        report.stop(Position(number + part.count("\n") + 1, len(part) - part.rfind("\n")), problem)
    return part


def _fields(number: int, line: str, report: Report) -> tuple[str, str] | None:
    """Value and name of a line, by the whole grammar; None if it has none, or is malformed, which is reported."""
    fields: list[tuple[int, str, bool]] = []
    at = -1
    while not fields or (line.startswith(",", at) and len(fields) < 3):
        start = _after_spaces(line, at + 1)
        found = _QUOTED.match(line, start)
        if found is None and line.startswith('"', start):
            report.add(Position(number, start + 1), "the quote is not closed on this line")
            return None
        if found is not None:
            text, end = found[1].replace('""', '"'), found.end()
        else:
            plain = "" if line.startswith("#", start) else _PLAIN.match(line, start)[0]  # type: ignore[index]  # it matches the empty text
            text, end = plain.strip(), start + len(plain)
        fields.append((start + 1, text, found is not None))
        at = _after_spaces(line, end)
    if len(fields) > 2:
        message = "a line is value or value,name, and this one goes on; write what has a comma in quotes"
        report.add(Position(number, fields[2][0]), message)
        return None
    if at < len(line) and line[at] != "#":
        report.add(Position(number, at + 1), "after a closing quote comes a comma, or the end of the line")
        return None
    column, value, is_quoted = fields[0]
    if value or is_quoted:
        return value, fields[1][1] if len(fields) > 1 else ""
    if len(fields) > 1:
        report.add(Position(number, column), "the line has a name and no value")
    return None


def _after_spaces(line: str, at: int) -> int:
    return _SPACES.match(line, at).end()  # type: ignore[union-attr]  # it matches the empty text


def _column(line: str) -> int:
    return _after_spaces(line, 0) + 1


def _places(text: bytes) -> dict[str, Position]:
    """The first place of each value."""
    found: dict[str, Position] = {}
    for number, line, value, _ in _entries(text, Report("")):
        found.setdefault(value, Position(number, _column(line)))
    return found
