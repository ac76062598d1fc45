"""Reads access logs: common, combined, JSON lines, CSV; each line becomes a time and the values of some fields.

Whatever a file has in it, memory is bounded: a line may have `MAX_LINE` bytes, and is unpacked as it is read.
"""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from ratelimit_service.commands.simulate.mapping import Values
from ratelimit_service.system.clock import SECOND

MAX_LINE: Final = 65_536
"""Bytes; a longer line is one that cannot be read."""

MAX_PROBLEMS: Final = 5
"""Lines that cannot be read and are shown; all are counted."""

FORMATS: Final = ("common", "combined", "json", "csv")

_CHUNK: Final = 1 << 20

Record = tuple[int, Values]
"""Microseconds since 1970, and the values."""

Parse = Callable[[str], Record]
"""ValueError says why a line cannot be read."""


class UnreadLine(NamedTuple):
    """A line that cannot be read."""

    path: str
    line: int
    reason: str
    text: str
    """Its begin."""


class Reader:
    """Reads files one after the other."""

    def __init__(
        self,
        fields: Sequence[str],
        *,
        form: str | None = None,
        time_field: str | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        """`form` is one of FORMATS; None: as the first two lines of each file look, since the first one may be cut.

        `columns` of CSV; none: a header.
        """
        self.unread = 0
        """Lines that cannot be read."""
        self.problems: list[UnreadLine] = []
        """The first of them."""
        self._fields = fields
        self._form = form
        self._time_field = time_field
        self._columns = columns

    def records(self, path: Path, on_read: Callable[[int], object]) -> Iterator[Record]:
        """All that can be read of a file; `on_read` is called with the number of bytes that were read of it.

        A usage error if the file or one of its fields does not exist.
        """
        try:
            with path.open("rb") as file:
                yield from self._records(path, file, on_read)
        except OSError as error:
            raise click.UsageError(f"{path} cannot be read: {error.strerror or error}") from error

    def _records(self, path: Path, file: BufferedReader, on_read: Callable[[int], object]) -> Iterator[Record]:
        parse: Parse | None = None
        number = 0
        read = gzip.GzipFile(fileobj=file).read if path.suffix == ".gz" else file.read

        def fetch() -> bytes:
            chunk = read(_CHUNK)
            on_read(file.tell())
            return chunk

        try:
            found = _lines(fetch)
            first = list(islice(found, 2))
            for number, line in chain(first, found):
                if line is None:
                    self._note(path, number, f"longer than {MAX_LINE:,} bytes", "")
                    continue
                if parse is None:
                    parse, has_header = self._parser(line, [each for _, each in first if each])
                    if has_header:
                        continue
                try:
                    record = parse(line)
                except ValueError as error:
                    if line.strip():
                        self._note(path, number, str(error), line)
                    continue
                yield record
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self._note(path, number + 1, f"the rest cannot be unpacked: {error}", "")

    def _note(self, path: Path, number: int, reason: str, line: str) -> None:
        self.unread += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(UnreadLine(str(path), number, reason, line[:80]))

    def _parser(self, line: str, first: Sequence[str]) -> tuple[Parse, bool]:
        """The parser for a file with these first lines, and whether this one, the first to be read, is a header."""
        form = self._form or _form_of(first)
        if form == "json":
            return _json_parser(self._fields, self._time_field), False
        if form == "csv":
            columns = self._columns or next(csv.reader([line]), [])
            return _csv_parser(self._fields, self._time_field, columns, known=self._form is not None), not self._columns
        return _access_parser(self._fields), False


def _form_of(lines: Sequence[str]) -> str:
    if any(_ACCESS.match(line) for line in lines):
        return "combined"
    # Not the begin alone: a row of CSV may have a brace there.
    return "json" if any(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in lines) else "csv"


def _lines(fetch: Callable[[], bytes]) -> Iterator[tuple[int, str | None]]:
    """The lines with their numbers; None in place of one that is too long."""
    number, rest, skipping = 0, b"", False
    while chunk := fetch():
        if skipping:
            _, newline, chunk = chunk.partition(b"\n")
            if not newline:
                continue
            skipping = False
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        for line in data[:end].decode(errors="replace").split("\n")[:-1]:
            number += 1
            yield number, _bounded(line, number)
        rest = data[end:]
        if len(rest) > MAX_LINE:
            number += 1
            yield number, None
            rest, skipping = b"", True
    if rest:
        yield number + 1, _bounded(rest.decode(errors="replace"), number + 1)


def _bounded(line: str, number: int) -> str | None:
    if len(line) > MAX_LINE:
        return None
    if number == 1:
        line = line.removeprefix("\ufeff")
    return line.removesuffix("\r")


# Apache's and nginx's: %h %l %u %t "%r" %>s %b, and for combined the referer and the user agent. More may follow.
# Possessive, so that a line made for it is not tried in many ways.
_ACCESS: Final = re.compile(
    r"(?P<remote_host>\S++) (?P<ident>\S++) (?P<user>[^\[]*) "
    r"\[(?P<time>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    r'"(?:(?P<method>[A-Za-z]++) (?P<uri>(?P<path>[^ ?"]*+)(?:\?(?P<query>[^ "]*+))?)(?: (?P<protocol>[^ "]++))?"'
    r'|[^"\\]*+(?:\\.[^"\\]*+)*+")'
    r" (?P<status>\d{3}|-) (?P<bytes>\d++|-)"
    r'(?: "(?P<referer>[^"\\]*+(?:\\.[^"\\]*+)*+)" "(?P<user_agent>[^"\\]*+(?:\\.[^"\\]*+)*+)")?'
)
ACCESS_FIELDS: Final = tuple(name for name in _ACCESS.groupindex if name != "time")


def _access_parser(fields: Sequence[str]) -> Parse:
    if unknown := [field for field in fields if field not in ACCESS_FIELDS]:
        raise click.UsageError(f"such a log has no field {unknown[0]}; there are {', '.join(ACCESS_FIELDS)}")
    match = _ACCESS.match

    def parse(line: str) -> Record:
        found = match(line)
        if found is None:
            raise ValueError("not a line of the common or combined format")
        when, _, *values = found.group("time", "time", *fields)  # two at least, so that there is a tuple
        return _access_time(when), tuple(values)

    return parse


_MONTHS: Final = {
    name: number
    for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)  # noqa: SIM905
}


@lru_cache(4096)
def _access_time(text: str) -> int:
    """The moment of `10/Oct/2000:13:55:36 -0700`."""
    if text[3:6] not in _MONTHS:
        raise ValueError(f"there is no month {text[3:6]}")
    zone = timedelta(hours=int(text[22:24]), minutes=int(text[24:26]))
    moment = datetime(
        *(int(text[7:11]), _MONTHS[text[3:6]], int(text[0:2])),
        *(int(text[12:14]), int(text[15:17]), int(text[18:20])),
        tzinfo=timezone(-zone if text[21] == "-" else zone),
    )
    return _microseconds(moment)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(moment: datetime) -> int:
    since = (moment - _EPOCH) // timedelta(microseconds=1)
    if since < 0:
        raise ValueError("its time is before 1970")
    return since


_TIME_FIELDS: Final = (
    *("time", "timestamp", "@timestamp", "ts", "start_time", "time_iso8601", "time_local", "msec", "date", "datetime"),
)
"""The fields where JSON lines and CSV have the time, if it is not said."""

_UNITS: Final = ((10**11, SECOND), (10**14, 1000), (10**17, 1))
"""A number below the first is in a unit of so many microseconds: 10^11 seconds are in the year 5138."""


@lru_cache(4096)
def read_time(value: str | float) -> int:
    """Microseconds since 1970 of a time as ISO 8601, as in an access log, or as a number of s, ms, µs or ns."""
    if isinstance(value, str):
        text = value.strip("[] ")
        if re.fullmatch(r"\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}", text):
            return _access_time(text)
        try:
            number = float(text)
        except ValueError:
            return _iso_time(text)
    else:
        number = value
    if not 0 <= number < 10**20:  # not a number either; an integer may be too large for a float
        raise ValueError(f"{f'{value}'[:40]} is not a time")
    return round(next((number * unit for most, unit in _UNITS if number < most), number / 1000))


def _iso_time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time, such as 2026-01-05T12:00:00Z or 1767614400") from None
    return _microseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _json_parser(fields: Sequence[str], time_field: str | None) -> Parse:
    times = (time_field,) if time_field else _TIME_FIELDS

    def parse(line: str) -> Record:
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error.msg}") from error
        except RecursionError as error:
            raise ValueError("not JSON: nested too deeply") from error
        if not isinstance(record, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - as all that is wrong with a line
        for name in times:
            time = record.get(name)
            if time is None and "." in name:
                time = _find(record, name)
            if isinstance(time, str | int | float) and not isinstance(time, bool):
                return read_time(time), tuple([_text(_find(record, field)) for field in fields])
        raise ValueError(f"it has no time in {' or '.join(times)}; name its field with --time")

    return parse


def _find(record: Any, path: str) -> Any:
    """The value with this name, or at this path with dots in it."""
    if path in record:
        return record[path]
    for name in path.split("."):
        record = record.get(name) if isinstance(record, dict) else None
    return record


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return None


def _csv_parser(fields: Sequence[str], time_field: str | None, columns: Sequence[str], *, known: bool) -> Parse:
    names = [name.strip() for name in columns]
    time = next((name for name in ((time_field,) if time_field else _TIME_FIELDS) if name in names), None)
    for field in (*fields, time):
        if field not in names:
            missing = f"no column {field}" if field else f"no column {time_field or 'of a time (--time)'}"
            hint = "--columns" if known else "--columns, or --format if this is another one"
            raise click.UsageError(f"the CSV has {missing}; there are {', '.join(names)[:200]} ({hint})")
    when, wanted = names.index(time or ""), [names.index(field) for field in fields]

    def parse(line: str) -> Record:
        try:
            row = next(csv.reader([line], strict=True), [])
        except csv.Error as error:
            raise ValueError(f"not CSV: {error}") from error
        if len(row) != len(names):
            raise ValueError(f"it has {len(row)} columns, not {len(names)}")
        return read_time(row[when]), tuple([row[index] for index in wanted])

    return parse
