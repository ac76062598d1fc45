"""Lengths of time as they are written, in settings, rules, cases and commands: `10m`, `1h30m`, `15 minutes`, `day`.

A length is a word alone, or numbers with their units one after the other, with or without spaces: a unit is a word, or
one of Go's (`time.ParseDuration`), which envoyproxy's deployments use, or `d` or `w`. It becomes an integer of
microseconds, without a float in between.
"""

import re
from typing import Final

from ratelimit_service.system.clock import DAY, HOUR, MINUTE, SECOND

WORDS: Final = {
    "second": SECOND,
    "minute": MINUTE,
    "hour": HOUR,
    "day": DAY,
    "week": 7 * DAY,
    "month": 30 * DAY,
    "year": 365 * DAY,
}
"""Envoy's units: a month is 30 days and a year 365. In any case of letters, and after a number in the plural too."""

_NANOSECONDS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, the micro sign; Go reads both
    "μs": 1_000,  # U+03BC, the Greek letter
    "ms": 1_000_000,
    "s": SECOND * 1000,
    "m": MINUTE * 1000,
    "h": HOUR * 1000,
    "d": DAY * 1000,
    "w": 7 * DAY * 1000,
}
_NUMBER: Final = r"(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
_IN_ANY_CASE: Final = "|".join("".join(f"[{letter.upper()}{letter}]" for letter in word) for word in WORDS)
_UNIT: Final = f"(?:{_IN_ANY_CASE})[sS]?|{'|'.join(_NANOSECONDS)}"

PATTERN: Final = f"(?:{_IN_ANY_CASE}|{_NUMBER} *(?:{_UNIT})(?: *{_NUMBER} *(?:{_UNIT}))*)"
"""A regular expression of all lengths, for Python and for JSON Schema."""

_WHOLE: Final = re.compile(PATTERN)
_PART: Final = re.compile(f"({_NUMBER}) *({_UNIT})")

EXAMPLES: Final = "10s, 1h30m, 15 minutes or 200ms"


def read_duration(text: str) -> int:
    """The microseconds of a length, rounded up: only 0 is 0. Raises ValueError that says what was expected."""
    if word := WORDS.get(text.lower()):
        return word
    unsigned = text[1:] if text.startswith(("+", "-")) else text
    is_length = unsigned == "0" or _WHOLE.fullmatch(unsigned) is not None
    nanoseconds = sum(_nanoseconds(*part) for part in _PART.findall(unsigned)) if is_length else 0
    if not is_length or nanoseconds > _MAX_NANOSECONDS:
        raise ValueError(f"is not a duration such as {EXAMPLES}")
    microseconds = -(-nanoseconds // 1_000)
    return -microseconds if text.startswith("-") else microseconds


_MAX_NANOSECONDS: Final = 2**63 - 1
"""Go keeps a duration in 64 bits: about 292 years."""


def _nanoseconds(number: str, unit: str) -> int:
    whole, _, fraction = number.partition(".")
    size = _NANOSECONDS.get(unit) or WORDS[unit.lower().removesuffix("s")] * 1000
    return int(whole + fraction) * size // int("1" + "0" * len(fraction))
