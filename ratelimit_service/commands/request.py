"""A request on the command line: its descriptors and limit as arguments, and the message that is sent for it."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

import click

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.model import MAX_FIELD, Descriptor, Limit, Unit
from ratelimit_service.rules.rule import Entries
from ratelimit_service.rules.window import read_window


class Entry(NamedTuple):
    """One entry of a descriptor."""

    key: str
    value: str


class EntryType(click.ParamType[Entry | None]):
    """An argument `key=value`; a `+`, which begins another descriptor, becomes None.

    `otherwise` ends the error message about an argument without `=`; in it `{}` stands for the argument.
    """

    name = "KEY=VALUE"

    def __init__(self, otherwise: str = "") -> None:
        self._otherwise = otherwise

    def convert(self, value: str | Entry, param: click.Parameter | None, ctx: click.Context | None) -> Entry | None:
        """The entry, or a usage error."""
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
    """The entries of each descriptor; a usage error if a descriptor is empty."""
    found = [
        tuple((entry.key, entry.value) for entry in some if entry is not None)
        for plus, some in groupby(entries, lambda entry: entry is None)
        if not plus
    ]
    if len(found) != sum(entry is None for entry in entries) + 1:
        raise click.UsageError("a descriptor is empty: there must be a KEY=VALUE on both sides of each +")
    return found


def one_descriptor(entries: Sequence[Entry | None], command: str) -> Entries:
    """The entries of the only descriptor, or none; a usage error if there are several."""
    found = descriptors(entries) if entries else [()]
    if len(found) > 1:
        raise click.UsageError(f"{command} takes one descriptor; give another one in a second call")
    return found[0]


class _LimitType(click.ParamType[Limit]):
    """An argument `N/UNIT`, with a unit as in a rules file: `10/minute`, `10/5m`."""

    name = "N/UNIT"

    def convert(self, value: str | Limit, param: click.Parameter | None, ctx: click.Context | None) -> Limit:
        if isinstance(value, Limit):
            return value
        requests, _, unit = value.partition("/")
        window = read_window(unit.strip())
        if not requests.isdecimal() or int(requests) > MAX_FIELD or window is None:
            units = ", ".join(unit.name.lower() for unit in Unit)
            self.fail(f"{value!r} is not a limit such as 10/minute or '10/5 minutes'; units are {units}", param, ctx)
        if window.problem:
            self.fail(f"{value!r}: a window of {unit.strip()} {window.problem}", param, ctx)
        return Limit(int(requests), window.unit, window.microseconds)


LIMIT: Final = _LimitType()


def count_of(number: int) -> str:
    """A limit, or what is left of it, as a field of a response has it."""
    return f"{number} or more" if number == MAX_FIELD else f"{number}"


def as_message(domain: str, descriptors: Sequence[Descriptor]) -> RateLimitRequest:
    """The request as a message of Envoy's protocol; a cost below 0 is a refund."""
    message = RateLimitRequest(domain=domain)
    for descriptor in descriptors:
        sent = message.descriptors.add(is_negative_hits=descriptor.cost < 0)
        for key, value in descriptor.entries:
            sent.entries.add(key=key, value=value)
        if descriptor.hits_addend is not None:
            sent.hits_addend.value = descriptor.hits_addend
        if descriptor.override is not None:
            sent.limit.CopyFrom(_override(descriptor.override))
    return message


def _override(limit: Limit) -> RateLimitDescriptor.RateLimitOverride:
    sent = RateLimitDescriptor.RateLimitOverride(
        requests_per_unit=limit.requests,
        unit=limit.unit.value,  # type: ignore[arg-type]  # WEEK has no name in that enum
    )
    if limit.window != limit.unit.window:
        sent.unit_multiplier.value = limit.window // limit.unit.window
    return sent
