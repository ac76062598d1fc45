"""Places: how many requests may be under way at once, each known by the id of its holder.

A charge takes places for its holder until they are given back, or for `window` at most: then they are free again,
whatever has crashed. A charge for a holder that has its places already renews them and takes none, and is never
refused: a caller that asks again, because it got no answer, has one place. It may ask for more than it has; it never
has fewer until it gives all back. A refund, whatever its cost, gives back all of its holder's places. For one that has
none it changes nothing: Envoy sends it for refused requests too.

It is an algorithm too, which no rule chooses by name. It decides by one thing more than a state: the `holder` of the
kind, a digest of the id. As in a sorted set of Redis, a holder has a score, its end and its places as one number:
places are added up without a member for each. So ends are rounded down to 10 ms, and a limit has at most `MOST` places.

State: when it is forgotten; the places that are taken; the scores in order, then the holders in the same order, 8 bytes
each. It is kept for a `window` longer than a place is held, so that the next charge finds, and counts, the places that
were never given back.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from struct import Struct
from typing import Any, Final

from ratelimit_service.algorithms.algorithm import no_problem, room_at_reset
from ratelimit_service.model import NEVER, Algorithm, Decision, Kind, Limit
from ratelimit_service.system.clock import SECOND, duration_in_words

name: Final = "places"
leases: Final = False
problem: Final = no_problem
room_after: Final = room_at_reset

MOST: Final = 10_000
"""The most places of a limit. In memory a charge copies its counter, 16 bytes for each holder. In Redis as many may end
at one moment, which takes it 2 ms; or 7 to 12, where some holders have several places."""

STEP: Final = 10_000
"""Microseconds."""

_SHARE: Final = 2**14
"""A score is the end in steps times this, plus the places: below 2^53, up to which Redis keeps whole numbers."""

_HEAD: Final = Struct("qq")
_head = _HEAD.unpack_from


def holder_of(text: str) -> int:
    """The holder with this id. Two ids are one holder by chance once in 2^64."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass(slots=True)
class Placed(Decision):
    """The answer for a hit that found places which were never given back."""

    expired: int
    """How many."""


@dataclass(frozen=True, slots=True)
class Places(Kind):
    """It limits how many requests are under way: each holds its places for `window` at most."""

    holder: int = 0
    """The 64-bit digest of the id whose hit this is; 0 for none."""

    twin = "places"
    composite = holds = True
    in_windows = in_runs = may_be_central = False
    longest_denial = 0  # a place may be given back at any moment, by any process
    why_not_leased = "concurrency: each place is held by one request"
    only_counted_so = "it counts what is under way, in no window"
    tallied = ("places_expired",)
    gauges = ("places_taken",)
    counts = "concurrent-requests"
    option = "concurrency"

    def held_by(self, limit: Limit, holder: str) -> Limit:
        """With the digest of the holder's name."""
        return replace(limit, kind=Places(holder_of(holder)))

    def taken(self, cost: int, *, told: bool) -> int:
        """A place: the cost is of something else."""
        return 1

    def numbers(self, limit: Limit, algorithm: Algorithm, interval: int) -> tuple[int, ...]:
        """The two halves of the digest."""
        return divmod(self.holder, 2**32)

    def noted(self, limit: Limit, decision: Decision) -> int:
        """The places that are taken."""
        return limit.requests - decision.remaining

    def found(self, decision: Decision) -> int:
        """Places that were never given back."""
        return decision.expired if isinstance(decision, Placed) else 0

    def why_refused(self, limit: Limit, over: str) -> tuple[str, str]:
        """`no place free, of 50 at once`."""
        return "places", f"no place free, of {limit.requests:,} at once"

    def words(self, limit: Limit, holder: str) -> Mapping[str, str]:
        """`each request_id holds a place for 1 min at most`."""
        return {"algorithm": f"each {holder} holds a place for {duration_in_words(limit.window)} at most"}

    def described(self, limit: Limit, second_key: str) -> Mapping[str, Any]:
        """No unit, but a hold."""
        return {"unit": None, "unit_multiplier": None, "hold": limit.window / SECOND}

    def options(self, limit: Limit, holder: str) -> Mapping[str, Any]:
        """Its own, and the one in whose place they stand."""
        own = {"concurrency": limit.requests, "hold": limit.window, "place": holder}
        return {**own, "requests_per_unit": None}

    def key_suffix(self, algorithm: str, limit: Limit) -> str:
        """Without the window: with another hold they are the same places."""
        return f"|{algorithm}"


