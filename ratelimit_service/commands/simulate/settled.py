"""What the requests of a replay have reserved, or only looked at, and what they have cost in the end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit

MAX_WINDOWS: Final = 100_000
"""Windows of counters whose use is summed up at once; the oldest make way."""


@dataclass(slots=True)
class Settled:
    """The sums of a rule that is settled."""

    requests: int = 0
    reserved: int = 0
    cost: int = 0
    overran: int = 0
    """Requests that have cost more than they reserved, if they reserved."""
    unsettled: int = 0
    """Requests without a cost in the log; what they reserved stays charged."""
    most_used: float = 0.0
    """The most that the requests which began in one window have cost, as a share of the limit."""


class Ended(NamedTuple):
    """A request whose cost is known."""

    began: int
    """Microseconds since 1970."""
    hits: Sequence[Hit]
    """By which it has reserved, or looked."""
    cost: int


class CostSums:
    """The sums of all rules that are settled."""

    def __init__(self) -> None:
        self.by_rule: dict[Rule, Settled] = {}
        self._used: dict[tuple[str, int], int] = {}

    def settle(self, ended: Ended) -> None:
        """Add a request that has ended."""
        for hit in ended.hits:
            sums, limit = self._of(hit.rule), hit.limit
            sums.requests += 1
            sums.reserved += hit.cost
            sums.cost += ended.cost
            sums.overran += ended.cost > hit.cost > 0
            begin = limit.calendar.edges(ended.began)[0] if limit.calendar else ended.began // limit.window
            window = (hit.key, begin)
            used = self._used[window] = self._used.get(window, 0) + ended.cost
            sums.most_used = max(sums.most_used, used / max(1, limit.requests))
            if len(self._used) > MAX_WINDOWS:
                del self._used[next(iter(self._used))]

    def leave(self, hits: Iterable[Hit]) -> None:
        """Add a request that is not settled."""
        for hit in hits:
            self._of(hit.rule).unsettled += 1

    def _of(self, rule: Rule) -> Settled:
        return self.by_rule.setdefault(rule, Settled())
