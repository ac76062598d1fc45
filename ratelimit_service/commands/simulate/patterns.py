"""Generated traffic: requests in a pattern, the same ones each time."""

from collections.abc import Iterator
from math import cos, pi
from random import Random
from typing import Final

from ratelimit_service.commands.simulate.mapping import Values
from ratelimit_service.system.clock import DAY, MINUTE, SECOND

PATTERNS: Final = ("steady", "burst", "diurnal", "attack")
FIELDS: Final = ("user", "remote_host", "path", "method")
MAX_PATTERN: Final = 10_000_000
"""Requests."""

BEGIN: Final = 1_767_571_200 * SECOND
"""2026-01-05T00:00:00Z, a Monday; as in `ratelimit rules test`."""

_BURST: Final = 6
"""A burst has the requests of so many times its length."""
_BURST_EVERY: Final = MINUTE
_ATTACK: Final = 10
"""The attacker sends so many times what all others send."""
_PATHS: Final = ("/", "/search", "/cart", "/login")


def count_of(pattern: str, rate: float, duration: int) -> int:
    """The requests of a pattern, for so many microseconds."""
    steady = int(rate * duration / SECOND)
    return steady + (int(rate * _ATTACK * (duration // 3) / SECOND) if pattern == "attack" else 0)


def generate(pattern: str, rate: float, duration: int, keys: int, fields: list[str]) -> Iterator[tuple[int, Values]]:
    """The requests of a pattern in the order of time: microseconds since 1970, and the values of these fields.

    `rate`: requests per second on average, of `keys` users by chance. steady: equally spaced; burst: those of a minute
    in its first ten seconds; diurnal: from none at midnight to twice the rate at noon, UTC; attack: equally spaced, and
    in the second third one more user sends ten times as much as all others.
    """
    draw = Random(1)  # noqa: S311 - chance that is the same each time
    places = {name: number for number, name in enumerate(FIELDS)}
    chosen = [places[field] for field in fields]
    users = [(f"u{number}", f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}") for number in range(keys)]
    for at, attacks in _moments(pattern, rate, duration):
        user, host = ("attacker", "198.51.100.66") if attacks else users[int(draw.random() * keys)]
        path = "/login" if attacks else _PATHS[int(draw.random() * len(_PATHS))]
        record = (user, host, path, "GET")
        yield BEGIN + at, tuple([record[index] for index in chosen])


def _moments(pattern: str, rate: float, duration: int) -> Iterator[tuple[int, bool]]:
    """The times when requests come, from 0 on, and whether it is the attacker who sends them."""
    count = count_of("steady", rate, duration)
    gap = SECOND / rate
    if pattern == "burst":
        for number in range(count):
            minute, into = divmod(int(number * gap), _BURST_EVERY)
            yield minute * _BURST_EVERY + into // _BURST, False
    elif pattern == "diurnal":
        # A step of a second has the requests of its moment; what is left of one counts for the next.
        due = 0.0
        for second in range(duration // SECOND):
            due += rate * (1 - cos(2 * pi * second * SECOND / DAY))
            whole = int(due)
            due -= whole
            for number in range(whole):
                yield second * SECOND + number * SECOND // whole, False
    elif pattern == "attack":
        begin, end, step = duration // 3, duration // 3 * 2, 1 / _ATTACK
        for number in range(count):
            at = int(number * gap)
            yield at, False
            if begin <= at < end:
                for part in range(_ATTACK):
                    yield at + int(gap * step * part), True
    else:
        for number in range(count):
            yield int(number * gap), False
