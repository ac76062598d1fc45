"""The events of the service since its start: the newest of its log lines that have one, in bounds.

Each line that `about` makes an event comes here too, whatever LOG_LEVEL is, those of workers over their channels. So an
event is written once, as a log line, and its values are shown as they are logged: secret ones as digests.

Several workers tell of one outage and of one ban. An outage begins with the first that loses the server, and ends when
none has it lost; a ban is known by its time and its entries.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ratelimit_service.server.series import CONTROL

MAX_BYTES: Final = 256 * 1024
"""The most bytes of all events: as JSON, and 500 for each. About 400. The oldest goes first, but an outage, a failed
reload or a drain that lasts; bans may be thousands."""

_BASE_BYTES: Final = 500
_MAX_TEXT: Final = 1000
_MAX_DETAIL: Final = 300
"""Characters."""
_MAX_DETAILS: Final = 20

_KINDS: Final[Mapping[str, str]] = {
    "rules_loaded": "reload",
    "rules_refused": "reload",
    "store_lost": "outage",
    "control_plane_lost": "outage",
    "banned": "ban",
    "worker_ended": "worker",
    "charges_dropped": "rule",
    "draining": "drain",
}
"""The kinds by the name of the event that begins one; what is not here, and ends none, is an operator's act."""

_LASTING: Final = frozenset({"rules_refused", "store_lost", "control_plane_lost", "banned", "draining"})
"""Events that last until another one ends them."""

MARKED: Final = frozenset({"reload", "outage", "ban", "worker"})
"""The kinds of events that charts mark."""
MAX_MARKS: Final = 40


class Mark(NamedTuple):
    """An event in a chart; times are seconds since the epoch."""

    kind: str
    since: float
    until: float | None


Fields = Mapping[str, Any]
"""The fields that `about` gives an event."""


@dataclass(slots=True, eq=False)
class Event:
    """One event, until another one ends it; times are seconds since the epoch."""

    kind: str
    key: object
    """Tells which event ends it; None if it does not last."""
    since: float
    what: str
    who: str
    until: float | None = None
    """None while it lasts."""
    details: list[str] = field(default_factory=list)
    workers: set[int] = field(default_factory=set)
    """Those for which it lasts."""
    bytes: int = 0

    def as_json(self) -> str:
        """The event as `/status/past` shows it."""
        shown = {"kind": self.kind, "from": self.since, "until": self.until, "what": self.what, "who": self.who}
        return json.dumps(shown | {"details": self.details})


