"""The length of a window as it is written, in a file or on the command line: `minute`, `5 minutes`, `90s`.

Apart from the other options, because a command that reads a limit from its arguments needs no YAML.
"""

import re
from typing import Final, NamedTuple

from ratelimit_service.model import MAX_WINDOW, Unit
from ratelimit_service.system.duration import read_duration

UNITS = {unit.name.lower(): unit for unit in sorted(Unit, key=lambda unit: unit.window)}

_WINDOW = re.compile(rf"([0-9]{{1,10}}) *({'|'.join(UNITS)})s?", re.IGNORECASE)


class Window(NamedTuple):
    """The length of a window: a unit, and how many of them."""

    unit: Unit
    times: int | None
    """The number before the unit; None when there is no number, which means one."""

    @property
    def microseconds(self) -> int:
        """The length."""
        return self.unit.window * (1 if self.times is None else self.times)

    @property
    def problem(self) -> str:
        """The reason why a window cannot have this length; empty when it can."""
        if self.microseconds < 1:
            return "is not a length of time"
        if self.microseconds > MAX_WINDOW:
            return f"is longer than {MAX_WINDOW // Unit.YEAR.window} years"
        return ""


def read_window(text: str) -> Window | None:
    """The window of a text such as `minute`, `5 minutes` or `90s`; None for what is not a duration of whole seconds."""
    if unit := UNITS.get(text.lower()):
        return Window(unit, None)
    match = _WINDOW.fullmatch(text)
    if match is not None:
        return Window(UNITS[match[2].lower()], int(match[1]))
    try:
        length = read_duration(text)
    except ValueError:
        return None
    unit = largest_unit(length)
    return None if unit is None else Window(unit, length // unit.window)


def largest_unit(length: int) -> Unit | None:
    """The largest unit of which a length is a multiple; None if it is not of whole seconds."""
    return next((unit for unit in _LARGEST_FIRST if length % unit.window == 0), None)


_LARGEST_FIRST: Final = tuple(reversed(UNITS.values()))
