"""Gauges: numbers of a rule that are true now or were lately, where a tally has counts. Pure."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ratelimit_service.model import Decision, Limit
from ratelimit_service.system.clock import MINUTE, SECOND, Clock, steady_clock
from ratelimit_service.telemetry.reservations import ReservationSums


class Gauges(NamedTuple):
    """The gauges of one rule, in one process or in several."""

    leased: int = 0
    """Counters of which units are held, charged in the store in advance."""
    held: int = 0
    """These units."""
    waiting: int = 0
    """Requests that wait for their turns in its queues."""
    longest_wait_seconds: float = 0
    """Of the turns that were given lately, how far away the farthest was."""
    places_taken: int = 0
    """The most places of one counter that were taken at once lately."""
    on_loan: int = 0
    """The most that one counter had on loan from its pool lately."""

    def merge(self, other: "Gauges") -> "Gauges":
        """The same of two processes, or of two rules, together."""
        return Gauges(
            self.leased + other.leased,
            self.held + other.held,
            self.waiting + other.waiting,
            max(self.longest_wait_seconds, other.longest_wait_seconds),
            max(self.places_taken, other.places_taken),
            max(self.on_loan, other.on_loan),
        )


NO_GAUGES: Final = Gauges()

LEASED: Final = ("leased", "held")
"""The names of those that limits have which lease."""


class Peak:
    """The highest of the numbers of the last one to two minutes."""

    __slots__ = ("_before", "_clock", "_highest", "_since")

    def __init__(self, clock: Clock = steady_clock) -> None:
        self._clock = clock
        self._since = clock()
        self._before = self._highest = 0
        """Of the minute before, and of the one since that moment."""

    def note(self, number: int) -> None:
        """Add a number."""
        self._turn()
        self._highest = max(self._highest, number)

    def read(self) -> int:
        """The highest; 0 without any."""
        self._turn()
        return max(self._before, self._highest)

    def _turn(self) -> None:
        passed = self._clock() - self._since
        if passed >= MINUTE:
            self._before = self._highest if passed < 2 * MINUTE else 0
            self._highest = 0
            self._since += passed


@dataclass(slots=True, eq=False)
class Measured:
    """The numbers that a process measures of a rule that has a queue, is of places, is elastic, or reserves."""

    waiting: int = 0
    longest_wait: Peak = field(default_factory=Peak)
    """Microseconds."""
    places_taken: Peak = field(default_factory=Peak)
    on_loan: Peak = field(default_factory=Peak)
    reservations: ReservationSums | None = None
    """None before the first one."""

    def measure(self, limit: Limit, cost: int, decision: Decision) -> None:
        """Note what the store has decided on a hit by this limit."""
        kind = limit.kind
        if noted := kind.noted(limit, decision):
            self.note(kind.gauges[0], noted)
        if kind.reserves:
            self.reservation_sums.note(kind.hold, cost, decision, settles=limit.owes)

    @property
    def reservation_sums(self) -> ReservationSums:
        """Those of its reservations."""
        if self.reservations is None:
            self.reservations = ReservationSums()
        return self.reservations

    def note(self, gauge: str, number: int) -> None:
        """Note a number on the gauge with this name."""
        peak: Peak = getattr(self, gauge)
        peak.note(number)

    def gauges(self) -> Gauges:
        """All of it."""
        longest_wait = self.longest_wait.read() / SECOND
        return Gauges(0, 0, self.waiting, longest_wait, self.places_taken.read(), self.on_loan.read())
