"""Texts that a regular expression matches, for comparing rules: one for each alternative, more or less.

It reads the common part of RE2's syntax: literals, classes, groups, alternatives, repetitions. Of the rest the texts
may not match; a caller tests them.
"""

import re
from collections.abc import Sequence
from typing import Final

_MOST: Final = 16
"""Examples of a part."""
_LONGEST: Final = 4096
_DEEPEST: Final = 50
_CLASSES: Final = {"d": "0", "D": "a", "w": "a", "W": "-", "s": " ", "S": "a", "b": "", "B": "", "A": "", "z": ""}
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_TWO_DIGITS: Final = re.compile("[0-9a-fA-F]{2}")
_CANDIDATES: Final = "a0A_-./ ~\u00e9"
"""One of them stands for a negated class."""


def examples(pattern: str) -> Sequence[str]:
    """At most 16 texts, most of which match."""
    return _RegexReader(pattern).alternatives(0)


class _RegexReader:
    """Reads a pattern from its begin to its end, and makes examples of each part."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def _next(self) -> str:
        """The next character, which is read; empty at the end."""
        found = self._pattern[self._at : self._at + 1]
        self._at += 1
        return found

    def _take(self, text: str) -> bool:
        """Whether this text comes next; then it is read."""
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def alternatives(self, depth: int) -> list[str]:
        """The examples up to the end of the group."""
        found = self._sequence(depth)
        while self._take("|"):
            found += self._sequence(depth)
        return found[:_MOST]

    def _sequence(self, depth: int) -> list[str]:
        found = [""]
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            parts = self._repeated(self._atom(depth))
            first = [text + parts[0] for text in found]
            found = [*first, *(found[0] + part for part in parts[1:])][:_MOST]
            found = [text for text in found if len(text) <= _LONGEST] or [""]
        return found

    def _atom(self, depth: int) -> list[str]:
        match self._next():
            case "(":
                return self._group(depth)
            case "[":
                return [self._class()]
            case "\\":
                return [self._escape()]
            case ".":
                return ["a"]
            case "^" | "$":
                return [""]
            case literal:
                return [literal]

    def _group(self, depth: int) -> list[str]:
        if self._take("?"):
            while (letter := self._next()) not in {":", ">", ")", ""}:
                pass  # flags, or a name
            if letter == ")" or not letter:
                return [""]
        if depth >= _DEEPEST:
            self._at = len(self._pattern)
            return [""]
        found = self.alternatives(depth + 1)
        self._take(")")
        return found

    def _repeated(self, parts: list[str]) -> list[str]:
        start = self._at
        match self._next():
            case "+":
                found = parts
            case "*" | "?":
                found = [*parts, ""]
            case "{" if (end := self._pattern.find("}", self._at)) > 0 and self._pattern[self._at].isdecimal():
                least = int(self._pattern[self._at : end].partition(",")[0])
                self._at = end + 1
                found = [part * least for part in parts]
            case _:
                self._at = start
                return parts
        self._take("?")  # as few as possible: the same texts
        return found

    def _class(self) -> str:
        negated = self._take("^")
        allowed = ""
        end = self._pattern.find("]", self._at + 1)
        while 0 <= self._at < end:
            if self._take("[:"):
                allowed += "a0"
                self._at = max(self._at, self._pattern.find(":]", self._at) + 2)
                end = self._pattern.find("]", self._at)
                continue
            escaped = self._pattern[self._at] == "\\"
            letter = self._next()
            if escaped:
                end = max(end, self._pattern.find("]", self._at + 1))
                letter = self._escape()
            if self._at + 1 < end and self._take("-"):
                last = self._next()
                allowed += "".join(map(chr, range(ord(letter or "a"), min(ord(last), ord(letter or "a") + 200) + 1)))
            allowed += letter
        self._at = end + 1 if end >= self._at else len(self._pattern)
        if negated:
            return next((letter for letter in _CANDIDATES if letter not in allowed), "")
        return allowed[:1]

    def _escape(self) -> str:
        letter = self._next()
        if letter == "x":
            digits = self._pattern[self._at :].lstrip("{")[:2]
            self._at += 2 + 2 * self._pattern.startswith("{", self._at)
            return chr(int(digits, 16)) if _TWO_DIGITS.fullmatch(digits) else ""
        if letter in {"p", "P"}:
            end = self._pattern.find("}", self._at) if self._take("{") else self._at
            self._at = max(self._at, end) + 1
            return "a"
        return _CLASSES.get(letter, _CONTROLS.get(letter, letter))
