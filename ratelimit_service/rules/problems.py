"""Collects the errors and warnings about one document of rules, so that all are reported together."""

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn, Protocol

from ratelimit_service.errors import Problem, RulesError

MAX_PROBLEMS = 1000
"""The most problems reported of a file. One made to be wrong in a million places must not fill the memory."""

_MAX_QUOTE_LENGTH = 80
_MAX_HINT_LENGTH = 40
"""A comparison for a hint takes the square of the length; every key is much shorter."""


class LintWarning(NamedTuple):
    """Something is allowed, but probably not intended. Line and column count from 1; 0 means the whole file."""

    path: str
    line: int
    column: int
    kind: str
    """One of `lint.KINDS`; `ratelimit check --ignore` takes it."""
    message: str

    def __str__(self) -> str:
        return f"{Problem(self.path, self.line, self.column, 'warning')}: {self.message} [{self.kind}]"

    @property
    def note(self) -> Problem:
        """The place and the text, for readers who may know it already."""
        return Problem(self.path, self.line, self.column, self.message)


def warning_at(place: tuple[str, int, int] | None, kind: str, message: str) -> LintWarning:
    """A warning about what stands at this place."""
    return LintWarning(*(place or ("", 0, 0)), kind, message)


class Place(NamedTuple):
    """A position in the rules; line and column count from 1, and are 0 where the path has all of it."""

    path: str
    line: int
    column: int

    @property
    def short(self) -> str:
        """It without the column, as pages show it."""
        return f"{self.path}:{self.line}" if self.line else self.path

    def __str__(self) -> str:
        return f"{self.short}:{self.column}" if self.line else self.path


class Position(NamedTuple):
    """A position in the document without a node; line and column count from 1."""

    line: int
    column: int


class Positioned(Protocol):
    """Anything with a position in the document; line and column count from 1."""

    @property
    def line(self) -> int:
        """0 means the whole document."""

    @property
    def column(self) -> int:
        """Counted in characters."""


class Report:
    """The errors and warnings of the document with this `path`. An error that two aliases lead to is reported once."""

    def __init__(self, path: str, *, is_file: bool = True) -> None:
        self.path = path
        self.is_file = is_file
        """Data files that the document names are relative to it; another document names none."""
        self.pointers: Mapping[int, str] = {}
        """Of a document without lines: the path of each node in it, such as `/descriptors/3`, by the node's `line`."""
        self.warnings: dict[LintWarning, None] = {}
        self._problems: dict[Problem, None] = {}

    def place(self, at: Positioned) -> Place:
        """The place for all messages and pages."""
        if isinstance(at, Place):
            return at
        if self.pointers:
            return Place(self.path + self.pointers.get(at.line, ""), 0, 0)
        return Place(self.path, at.line, at.column)

    def within(self, at: Positioned) -> str:
        """The place in this document, for a message about another place of it."""
        return self.pointers[at.line].lstrip() if self.pointers else f"{at.line}:{at.column}"

    def add(self, at: Positioned, message: str) -> None:
        """Add an error; reading continues. Raises RulesError when there are too many."""
        self._problems[Problem(*self.place(at), message)] = None
        if len(self._problems) >= MAX_PROBLEMS:
            raise RulesError(self.problems)

    def warn(self, at: Positioned, kind: str, message: str) -> None:
        """Add a warning."""
        if len(self.warnings) < MAX_PROBLEMS:
            self.warnings[LintWarning(*self.place(at), kind, message)] = None

    def hide(self, at: Positioned, text: str) -> None:
        """Take the text, which is secret, out of the errors at its position."""
        secret, place = shortened(text), self.place(at)
        if secret and any(problem[:3] == place for problem in self._problems):
            self._problems = {
                problem._replace(message=problem.message.replace(secret, "…"))
                if problem[:3] == place
                else problem: None
                for problem in self._problems
            }

    def stop(self, at: Positioned, message: str) -> NoReturn:
        """Add an error after which reading cannot continue, and raise RulesError."""
        self.add(at, message)
        raise RulesError(self.problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All errors so far, in the order of the file."""
        return tuple(sorted(self._problems, key=lambda problem: problem[1:3]))


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most similar to a misspelt one; empty when none is similar."""
    found = difflib.get_close_matches(word[:_MAX_HINT_LENGTH].lower(), known, 1)
    return str(found[0]) if found else ""


def quoted(text: str) -> str:
    """The text for a message: in quotes, on one line, shortened."""
    return f'"{shortened(text)}"'


def shortened(text: str) -> str:
    """The text for a message, on one line, without quotes."""
    if len(text) > _MAX_QUOTE_LENGTH:
        text = text[: _MAX_QUOTE_LENGTH - 1] + "…"
    return printable(text)


def printable(text: str) -> str:
    """The text with control characters escaped, so that it is safe to print on a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
