"""Log lines: their format, text or JSON with envoyproxy's field names, and a limit on those that clients can cause.

A line of JSON is at most MAX_LINE bytes long. Its fields are in docs/logs.md, and stay as they are.
"""

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

from ratelimit_service.system.clock import MINUTE, SECOND, Clock, steady_clock

_PACKAGE = __name__.partition(".")[0]
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
    "panic": logging.CRITICAL,
}

MAX_LINE: Final = 16 * 1024
"""Bytes of a line of JSON with its newline: runtimes of containers split longer ones, and a half is not JSON."""

_MAX_MESSAGE: Final = 4 * 1024
_MAX_EXCEPTION: Final = 5 * 1024
_MAX_LIST: Final = 3 * 1024
_MAX_TEXT: Final = 512
"""Bytes of a field as JSON, without the mark of a cut. `about` has six texts and a list at most."""


def about(event: str, **fields: str | int | list[str] | None) -> Mapping[str, Any]:
    """The `extra` of a log line that programs act on: fields of its line of JSON. In text they are not shown."""
    return {"about": {"event": event, **fields}}


Receive = Callable[[float, str, Mapping[str, Any]], None]
"""Takes the time of an event in seconds since the epoch, its message, and the fields of `about` with the event's name.
"""


def pass_events(receive: Receive) -> Callable[[], None]:
    """Pass each line that `about` makes an event to `receive`, also one that is not written; returns what ends this."""
    handler, package = _Events(receive), logging.getLogger(_PACKAGE)
    package.addHandler(handler)
    return lambda: package.removeHandler(handler)


class _Events(logging.Handler):
    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "about", None)
        if fields is not None:
            try:
                self._receive(record.created, record.getMessage(), fields)
            except Exception:  # noqa: BLE001 - as in every handler: what is logged goes on
                self.handleError(record)


def start_logging(level: str, form: str, *, worker: int = 0) -> None:
    """Write log lines from `level` up to standard error, as `text` or as `json`; those of a worker with its number.

    `level` is for the lines of this package. Those of libraries are written from warning up.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(_LEVELS[level])
    handler.setFormatter(JsonLines(worker) if form == "json" else _Text(worker))
    handler.addFilter(RareTracebacks())
    # Below warning, hpack logs every header of every call, credentials among them.
    logging.basicConfig(level=max(_LEVELS[level], logging.WARNING), handlers=[handler], force=True)
    logging.getLogger(_PACKAGE).setLevel(min(_LEVELS[level], logging.INFO))  # events, for `pass_events`
    # HTTP requests are counted, not logged.
    logging.getLogger("aiohttp.access").setLevel(logging.CRITICAL)
    if form == "json":
        sys.excepthook = _log_uncaught  # Python's own writes a traceback of many lines


class RareTracebacks(logging.Filter):
    """Lets an exception of a kind pass at most once a minute: raised by each call, it would fill the log.

    A kind is what was raised, where, and the line that logs it.
    """

    def __init__(self, now: Clock = steady_clock) -> None:
        super().__init__()
        self._now = now
        self._logged: dict[object, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged, as logging.Filter says."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or record.levelno > logging.ERROR:
            return True
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        raised = (at.tb_frame.f_code, at.tb_lineno) if at is not None else None
        kind, now = (record.pathname, record.lineno, type(error), raised), self._now()
        logged = self._logged.get(kind)
        if logged is not None and now - logged < MINUTE:
            return False
        self._logged[kind] = now
        return True


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger(_PACKAGE).critical("the process ends by an exception", exc_info=(kind, error, traceback))


class _Text(logging.Formatter):
    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = f"worker {worker}: " if worker else ""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_timestamp(record)} {record.levelname.lower():<7} {self._worker}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """Formats each record as one object on one line; `worker` is 0 outside a worker."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        line: dict[str, Any] = {
            "@timestamp": _timestamp(record),
            "level": record.levelname.lower(),
            "@message": _cut(record.getMessage(), _MAX_MESSAGE),
            "logger": _cut(record.name, _MAX_TEXT),
            **self._worker,
        }
        for name, value in getattr(record, "about", {}).items():
            match value:
                case str():
                    line[name] = _cut(value, _MAX_TEXT)
                case list():
                    line[name] = _cut_list(value)
                case _:
                    line[name] = value
        if record.exc_info:
            # The end says what was raised, and where.
            line["exception"] = _cut(self.formatException(record.exc_info), _MAX_EXCEPTION, end=True)
        return _as_json(line)


_UNSAFE: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that json.dumps leaves as they are, and of which each ends a line, turns a terminal's text around,
commands it, or is not UTF-8."""


def _as_json(value: object) -> str:
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def _cut(text: str, most: int, *, end: bool = False) -> str:
    """The text, or what fits of its beginning, or of its `end`, into `most` bytes of JSON, and how much is missing."""
    kept = text[-most:] if end else text[:most]
    while len(_as_json(kept).encode()) - 2 > most:
        fewer = len(kept) * 7 // 8
        kept = kept[-fewer:] if end else kept[:fewer]
    if len(kept) == len(text):
        return text
    missing = f"({len(text) - len(kept)} more)"
    return f"{missing} …{kept}" if end else f"{kept}… {missing}"


def _cut_list(items: list[str]) -> list[str]:
    """The first items that fit, and how many are missing."""
    kept: list[str] = []
    room = _MAX_LIST
    for item in items:
        text = _cut(item, _MAX_TEXT)
        room -= len(_as_json(text).encode()) + 2
        if room < 0:
            return [*kept, f"({len(items) - len(kept)} more)"]
        kept.append(text)
    return kept


def _timestamp(record: logging.LogRecord) -> str:
    return iso_time(int(record.created * SECOND), "milliseconds")


def iso_time(moment: int, precision: str = "seconds") -> str:
    """A time as log lines have it, from microseconds since the epoch: `2026-11-22T13:00:00Z`."""
    found = datetime.fromtimestamp(moment // SECOND, UTC).replace(microsecond=moment % SECOND)
    return found.isoformat(timespec=precision).replace("+00:00", "Z")


_NUMBERS: Final = re.compile(r"\d+")


class ThrottledLog:
    """Warnings that clients can cause: each kind is logged at most once a minute, so that no client fills the log.

    `now` returns microseconds of a clock that does not go back.
    """

    def __init__(self, log: logging.Logger, now: Callable[[], int]) -> None:
        self._log = log
        self._now = now
        self._logged: dict[str, int] = {}

    def warn(self, message: str, client: str = "") -> None:
        """Log it, unless a message that differs in its numbers at most was logged within the last minute."""
        kind, now = _NUMBERS.sub("", message), self._now()
        logged = self._logged.get(kind)
        if logged is None or now - logged >= MINUTE:
            self._logged[kind] = now
            self._log.warning("%s%s; logged at most once a minute", message, f" (from {client})" if client else "")