class EventLog:
    """The last events."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._latest: dict[tuple[str, object], Event] = {}
        """By kind and key."""
        self._bytes = 0

    def text(self) -> Iterator[str]:
        """The events as JSON, in blocks, the newest first."""
        newest_first = sorted(self._events, key=attrgetter("since"))[::-1]
        yield '{"events": ['
        for index, event in enumerate(newest_first):
            yield f"{', ' if index else ''}{event.as_json()}"
        yield "]}\n"

    def marks(self, since: float) -> Sequence[Mark]:
        """The events for charts that begin at this time, at most MAX_MARKS of them; bans make way for others."""
        found = [
            Mark(event.kind, event.since, event.until)
            for event in self._events
            if event.kind in MARKED and (event.since if event.kind == "ban" else event.until or inf) >= since
        ]
        return sorted(found, key=lambda mark: (mark.kind == "ban", -mark.since))[:MAX_MARKS]

    def record(self, when: float, message: str, fields: Fields, worker: int = 0) -> None:
        """Take the event of a log line; `worker` is the number of that which logged it."""
        match fields["event"]:
            case "rules_loaded" | "rules_refused" as name:
                self._end(self._lasting("reload", None), when)
                self._add(name, None, when, message, fields)
            case "store_lost":
                event = self._lasting("outage", fields["server"])
                if event is None:
                    event = self._add("store_lost", fields["server"], _time(fields["since"]), message, fields)
                event.workers.add(worker)
            case "control_plane_lost":
                self._add("control_plane_lost", fields["server"], when, message, fields)
            case "control_plane_connected":
                self._end(self._lasting("outage", fields["server"]), when)
            case "store_still_lost":
                self._say_more(self._lasting("outage", fields["server"]), message)
            case "store_regained" | "store_unused":
                # How long it was lost is true of that worker only, which may have been started meanwhile.
                said = message.rpartition(", after ")[0] or message
                self._end_for(worker, self._lasting("outage", fields["server"]), when, said)
            case "banned":
                self._ban(when, message, fields)
            case "ban_ended":
                self._end_ban(when, fields)
            case "worker_ended":
                for event in [event for event in self._events if fields["number"] in event.workers]:
                    self._end_for(fields["number"], event, when, message)
                self._add("worker_ended", None, when, message, fields)
            case name:
                self._add(name, None, when, message, fields)

    def _ban(self, when: float, message: str, fields: Fields) -> None:
        key, made = _ban_key(fields), _time(fields["made"])
        latest = self._latest.get(("ban", key))
        if latest is not None:
            # A worker that comes later, or starts, tells of bans that others have told of.
            if (latest.since, latest.what) == (made, _shown(message, _MAX_TEXT)) or latest.since > made:
                return
            if latest.until is None:
                self._say_more(latest, f"replaced by {fields['who']}")
                self._end(latest, when)
        self._add("banned", key, made, message, fields)

    def _end_ban(self, when: float, fields: Fields) -> None:
        event = self._lasting("ban", _ban_key(fields))
        if event is not None and event.since == _time(fields["made"]):
            self._say_more(event, fields["reason"])
            self._end(event, when)

    def _lasting(self, kind: str, key: object) -> Event | None:
        latest = self._latest.get((kind, key))
        return None if latest is None or latest.until is not None else latest

    def _add(self, name: str, key: object, since: float, message: str, fields: Fields) -> Event:
        who = _shown(fields.get("who") or "", _MAX_DETAIL)
        event = Event(_KINDS.get(name, "act"), key, since, _shown(message, _MAX_TEXT), who)
        event.details = [_shown(text, _MAX_DETAIL) for text in fields.get("problems", ())][:_MAX_DETAILS]
        if name not in _LASTING:
            event.until = since
        self._events.append(event)
        self._latest[event.kind, key] = event
        self._measure(event)
        return event

    def _say_more(self, event: Event | None, text: str) -> None:
        line = _shown(text, _MAX_DETAIL)  # which each worker may tell
        if event is not None and len(event.details) < _MAX_DETAILS and line not in event.details:
            event.details.append(line)
            self._measure(event)

    def _end_for(self, worker: int, event: Event | None, when: float, why: str) -> None:
        """End it if it lasts for no other worker."""
        if event is not None:
            event.workers.discard(worker)
            if not event.workers:
                self._say_more(event, why)
                self._end(event, when)

    def _end(self, event: Event | None, when: float) -> None:
        if event is not None:
            event.until = max(when, event.since)

    def _measure(self, event: Event) -> None:
        """Count the bytes of an event that is new or has grown, and forget what is too much."""
        now = len(event.as_json()) + _BASE_BYTES
        self._bytes += now - event.bytes
        event.bytes = now
        while self._bytes > MAX_BYTES:
            over = (each for each in self._events if each.until is not None or each.kind == "ban")
            oldest = next(over, self._events[0])
            self._events.remove(oldest)
            self._bytes -= oldest.bytes
            if self._latest.get((oldest.kind, oldest.key)) is oldest:
                del self._latest[oldest.kind, oldest.key]


def _ban_key(fields: Fields) -> object:
    return fields["domain"], tuple(fields["entries"])


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _shown(text: str, most: int) -> str:
    """The first line, without control characters, and no longer than `most`."""
    line = CONTROL.sub("_", text.partition("\n")[0].removesuffix(":"))
    return line if len(line) <= most else f"{line[:most]}…"
