"""Gathers what is wrong with one rules file, so that all of it is told at once."""

import difflib
from collections.abc import Iterable
from typing import NamedTuple, NoReturn, Protocol

from ratelimit_service.errors import Problem, RulesError

MAX_PROBLEMS = 1000
"""Per file. Nobody reads more, and a file made to be wrong in a million places must not fill the memory."""

_MAX_QUOTE_LENGTH = 80
_MAX_HINT_LENGTH = 40
"""Comparing for a hint takes the square of the length; no key or word is nearly as long."""


class LintWarning(NamedTuple):
    """A warning: something is allowed and hardly meant; line and column count from 1, 0 when there is no such place."""

    path: str
    line: int
    column: int
    kind: str
    """One of `KINDS` in `advice.py`, by which it can be silenced."""
    message: str

    def __str__(self) -> str:
        return f"{Problem(self.path, self.line, self.column, 'warning')}: {self.message} [{self.kind}]"


class Positioned(Protocol):
    """Whatever stands at a place in the file; line and column count from 1."""

    @property
    def line(self) -> int:
        """0 when it is about the file as a whole."""

    @property
    def column(self) -> int:
        """In characters."""


class Report:
    """The problems of the file at `path`. The same problem at the same place, reached by two aliases, is told once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.warnings: dict[LintWarning, None] = {}
        self._problems: dict[Problem, None] = {}

    def add(self, at: Positioned, message: str) -> None:
        """Something is wrong there; the reading goes on. Raises RulesError when it is too much."""
        self._problems[Problem(self.path, at.line, at.column, message)] = None
        if len(self._problems) >= MAX_PROBLEMS:
            raise RulesError(self.problems)

    def warn(self, at: Positioned, kind: str, message: str) -> None:
        """Something there is hardly meant."""
        if len(self.warnings) < MAX_PROBLEMS:
            self.warnings[LintWarning(self.path, at.line, at.column, kind, message)] = None

    def stop(self, at: Positioned, message: str) -> NoReturn:
        """Something is wrong there, and the reading cannot go on."""
        self.add(at, message)
        raise RulesError(self.problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything so far, in the order of the file."""
        return tuple(sorted(self._problems, key=lambda problem: problem[1:3]))


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that a misspelt one is most like; empty when it is like none."""
    found = difflib.get_close_matches(word[:_MAX_HINT_LENGTH].lower(), known, 1)
    return str(found[0]) if found else ""


def quoted(text: str) -> str:
    """The text as a message shows it: in quotes, on one line, shortened."""
    if len(text) > _MAX_QUOTE_LENGTH:
        text = text[: _MAX_QUOTE_LENGTH - 1] + "…"
    return f'"{printable(text)}"'


def printable(text: str) -> str:
    """The text without anything that a terminal would obey, whoever wrote it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