def hit(state: bytes | None, limit: Limit, cost: int, now: int) -> tuple[bytes | None, Decision]:
    """Take `cost` places for the holder, or give back those that it has."""
    kind = limit.kind
    places, holder = limit.requests, (kind.holder if isinstance(kind, Places) else 0).to_bytes(8, "big")
    scores, holders, used, expired = _live(state, now)
    if expired:
        state = pack(scores, holders, used, limit.window)
    at = _find(holders, holder)
    mine = scores[at] % _SHARE if at >= 0 else 0
    short = used - mine + cost - places
    allowed, over, retry = cost <= mine or short <= 0, 0, 0
    if not allowed:
        over, retry = min(cost, short), NEVER
        if cost <= places:
            # Of several the last one is certain to be enough.
            enough = scores[0] if at != 0 and scores[0] % _SHARE >= short else scores[-1]
            retry = _end(enough) - now
    elif cost > 0 or (cost < 0 and mine):
        if mine:
            scores.pop(at)
            holders = holders[: 8 * at] + holders[8 * at + 8 :]
            used -= mine
        if cost > 0:
            mine = max(mine, cost)
            score = (now + limit.window) // STEP * _SHARE + mine
            at = _index(scores, holders, score, holder)
            scores.insert(at, score)
            holders = holders[: 8 * at] + holder + holders[8 * at :]
            used += mine
        state = pack(scores, holders, used, limit.window)
    left, reset = max(0, places - used), _end(scores[-1]) - now if scores else 0
    if expired:
        return state, Placed(allowed, left, over, reset, retry, expired)
    return state, Decision(allowed, left, over, reset, retry)


def owe(state: bytes | None, _limit: Limit, _cost: int, _now: int) -> bytes | None:
    """As algorithm.py says: places are held, none is owed."""
    return state


def _live(state: bytes | None, now: int) -> tuple["array[int]", bytes, int, int]:
    """The scores and the holders of places that are held, how many places these are, and how many have ended."""
    scores = array("q")
    if state is None:
        return scores, b"", 0, 0
    _, used = _head(state)
    middle = (_HEAD.size + len(state)) // 2
    scores.frombytes(state[_HEAD.size : middle])
    if _end(scores[0]) > now:
        return scores, state[middle:], used, 0
    gone = bisect_left(scores, (now // STEP + 1) * _SHARE)
    expired = sum([score % _SHARE for score in scores[:gone]])
    return scores[gone:], state[middle + 8 * gone :], used - expired, expired


def pack(scores: "array[int]", holders: bytes, used: int, kept: int) -> bytes | None:
    """The state of these holders, which is kept for so long after the last end; None without any."""
    return _HEAD.pack(_end(scores[-1]) + kept, used) + scores.tobytes() + holders if used else None


def _end(score: int) -> int:
    return score // _SHARE * STEP


def _index(scores: "array[int]", holders: bytes, score: int, holder: bytes) -> int:
    """The index where a holder with this score belongs."""
    at = bisect_left(scores, score)
    if at == len(scores) or scores[at] != score:
        return at
    pairs = range(at, bisect_right(scores, score))
    return at + bisect_left(pairs, holder, key=lambda index: holders[8 * index : 8 * index + 8])


def _find(holders: bytes, holder: bytes) -> int:
    """The index of a holder; -1 if it has no place."""
    at = holders.find(holder)
    while at > 0 and at % 8:  # between two others
        at = holders.find(holder, at + 1)
    return at // 8
