"""Regular expressions that are matched in time linear in the value, by RE2; loaded when a rule has one.

Python's own `re` tries alternatives one after the other: `(a+)+$` on thirty letters takes it minutes, and patterns
without such a nest still take the square or the cube of the length. RE2 has no backreferences and no look-around.

Patterns of a level are tried one by one. RE2's sets try all of them in one pass, in 1 µs in place of 100 for a hundred
patterns and a usual value. But for a value that is made for it, such a pass takes 4.5 µs a byte, and one by one 0.24:
the states of its DFA are all combinations of the patterns' own.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from ratelimit_service.rules.pattern_work import LARGE_WEIGHT, PatternWork

MAX_LENGTH: Final = 1000
"""Characters of a pattern."""

_MAX_MEMORY: Final = 2**20
"""Bytes that a compiled pattern may take. RE2 refuses one that needs more, and does without states beyond that."""

MISSING: Final = "needs the package google-re2; install ratelimit-service[regex], or write value with a *"


_LARGE_PROGRAM: Final = 100
"""Instructions of a program that is large: as many as Envoy allows in a pattern of its own configuration by default."""


class Regex(NamedTuple):
    """A compiled pattern."""

    matches: Callable[[str, PatternWork], bool]
    """Whether the whole of a value matches; TooLongError if the value is too long for it."""
    weight: int
    """1, or `LARGE_WEIGHT`."""


def compiled(pattern: str) -> Regex:
    """Compile a pattern. Raises ValueError that says what is wrong."""
    if len(pattern) > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH:,} characters")
    try:
        import re2  # noqa: PLC0415 - most rules need no regex, and not every machine has a wheel of this
    except ImportError as error:
        raise ValueError(MISSING) from error
    options = re2.Options()
    options.max_mem = _MAX_MEMORY
    options.log_errors = False
    options.never_capture = True
    try:
        regex = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode() if isinstance(reason, bytes) else str(reason)) from error
    match = regex.fullmatch
    weight = LARGE_WEIGHT if regex.programsize > _LARGE_PROGRAM else 1

    def matches(value: str, work: PatternWork) -> bool:
        # Bytes: of a text RE2's binding would count characters too, which takes twice the time.
        encoded = work.bytes_of(value)
        work.try_regex(len(encoded), weight)
        return match(encoded) is not None

    return Regex(matches, weight)
