"""Colours on a terminal, and only there; NO_COLOR (https://no-color.org) turns them off."""

import os
import sys
from typing import Final, NamedTuple

import click


class Style(NamedTuple):
    """A colour, if the output has any."""

    colour: str

    def __call__(self, text: str, *, err: bool = False) -> str:
        """The text in this colour; `err` as in click.echo."""
        output = sys.stderr if err else sys.stdout
        return click.style(text, fg=self.colour) if output.isatty() and not os.environ.get("NO_COLOR") else text


RED: Final = Style("red")
GREEN: Final = Style("green")
YELLOW: Final = Style("yellow")
