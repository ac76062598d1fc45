"""Synced: each region counts by itself, and learns now and then what the others have counted.

A fixed window's count is then what this region has counted and what it knows of the others, so a limit is exceeded by
what they have counted that is not known yet. To learn it there is an *exchange*: it collects the region's count, takes
it to the home Redis, and deposits here the sum that the other regions have there. An exchange of a counter begins at
the next charge, or at the end of the interval since the last one began; a charge is in one that begins within it.

How much all regions allow above the limit is at most what each is offered within twice the interval and the ways to
home, as one way is how long a count is on its way there, and one how old the count is that comes back; and never more
than the limit for each region but one. While a region has counted less than `1 / _COLD` of the limit it exchanges
nothing: so many cold counters cost home nothing, and are above the limit by that much for each region.

A refund gives back at most what this region has counted. State: the end of the window; the count of this region, and
that of the others; and when the last exchange began, or, of one that has not begun, until when to wait for that: 0
before the first one. The Lua twin is `synced.lua`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ratelimit_service.algorithms import fixed_window
from ratelimit_service.model import PLAIN, Algorithm, Decision, Kind, Limit
from ratelimit_service.system.clock import SECOND

State = tuple[int, int, int, int]

NOT_NOW: Final = -1

_COLD: Final = 100

_LATE: Final = SECOND
"""Microseconds after which an exchange that is to begin, and has not, was ended before."""


@dataclass(frozen=True, slots=True)
class Synced(Kind):
    """Its `regions` say how many they are."""

    twin = "synced"
    asks_home = 2
    exchanges = True
    why_not_leased = "regions: synced: processes do not lease from what regions share"

    def numbers(self, limit: Limit, algorithm: Algorithm, interval: int) -> tuple[int, ...]:
        """The interval."""
        return (interval,)

    def share(self, limit: Limit, part: Callable[[int], int], whole: Callable[[int], int]) -> Kind:
        """An instance counts by itself."""
        return PLAIN

    def key_suffix(self, algorithm: str, limit: Limit) -> str:
        """The state is another one."""
        return f"|{algorithm}/synced/{limit.window}"


def hit(state: State | None, limit: Limit, cost: int, now: int) -> tuple[State | None, Decision]:
    """Charge `cost` at `now`: the new state, and the decision."""
    count, own, others, exchange = None, 0, 0, 0
    if state is not None and state[0] > now:
        end, own, others, exchange = state
        count = (end, own + others)
    after, decision = fixed_window.hit(count, limit, max(cost, -own), now)
    if cost < 0 and not decision.allowed:  # refunds are always allowed
        decision = Decision(True, 0, 0, decision.reset_after, 0)
    if after is None:
        return None, decision
    if after == count:
        return state, decision
    return (after[0], after[1] - others, others, exchange), decision


def owe(state: State | None, limit: Limit, cost: int, now: int) -> State:
    """As algorithm.py says: of the region's own count."""
    count, others, exchange = None, 0, 0
    if state is not None and state[0] > now:
        end, own, others, exchange = state
        count = (end, own + others)
    after = fixed_window.owe(count, limit, cost, now)
    assert after is not None, "something is charged"
    return after[0], after[1] - others, others, exchange


def plan(state: State | None, limit: Limit, interval: int, now: int) -> tuple[State | None, int]:
    """After a charge, the time until an exchange should begin, or NOT_NOW. Until it begins, no other one is planned."""
    if state is None or state[0] <= now or state[1] * _COLD < limit.requests:
        return state, NOT_NOW
    end, own, others, exchange = state
    if now < exchange <= now + interval + _LATE:
        return state, NOT_NOW
    wait = max(0, exchange + interval - now) if exchange <= now else 0
    return (end, own, others, now + wait + _LATE), wait


def collect(state: State | None, end: int, now: int) -> tuple[State | None, int]:
    """Begin the exchange of the window with this end: the region's count; 0 when there is nothing to exchange."""
    if state is None or not state[0] == end > now:
        return state, 0
    _, own, others, _ = state
    return (end, own, others, now), own


def deposit(state: State | None, end: int, others: int, now: int) -> State | None:
    """Note what the other regions have counted in the window with this end."""
    if state is None or not state[0] == end > now:
        return state
    _, own, _, exchange = state
    return end, own, min(others, fixed_window.CEILING), exchange
