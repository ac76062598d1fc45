"""What a counter holds, out of the bytes that the algorithms' twins have left in Redis. Pure: it charges nothing.

The bytes are read as `batch.lua` and `sliding_log.lua` write them, and the algorithm itself says what they mean, by a
hit of cost 0 whose new state nobody keeps.
"""

from array import array
from dataclasses import replace
from struct import Struct, error
from typing import Final, NamedTuple

from ratelimit_service.algorithms import State, expiry, open_algorithm, sliding_window, token_bucket
from ratelimit_service.stores.redis.counters_names import Counter

_BUCKETS: Final = frozenset({"token_bucket", "leaky_bucket"})
_MANY: Final = 2**52
"""A limit of so many leaves room for any count, and what is missing from it is the count."""

_HEADER: Final = Struct(">7sIIIHH")
_NUMBERS: Final = 65_536
_INTEGERS: Final = {
    0xCC: Struct(">B"),
    0xCD: Struct(">H"),
    0xCE: Struct(">I"),
    0xCF: Struct(">Q"),
}
"""How MessagePack writes integers that are not negative and need more than a byte."""

_PACKED: Final = {
    "sliding_window": sliding_window.STATE,
    "token_bucket": token_bucket.STATE,
    "leaky_bucket": token_bucket.STATE,
}
"""States that are bytes in Python."""


class Content(NamedTuple):
    """What is in a counter; times are microseconds from the moment at which it was read."""

    used: int | None
    """None of a bucket whose limit is not known, and of what cannot be read."""
    remaining: int | None
    """What a call would be told; None without a rule."""
    reset_after: int
    """Until it is as if untouched, or its window ends."""
    retry_after: int | None
    """Until a hit of 1 is allowed: 0 when it is now, `NEVER` when it cannot be; None without a rule."""
    expires_after: int | None
    """Until Redis forgets the key; None when it never does, or has no such key."""

    @property
    def fullness(self) -> float:
        """Which part of its limit is used; below 0 when that cannot be said."""
        if self.used is None or self.remaining is None:
            return -1.0
        total = self.used + self.remaining
        return self.used / total if total else 1.0


def content(counter: Counter, stored: bytes | None, milliseconds: int, now: int) -> Content:
    """What the counter holds at that moment; without bytes it is untouched."""
    expires = milliseconds * 1000 if milliseconds >= 0 else None
    state, readable = _state(counter, stored)
    if not readable or not counter.algorithm:
        return Content(None, None, 0, None, expires)
    limit = counter.limit
    hit = open_algorithm(counter.algorithm).hit
    bucket = counter.algorithm in _BUCKETS
    used = None
    if not bucket:
        endless = replace(limit, requests=_MANY, exceed=0)
        used = _MANY - hit(state, endless, 0, now)[1].remaining
    if counter.rule is None:
        reset = expiry(state) - now if state is not None else 0
        return Content(used, None, max(0, reset), None, expires)
    look = hit(state, limit, 0, now)[1]
    if bucket:
        used = (limit.burst or limit.requests) + limit.exceed - look.remaining
    retry = hit(state, limit, 1, now)[1].retry_after
    return Content(used, max(0, look.remaining - limit.exceed), look.reset_after, retry, expires)


def _state(counter: Counter, stored: bytes | None) -> tuple[State | None, bool]:
    """The state, and whether it could be read."""
    if stored is None:
        return None, True
    try:
        if counter.end:
            return (counter.end, int(stored)), True
        if counter.algorithm == "sliding_log":
            return _log(stored, counter.limit.window), True
        state = _integers(stored)
        if counter.algorithm in _PACKED:
            return _PACKED[counter.algorithm].pack(*state), True
    except (KeyError, ValueError, error):
        return None, False
    return state, len(state) > 1


def _integers(packed: bytes) -> State:
    """MessagePack, of which nothing but integers is used."""
    numbers: list[int] = []
    at = 0
    while at < len(packed):
        head = packed[at]
        at += 1
        if head < 0x80:
            numbers.append(head)
        else:
            form = _INTEGERS[head]
            numbers += form.unpack_from(packed, at)
            at += form.size
    return tuple(numbers)


def _log(stored: bytes, window: int) -> State:
    """The ring of `sliding_log.lua` as the state of `sliding_log.py`, which has moments that end their window."""
    newest, first, count, size, base, top = _HEADER.unpack_from(stored)
    expiry = int.from_bytes(newest, "big")
    width = 5 if window < 2**39 else 7
    slot = width + 2
    end = _HEADER.size + size * slot
    if not 0 < count <= size or first >= size or len(stored) < end:
        raise ValueError("no ring of moments")
    ring = [stored[at : at + slot] for at in range(_HEADER.size, end, slot)]
    entries = (ring + ring)[first : first + count]
    whole = 1 << 8 * width  # the moments are modulo this, and none is older than the newest by half of it
    newest_moment = expiry - window
    moments = [expiry - (newest_moment - int.from_bytes(entry[:width], "big")) % whole for entry in reversed(entries)]
    numbers = [(int.from_bytes(entry[width:], "big") - base) % _NUMBERS for entry in entries[1:]]
    return array("q", moments).tobytes() + array("I", [(top - base) % _NUMBERS, *reversed(numbers), 0]).tobytes()
