"""Tells in the log of rules that let looks pass and drop charges: callers that look and charge are never limited.

Which caller has looked, and which one was refused, is not known. So the line says how much of both there was, and a few
looks, such as those of a probe, are not enough for one.
"""

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from ratelimit_service.rules.rule import Rule
from ratelimit_service.system.clock import MINUTE, Clock
from ratelimit_service.telemetry.logs import about
from ratelimit_service.telemetry.tally import Path

log = logging.getLogger(__name__)

_MAX_NAMED: Final = 20
"""Rules."""

_LEAST_LOOKS: Final = 10


class Dropping(NamedTuple):
    """A rule that has dropped charges."""

    rule: Rule
    looks: int
    """Those that have passed."""
    dropped: int
    """The cost that was refused and not charged."""


class DroppedCharges:
    """Tells of each rule once, and at most once a minute of all that are new."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: frozenset[Path] = frozenset()
        self._next = 0

    def tell(self, found: Mapping[Path, Dropping]) -> None:
        """Tell of those of these rules that are new; a rule that is not among them is forgotten."""
        found = {path: each for path, each in found.items() if each.looks >= _LEAST_LOOKS}
        self._told &= found.keys()
        new, now = [each for path, each in found.items() if path not in self._told], self._clock()
        if not new or now < self._next:
            return
        self._next = now + MINUTE
        self._told = frozenset(found)
        lines = [_in_words(each) for each in new[:_MAX_NAMED]]
        more = f"; and {len(new) - 1:,} more" if len(new) > 1 else ""
        message = "costs known at the end need settle, or count_refused: true"
        log.warning("%s%s: %s", lines[0], more, message, extra=about("charges_dropped", problems=lines))


def _in_words(found: Dropping) -> str:
    of = f"{'.'.join(found.rule.path)}, {found.rule.place}"
    return f"{of}: {found.looks:,} looks have passed, and a cost of {found.dropped:,} was refused and not charged"
