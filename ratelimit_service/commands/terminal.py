"""The output of commands: colours on a terminal, and only there, and no control characters of others.

Rules files, clients, services and arguments may have an ESC or a U+009B in their texts, which would command a terminal.
So every command prints by `echo` and `echo_json`. NO_COLOR (https://no-color.org) turns colours off.
"""

import json
import os
import re
import sys
from typing import Final, NamedTuple

import click

from ratelimit_service.rules.problems import printable

# Unicode keeps these noncharacters for use inside of a process. So each ESC of a line was written by others; and where
# others send one of these, the worst is a colour.
_MARKS: Final = {"\ufdd0": "\x1b[0m", "\ufdd1": "\x1b[31m", "\ufdd2": "\x1b[32m", "\ufdd3": "\x1b[33m"}
_MARK: Final = re.compile(f"([{''.join(_MARKS)}])")


class Style(NamedTuple):
    """A colour, if the output has any."""

    mark: str

    def __call__(self, text: str, *, err: bool = False) -> str:
        """The text with marks, which `echo` prints as this colour; `err` as there."""
        return f"{self.mark}{text}\ufdd0" if _has_colours(err=err) else text


RED: Final = Style("\ufdd1")
GREEN: Final = Style("\ufdd2")
YELLOW: Final = Style("\ufdd3")


def echo(*lines: str, err: bool = False) -> None:
    """Print each of the lines as one, with control characters escaped; `err`: to standard error."""
    for line in lines:
        click.echo(shown(line, err=err), err=err)


def echo_json(value: object) -> None:
    """Print a value as JSON, with control characters escaped as JSON does."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def echo_again(text: str) -> None:
    """Print on standard error, in place of what was printed so before."""
    click.echo(f"\r{shown(text, err=True):100}", nl=False, err=True)


def shown(line: str, *, err: bool = False) -> str:
    """The line as `echo` prints it."""
    if not _has_colours(err=err):
        return printable(line)
    return "".join(_MARKS.get(part) or printable(part) for part in _MARK.split(line))


def _has_colours(*, err: bool) -> bool:
    return (sys.stderr if err else sys.stdout).isatty() and not os.environ.get("NO_COLOR")
