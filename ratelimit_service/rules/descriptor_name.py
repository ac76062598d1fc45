"""The name by which a descriptor and its rule are counted among the hottest.

It is the rule's levels and the key of the counter, `user||shop|user=ada|fixed_window/60000000`: secret values are
digests in it, and values are there as they are counted. A long one is cut, and ends with a digest.
"""

import re
from hashlib import blake2b
from typing import Final, NamedTuple
from urllib.parse import unquote

from ratelimit_service.rules.rule import Entries, Rule, counter_key, escaped
from ratelimit_service.telemetry.tally import Path

MAX_LENGTH: Final = 600
"""Characters of a name: 300 of the rule's levels, which the operator writes, and 300 of the key."""

_MAX_KEY_LENGTH: Final = 300 - len("||…0123456789abcdef")
_MAX_ENTRIES: Final = 8

_REST: Final = "…"
_TOO_LONG: Final = "(too long to show)"
"""Keys of entries that are none: of a digest of what was cut, or of all."""
_CUT: Final = re.compile("…[0-9a-f]{16}\\Z")


class NameParts(NamedTuple):
    """The parts of a name."""

    domain: str
    """Of the request."""
    rule: Path
    """Its path without the domain; empty for a limit that came with the request."""
    rule_domain: str
    """`*` for a rule of any domain."""
    entries: Entries
    """As they are counted. Where values share a counter, their pattern."""


def descriptor_name(rule: Rule, key: str) -> str:
    """The name for the counter with this key."""
    if len(key) <= _MAX_KEY_LENGTH:
        return f"{rule.name_prefix}{key}"
    digest = blake2b(key.encode(), digest_size=8).hexdigest()
    return f"{rule.name_prefix}{key[:_MAX_KEY_LENGTH]}…{digest}"


def shortened(entries: Entries) -> Entries:
    """Entries to keep for a moment: those that are long are cut, and end with a digest of all."""
    if len(entries) <= _MAX_ENTRIES:
        for key, value in entries:
            if len(key) + len(value) > _MAX_KEY_LENGTH:
                break
        else:
            return entries
    digest = blake2b(repr(entries).encode(), digest_size=8).hexdigest()
    half = _MAX_KEY_LENGTH // 2
    return (*((key[:half], value[:half]) for key, value in entries[:_MAX_ENTRIES]), (_REST, digest))


def is_cut(entry: tuple[str, str]) -> bool:
    """Whether the entry is not the whole of what it stands for: a name was too long to keep."""
    return entry[0] in (_REST, _TOO_LONG) or _CUT.search(entry[1]) is not None


def key_without_counter(rule: Rule, domain: str, entries: Entries) -> str:
    """The key for these entries of a request for the domain, of a rule or a ban that has no counter."""
    return f"{escaped(domain)}{counter_key(rule, entries)[len(rule.key_prefix) :]}"


def read_descriptor_name(name: str) -> NameParts:
    """Split a name into its parts."""
    levels, _, key = name.partition("||")
    of_any, levels = levels.startswith("|"), levels.removeprefix("|")
    domain, *parts = key.split("|")
    domain = unquote(domain)
    return NameParts(
        domain,
        tuple(map(unquote, levels.split("|"))) if levels else (),
        "*" if of_any else domain,
        tuple(_entry(part) for part in parts if "=" in part or "~" in part[1:] or part.startswith("%")),
    )


def _entry(part: str) -> tuple[str, str]:
    """An entry of a key, as `counter_key` writes it."""
    name, equals, value = part.partition("=")
    name, _, level = map(unquote, name.partition("~"))
    if equals:
        return name, unquote(value)
    if level == name:
        return name, "*"  # it names the holders of places
    if not level:
        return _TOO_LONG, part[1:17]
    # A key with a * in it is not the one of the request.
    return name, level[len(name) + 1 :] if level.startswith(f"{name}_") else level.partition("_")[2]
