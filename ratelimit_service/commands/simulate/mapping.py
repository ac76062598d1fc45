"""The request of a line of a log: descriptors, written as templates with the fields of the line."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

import click

from ratelimit_service.commands.request import ENTRY, descriptors
from ratelimit_service.commands.template import pieces
from ratelimit_service.model import MAX_REQUESTS, MAX_WINDOW
from ratelimit_service.rules.rule import Entries
from ratelimit_service.system.clock import SECOND

Values = tuple[str | None, ...]
"""The values of a line, of the fields that a mapping has; None where the line has none."""

_Part = str | int
"""A text, or the index of a field."""


class _Template(NamedTuple):
    key: str
    parts: Sequence[_Part]


class Mapping:
    """Makes descriptors of the values of `fields`."""

    def __init__(self, templates: Sequence[str], took: str | None = None, settle: str | None = None) -> None:
        """Read `user={user} path={path}`, several with + between them; a usage error says what is wrong with one.

        `took` is the field that says how long the request of a line took, in seconds, or with `:ms` in milliseconds;
        `settle` the one that says what it has cost.
        """
        self.fields: list[str] = []
        """The names of all fields, each once."""
        self._descriptors: list[list[_Template]] = []
        for template in templates:
            try:
                words = shlex.split(template)
            except ValueError as error:  # quotes that do not end
                raise click.UsageError(f"--descriptor {template!r}: {error}") from error
            if not words:
                raise click.UsageError("--descriptor is empty; write for example 'user={user} path={path}'")
            for entries in descriptors([ENTRY.convert(word, None, None) for word in words]):
                self._descriptors.append([_Template(key, self._parts(template, value)) for key, value in entries])

        name, colon, unit = (took or "").rpartition(":")
        if not colon or unit not in {"s", "ms"}:
            name, unit = took or "", "s"
        self._unit = SECOND if unit == "s" else SECOND // 1000
        self._took, self._settle = self._field(name), self._field(settle or "")

    @property
    def settles(self) -> bool:
        """Some field says what requests have cost."""
        return self._settle is not None

    def lasted(self, values: Values) -> int:
        """The time that the request of a line took, in microseconds; 0 if the line does not say it."""
        text = None if self._took is None else values[self._took]
        try:
            lasted = float(text or "0") * self._unit
        except ValueError:
            return 0
        return round(min(lasted, MAX_WINDOW)) if lasted > 0 else 0

    def cost(self, values: Values) -> int | None:
        """What the request of a line has cost; None if the line does not say it."""
        text = None if self._settle is None else values[self._settle]
        try:
            cost = int(float(text or ""))
        except (ValueError, OverflowError):
            return None
        return min(cost, MAX_REQUESTS) if cost >= 0 else None

    def _field(self, name: str) -> int | None:
        if name and name not in self.fields:
            self.fields.append(name)
        return self.fields.index(name) if name else None

    def _parts(self, template: str, value: str) -> list[_Part]:
        parts: list[_Part] = []
        try:
            parsed = list(pieces(value))
        except ValueError as error:
            raise click.UsageError(f"--descriptor {template!r}: {error}") from error
        for text, field in parsed:
            if text:
                parts.append(text)
            if field is None:
                continue
            if field not in self.fields:
                self.fields.append(field)
            parts.append(self.fields.index(field))
        return parts

    def entries(self, values: Values) -> list[Entries]:
        """The descriptors of a line. As in Envoy, one that needs a field which the line does not have is left out."""
        found = (_filled(entries, values) for entries in self._descriptors)
        return [entries for entries in found if entries is not None]


def _filled(entries: Sequence[_Template], values: Values) -> Entries | None:
    made = []
    for key, parts in entries:
        texts = [part if isinstance(part, str) else values[part] for part in parts]
        if any(text in {None, "", "-"} for text, part in zip(texts, parts, strict=True) if isinstance(part, int)):
            return None
        made.append((key, "".join(text or "" for text in texts)))
    return tuple(made)
