"""The requests of a load: from the command line or a file, with keys by a uniform or a Zipf distribution."""

import shlex
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from pathlib import Path
from random import Random
from typing import Final

import click

from ratelimit_service.commands.request import as_message
from ratelimit_service.commands.template import pieces
from ratelimit_service.model import Descriptor
from ratelimit_service.rules.rule import Entries

_FIELD: Final = "key"
PLACE: Final = f"{{{_FIELD}}}"
"""The text that stands for the number of a key in a value."""

MAX_KEYS: Final = 10_000_000
MAX_FILE_BYTES: Final = 64 << 20

_MAX_CACHED = 10_000
"""Messages that are encoded once, and kept."""


class Template:
    """A request with places for a key, encoded once: a message of it takes a join."""

    def __init__(self, domain: str, descriptors: Sequence[Entries], hits: int | None, digits: int) -> None:
        def encode(key: str) -> bytes:
            filled = [tuple((name, _filled(name, value, key)) for name, value in entries) for entries in descriptors]
            cost = 1 if hits is None else hits
            body = as_message(domain, [Descriptor(entries, cost, hits) for entries in filled]).SerializeToString()
            return b"\0" + len(body).to_bytes(4, "big") + body  # gRPC's prefix of a message

        # Keys have equally many digits, so two messages differ in nothing but the places of the key.
        self._digits = digits
        self._pieces = _split_where_different(encode("0" * digits), encode("1" * digits), digits)
        self.has_key = len(self._pieces) > 1

    def message(self, key: int) -> bytes:
        """The request with this key, as gRPC sends it."""
        return (b"%0*d" % (self._digits, key)).join(self._pieces)


def _filled(name: str, value: str, key: str) -> str:
    """The value with this key; a usage error if it has another field."""
    try:
        found = list(pieces(value))
    except ValueError as error:
        raise click.UsageError(f"{name}={value}: {error}") from error
    if unknown := [field for _, field in found if field not in {None, _FIELD}]:
        hint = f"there is no field {{{unknown[0]}}}, only {PLACE}; a brace itself is {{{{ or }}}}"
        raise click.UsageError(f"{name}={value}: {hint}")
    return "".join(text + (key if field else "") for text, field in found)


def _split_where_different(one: bytes, other: bytes, width: int) -> list[bytes]:
    pieces, begin, at = [], 0, 0
    while at < len(one):
        if one[at] != other[at]:
            pieces.append(one[begin:at])
            begin = at = at + width
        else:
            at += 1
    return [*pieces, one[begin:]]


class Requests:
    """An endless series of messages, the same for the same arguments: templates in turn by chance, keys by chance.

    With `zipf` above 0 the nth key, and the nth template, is as likely as 1 / n ** zipf; with 0 all are equally likely.
    """

    def __init__(
        self, requests: Sequence[tuple[str, Sequence[Entries]]], *, keys: int, zipf: float = 0, hits: int | None = None
    ) -> None:
        digits = len(str(keys - 1))
        self._templates = [Template(domain, descriptors, hits, digits) for domain, descriptors in requests]
        random = Random(1)  # noqa: S311 - no secret
        self._template = _chooser(len(self._templates), zipf, random)
        self._key = _chooser(keys if any(each.has_key for each in self._templates) else 1, zipf, random)
        self._cache: dict[tuple[int, int], bytes] = {}

    def next(self) -> bytes:
        """One more message, with gRPC's prefix."""
        chosen = self._template(), self._key()
        message = self._cache.get(chosen)
        if message is None:
            message = self._templates[chosen[0]].message(chosen[1])
            if len(self._cache) < _MAX_CACHED:
                self._cache[chosen] = message
        return message


def _chooser(count: int, zipf: float, random: Random) -> Callable[[], int]:
    """A function that returns a number below `count`."""
    draw = random.random
    if count == 1:
        return repeat(0).__next__
    if not zipf:
        return lambda: int(draw() * count)
    sums = list(accumulate(1 / number**zipf for number in range(1, count + 1)))
    return lambda: bisect(sums, draw() * sums[-1], hi=count - 1)


def read_requests(file: Path) -> list[tuple[str, list[Entries]]]:
    """The requests of a file, each line `DOMAIN KEY=VALUE... [+ KEY=VALUE...]`; a usage error if it cannot be used."""
    try:
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise click.UsageError(f"{file} has {size >> 20:,} MiB; the maximum is {MAX_FILE_BYTES >> 20} MiB")
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from error
    found = list(_parse(file, lines))
    if not found:
        raise click.UsageError(f"{file} has no requests; a line is DOMAIN KEY=VALUE...")
    return found


def _parse(file: Path, lines: Iterable[str]) -> Iterator[tuple[str, list[Entries]]]:
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:  # quotes that do not end
            raise _problem(file, number, str(error)) from error
        if not words:
            continue
        domain, *rest = words
        if "=" in domain:
            raise _problem(file, number, f"a line begins with the domain, not with {domain!r}")
        descriptors: list[list[tuple[str, str]]] = [[]]
        for word in rest:
            key, equals, value = word.partition("=")
            if word == "+":
                descriptors.append([])
            elif not equals or not key:
                raise _problem(file, number, f"{word!r} is not KEY=VALUE")
            else:
                descriptors[-1].append((key, value))
        if not all(descriptors):
            raise _problem(file, number, "a descriptor is empty: it needs a KEY=VALUE")
        yield domain, [tuple(entries) for entries in descriptors]


def _problem(file: Path, line: int, message: str) -> click.UsageError:
    return click.UsageError(f"{file}:{line}: {message}")
