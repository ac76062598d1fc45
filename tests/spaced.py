"""A kind of limit that exists in tests alone: what it allows is at least `gap` apart."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ratelimit_service.model import Algorithm, Charge, Decision, Kind, Limit, State
from ratelimit_service.system.clock import SECOND, delay_in_words


@dataclass(frozen=True, slots=True)
class Spaced(Kind):
    """The second counter is when the next hit may come, and when the last one came."""

    gap: int

    twin = "spaced"
    composite = has_second = True
    ending = "|spaced"
    in_runs = False
    why_not_leased = "gap: each request has to reach Redis"
    tallied = ("spared",)
    gauges = ("places_taken",)

    def hit(
        self, charge: Charge, state: State | None, second: State | None, limit: Limit, cost: int, now: int
    ) -> tuple[State | None, State | None, Decision]:
        """Charge `cost`, unless the last hit was just before."""
        if cost > 0 and second is not None and second[0] > now:
            _, look = charge(state, limit, 0, now)
            return state, second, Decision(False, look.remaining, cost, look.reset_after, second[0] - now)
        state, decision = charge(state, limit, cost, now)
        return state, (now + self.gap, now) if cost > 0 and decision.allowed else second, decision

    def numbers(self, limit: Limit, algorithm: Algorithm, interval: int) -> tuple[int, ...]:
        """The gap."""
        return (self.gap,)

    def noted(self, limit: Limit, decision: Decision) -> int:
        """What is used."""
        return limit.requests - decision.remaining

    def why_refused(self, limit: Limit, over: str) -> tuple[str, str]:
        """For the page."""
        return "gap", f"too soon, or {over}"

    def words(self, limit: Limit, holder: str) -> Mapping[str, str]:
        """Its own."""
        return {"gap": f"at least {delay_in_words(self.gap)} apart"}

    def described(self, limit: Limit, second_key: str) -> Mapping[str, Any]:
        """Its own."""
        return {"gap": self.gap / SECOND}

    def options(self, limit: Limit, holder: str) -> Mapping[str, Any]:
        """Its own."""
        return {"gap": self.gap}

    def lint(self, limit: Limit, algorithm: str) -> Iterator[tuple[str, str]]:
        """Warns of a gap in which a window ends."""
        if self.gap > limit.window:
            yield "gap", "the gap is longer than the window"
