"""The rules that have counted lately, so that a page is not sent thousands of counts each time.

All pages are sent the same text: the counts that changed since the look `since`. A page that was sent the text of that
look, or of a later one, has all of them then. Another one asks for all counts, which are then newer than the look.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from ratelimit_service.rules.rule import Rule
from ratelimit_service.system.clock import SECOND, Clock, steady_clock

WINDOW: Final = 15 * SECOND
"""Longer than a page waits between two questions: one that was sent a text in it need not ask for all counts."""


class RecentCounts:
    """The times when rules last counted. A look goes through all rules, one at a time; 16 bytes are kept of each."""

    def __init__(self, clock: Clock = steady_clock) -> None:
        self.look = 0
        """The number of the last look."""
        self.since = 0
        """The one that a page must have seen."""
        self._clock = clock
        self._rules: Sequence[Rule] = ()
        self._counts = array("q")
        """A hash of the counts of each rule."""
        self._changed = array("q")
        """The look that found other counts than the one before."""
        self._last = self._marked = clock()
        """When the last look began, and the marked one, which is the next `since`."""
        self._mark = 0

    def begin(self, rules: Sequence[Rule], columns: int) -> None:
        """Begin a look at these rules, each of which has so many counts."""
        self.look += 1
        last, self._last = self._last, self._clock()
        if rules is not self._rules or self._last - last >= WINDOW:
            self.since = self._mark = self.look  # no page has seen an earlier one
            self._marked = self._last
        elif self._last - self._marked >= WINDOW:
            self.since, self._mark, self._marked = self._mark, self.look, self._last
        if rules is not self._rules:
            self._rules = rules
            self._counts = array("q", [hash((0,) * columns)]) * len(rules)
            self._changed = array("q", [0]) * len(rules)

    def changed(self, index: int, counts: Sequence[float]) -> bool:
        """Note what the rule of that index has counted; whether that changed after `since`."""
        digest = hash(counts)
        if digest != self._counts[index]:
            self._counts[index], self._changed[index] = digest, self.look
        return self._changed[index] > self.since
