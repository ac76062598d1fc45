"""How log lines look: text for people, or JSON with upstream's names for machines. One line per change of state."""

import json
import logging
import sys
from datetime import UTC, datetime

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
    """Send log lines from `level` up to standard error, as `text` or as `json`; a worker's lines carry its number.

    `level` is for the lines of this package. Those of libraries are written from warning up.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(worker) if form == "json" else _Text(worker))
    # Below warning, hpack logs every header of every call, credentials among them.
    logging.basicConfig(level=max(_LEVELS[level], logging.WARNING), handlers=[handler], force=True)
    logging.getLogger(_PACKAGE).setLevel(_LEVELS[level])
    # A line for each HTTP request is what metrics are for.
    logging.getLogger("aiohttp.access").setLevel(logging.CRITICAL)


class _Text(logging.Formatter):
    def __init__(self, worker: int) -> None:
        super().__init__()
        self._who = f"worker {worker}: " if worker else ""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_moment(record)} {record.levelname.lower():<7} {self._who}{_whole(self, record)}"


class _Json(logging.Formatter):
    def __init__(self, worker: int) -> None:
        super().__init__()
        self._who = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "@timestamp": _moment(record),
            "level": record.levelname.lower(),
            "@message": _whole(self, record),
            "logger": record.name,
            **self._who,
        }
        return json.dumps(line, ensure_ascii=False)


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _whole(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    message = record.getMessage()
    return f"{message}\n{formatter.formatException(record.exc_info)}" if record.exc_info else message
