"""Regular expressions that are matched in time linear in the value, by RE2; loaded when a rule has one.

Python's own `re` tries alternatives one after the other: `(a+)+$` on thirty letters takes it minutes, and patterns
without such a nest still take the square or the cube of the length. RE2 has no backreferences and no look-around.
"""

from collections.abc import Callable
from typing import Final

MAX_LENGTH: Final = 1000
"""Characters of a pattern."""

_MAX_MEMORY: Final = 2**20
"""Bytes that a compiled pattern may take. RE2 refuses one that needs more, and does without states beyond that."""

MISSING: Final = "needs the package google-re2; install ratelimit-service[regex], or write value with a *"


def compiled(pattern: str) -> Callable[[str], bool]:
    """A function that says whether the whole of a value matches. Raises ValueError that says what is wrong."""
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
        match = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode() if isinstance(reason, bytes) else str(reason)) from error
    # Bytes: of a text RE2's binding would count characters too, which takes twice the time.
    return lambda value: match(value.encode(errors="surrogatepass")) is not None
