"""How descriptors are written on the command line: `key=value …`, with a `+` between two of them."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

import click

from ratelimit_service.rules.rule import Entries


class Entry(NamedTuple):
    """One (key, value) of a descriptor."""

    key: str
    value: str


class EntryType(click.ParamType[Entry | None]):
    """`key=value`; `+`, which begins another descriptor, becomes None.

    `otherwise` is what else may be meant by a word without `=`; it may have the word in it, as `{}`.
    """

    name = "KEY=VALUE"

    def __init__(self, otherwise: str = "") -> None:
        self._otherwise = otherwise

    def convert(self, value: str | Entry, param: click.Parameter | None, ctx: click.Context | None) -> Entry | None:
        """The entry; bad usage when it is none."""
        if isinstance(value, Entry):
            return value
        if value == "+":
            return None
        key, equals, rest = value.partition("=")
        if not equals:
            meant = f"{value}=VALUE, or {value}= for an empty value{self._otherwise.format(value)}"
            self.fail(f"{value!r} has no =; write {meant}", param, ctx)
        if not key:
            self.fail(f"{value!r} has no key; write key=value", param, ctx)
        return Entry(key, rest)


ENTRY: Final = EntryType()


def descriptors(entries: Sequence[Entry | None]) -> list[Entries]:
    """The entries of each descriptor; bad usage when one has none."""
    found = [
        tuple((entry.key, entry.value) for entry in some if entry is not None)
        for plus, some in groupby(entries, lambda entry: entry is None)
        if not plus
    ]
    if len(found) != sum(entry is None for entry in entries) + 1:
        raise click.UsageError("a descriptor is empty: there must be a KEY=VALUE on both sides of each +")
    return found


def one_descriptor(entries: Sequence[Entry | None], command: str) -> Entries:
    """The entries of the only descriptor, or none; bad usage when there are several."""
    found = descriptors(entries) if entries else [()]
    if len(found) > 1:
        raise click.UsageError(f"{command} takes one descriptor; ask for another one apart")
    return found[0]
