"""Tells in the log of rules that let looks pass and drop charges: callers that look and charge are never limited."""

import logging
from collections.abc import Mapping
from typing import Final

from ratelimit_service.rules.rule import Rule
from ratelimit_service.system.clock import MINUTE, Clock
from ratelimit_service.telemetry.logs import about
from ratelimit_service.telemetry.tally import Path

log = logging.getLogger(__name__)

_MAX_NAMED: Final = 20
"""Rules."""


class DroppedCharges:
    """Tells of each rule once, and at most once a minute of all that are new."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: frozenset[Path] = frozenset()
        self._next = 0

    def tell(self, found: Mapping[Path, Rule]) -> None:
        """Tell of those of these rules that are new; a rule that is not among them is forgotten."""
        self._told &= found.keys()
        new, now = [rule for path, rule in found.items() if path not in self._told], self._clock()
        if not new or now < self._next:
            return
        self._next = now + MINUTE
        self._told = frozenset(found)
        names = [f"{'.'.join(rule.path)}, {rule.place}" for rule in new[:_MAX_NAMED]]
        more = f" and {len(new) - 1:,} more" if len(new) > 1 else ""
        message = "looks pass while charges are refused: costs known at the end need settle, or count_refused: true"
        log.warning("%s%s: %s", names[0], more, message, extra=about("charges_dropped", problems=names))
