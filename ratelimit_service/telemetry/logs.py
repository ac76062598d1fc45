"""Log lines: their format, text or JSON with upstream's field names, and a limit on the warnings clients can cause."""

import json
import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from ratelimit_service.system.clock import MINUTE

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


def start_logging(level: str, form: str, *, worker: int = 0) -> None:
    """Write log lines from `level` up to standard error, as `text` or as `json`; those of a worker with its number.

    `level` is for the lines of this package. Those of libraries are written from warning up.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(worker) if form == "json" else _Text(worker))
    # Below warning, hpack logs every header of every call, credentials among them.
    logging.basicConfig(level=max(_LEVELS[level], logging.WARNING), handlers=[handler], force=True)
    logging.getLogger(_PACKAGE).setLevel(_LEVELS[level])
    # HTTP requests are counted, not logged.
    logging.getLogger("aiohttp.access").setLevel(logging.CRITICAL)


class _Text(logging.Formatter):
    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = f"worker {worker}: " if worker else ""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_timestamp(record)} {record.levelname.lower():<7} {self._worker}{_message(self, record)}"


class _Json(logging.Formatter):
    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "@timestamp": _timestamp(record),
            "level": record.levelname.lower(),
            "@message": _message(self, record),
            "logger": record.name,
            **self._worker,
        }
        return json.dumps(line, ensure_ascii=False)


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    message = record.getMessage()
    return f"{message}\n{formatter.formatException(record.exc_info)}" if record.exc_info else message


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
