"""How an entry of a descriptor is written on the command line: `key=value`."""

from typing import Final, NamedTuple

import click


class Entry(NamedTuple):
    """One (key, value) of a descriptor."""

    key: str
    value: str


class _EntryType(click.ParamType[Entry | None]):
    """`key=value`, or `key` for an empty value; `+`, which begins another descriptor, becomes None."""

    name = "KEY=VALUE"

    def convert(self, value: str | Entry, param: click.Parameter | None, ctx: click.Context | None) -> Entry | None:
        if isinstance(value, Entry):
            return value
        if value == "+":
            return None
        key, _, rest = value.partition("=")
        if not key:
            self.fail(f"{value!r} has no key; write key=value", param, ctx)
        return Entry(key, rest)


ENTRY: Final = _EntryType()
