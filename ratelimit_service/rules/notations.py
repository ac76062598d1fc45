"""Finds values written in a notation that rules do not have: networks, lists, regular expressions, other globs. Pure.

Such a value is compared as text, so that almost certainly nothing fits it. Better to miss one than to warn of a good
value: paths with dots and queries, e-mail addresses, user agents, JSON, versions, templates of routes are legitimate.
"""

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from ratelimit_service.rules.report import quoted


class Odd(NamedTuple):
    """What is odd about a value."""

    kind: str
    message: str


def odd_key(key: str, value: str) -> Odd | None:
    """What is odd about a descriptor's key. With a `*` in the value too, the author knows what a `*` fits."""
    if "*" not in key or value:
        return None
    fits = "fits every entry, whatever its key" if key == "*" else "stands for any text in key and value together"
    return Odd(
        "any-key", f'the * of key {quoted(key)} {fits}, before any key alone does; if that is meant, add value: "*"'
    )


def odd_value(key: str, value: str) -> Odd | None:
    """What is odd about the value of a descriptor with this key; the first notation that is recognised."""
    if _MAYBE.search(value) is None:
        return None
    return next(_odd(key, value), None)


_MAYBE: Final = re.compile(r"[\^$\[({?|,;\\:]|\*\*|/\.?[+*]|^\.[+*]|/[0-9]{1,3}$|(?:^|\.)0[0-9]")
"""No value without this is odd; most have none of it."""


def _odd(key: str, value: str) -> Iterator[Odd]:
    as_text = f"value {quoted(value)} is compared as text"
    if network := _network(value):
        if key != _MASKED:
            yield Odd("cidr", f"{as_text}, not as a network: no address fits it; {_instead_of(network)}")
        elif value != str(network):
            yield Odd("cidr", f"{as_text}, and Envoy sends this network otherwise: write {_value(str(network))}")
        return
    if "forwarded" not in key.lower() and (what := _list_of(value)):
        yield Odd("list", f"{as_text}, not as a list: no {what} fits it; write a descriptor for each {what}")
    if canonical := _canonical(value):
        yield Odd("address", f"{as_text}, and Envoy sends this address otherwise: write {_value(canonical)}")
    if any(pattern.search(value) for pattern in _REGEX):
        instead = _instead(_SOME_OF_REGEX, value)
        yield Odd("regex", f"{as_text}, not as a regular expression; only * stands for any text: {instead}")
    if "**" in value:
        instead = f"write {_value(re.sub('[*]+', '*', value))}"
        yield Odd("glob", f"** means no more than *, which stands for any text, also with / in it: {instead}")
    if any(pattern.search(value) for pattern in _GLOB):
        instead = _instead(_SOME_OF_GLOB, value)
        yield Odd("glob", f"{as_text}, not as a pattern of a shell; only * stands for any text: {instead}")


_MASKED: Final = "masked_remote_address"
"""The one key whose values are networks: Envoy's action of this name sends `10.0.0.0/8`."""


def _network(value: str) -> IPv4Network | IPv6Network | None:
    if _NETWORK.fullmatch(value) is None:
        return None
    try:
        return ip_network(value, strict=False)
    except ValueError:
        return None


_NETWORK: Final = re.compile(r"[0-9.]+/[0-9]{1,2}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/[0-9]{1,3}")


def _instead_of(network: IPv4Network | IPv6Network) -> str:
    length, address = network.prefixlen, str(network.network_address)
    if length == network.max_prefixlen:
        return f"write {_value(address)}"
    if length == 0:
        return "leave the value away to fit any"
    if network.version == 4 and length % 8 == 0:
        return "write " + _value(".".join(address.split(".")[: length // 8]) + ".*")
    return (
        f"have Envoy send {_MASKED} with v{network.version}_prefix_mask_len: {length}, and write that key with "
        f"{_value(str(network))}"
    )


def _list_of(value: str) -> str:
    """What the value is a list of: `address`, `method` or `path`; empty when it is none."""
    parts = [part.strip() for part in _SEPARATOR.split(value)]
    if len(parts) > 1:
        if all(_is_address(part) for part in parts):
            return "address"
        if all(part.upper() in _METHODS for part in parts):
            return "method"
        if all(part.startswith("/") and not set(part) & _OF_A_QUERY for part in parts):
            return "path"
    return ""


_SEPARATOR: Final = re.compile("[,;|]")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})
_OF_A_QUERY: Final = frozenset("?=&(")


def _is_address(text: str) -> bool:
    if _network(text) is not None:
        return True
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _canonical(value: str) -> str:
    """How Envoy writes the address that is written otherwise here, also one that ends in a `*`; empty for all else."""
    octets = value.split(".")
    if len(octets) == 4 and all(_OCTET.fullmatch(octet) for octet in octets):
        plain = [octet if octet == "*" else str(int(octet)) for octet in octets]
        return ".".join(plain) if plain != octets else ""
    groups = value.split(":")
    # Hardware addresses and fingerprints have two digits everywhere, which is how no IPv6 address is written.
    if len(groups) < 3 or all(len(group) == 2 for group in groups if group != "*"):
        return ""
    if groups[-1] == "*" and all(_GROUP.fullmatch(group) for group in groups[:-1]):
        plain = [f"{int(group, 16):x}" for group in groups[:-1]]
        return ":".join([*plain, "*"]) if plain != groups[:-1] else ""
    try:
        address = IPv6Address(value)
    except ValueError:
        return ""
    written = f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)
    return written if written != value and any(map(str.isdecimal, value)) else ""


_OCTET: Final = re.compile(r"\*|[01]?[0-9]?[0-9]|2[0-4][0-9]|25[0-5]")
_GROUP: Final = re.compile("[0-9a-fA-F]{1,4}")


_REGEX: Final[Sequence[re.Pattern[str]]] = tuple(
    map(
        re.compile,
        (
            r"^\^(?!=?[0-9][\w.*+-]*$)",  # not the ^1.2 of a version
            r"^/.*\$$",
            r"\.[*+].*\$$",
            r"/\.[*+]",
            r"^\.[*+]",
            r"\[[^\]\s]*(?:0-9|a-z|A-Z|a-f|A-F)[^\]\s]*\]",
            r"\[\^[^\]\s]+\]",
            r"\\[dws](?:\+|\{[0-9])",
            r"\\[./]",
            r"\(\?[:i<=!P]",
            r"\([^()\s|]+(?:\|[^()\s|]+)+\)",
        ),
    )
)
"""Signs of a regular expression. `10.*` and `www.*` are good wildcards, `DOMAIN\\doe` is a user."""

_GLOB: Final[Sequence[re.Pattern[str]]] = tuple(
    map(
        re.compile,
        (
            r"\[![^\]\s]+\]",
            r"^/.*(?:[\w.*-]\[\w{2,}\]|\[\w{2,}\][\w.*-])",  # /user/[id] is a template of a route
            r"\{[^{}\":=\s]*,[^{}\":=\s]*\}",  # {"a":1,"b":2} is JSON
            r"^/[^?=]*\?(?:[/.?]|$)",  # /search?q=* has a query
            r"^[0-9.*?]*\.[0-9.*]*\?[0-9.*?]*$",
            r"^\S*\?\?\S*$",
        ),
    )
)
"""Signs of the globs that shells and other servers have."""


def _instead(some: re.Pattern[str], value: str) -> str:
    """What to write, with a `*` for whatever stands for more than itself."""
    text = value
    if text.startswith("^"):
        text = text[1:] if text.endswith("$") else f"{text[1:]}*"
    text = some.sub("*", text.removesuffix("$"))
    text = re.sub(r"\*+", "*", re.sub(r"\\(.)", r"\1", text))
    if set(text) & _LEFT_OVER:
        return "write a descriptor for each text that is meant"
    return f"write {_value(text)}, or a descriptor for each text that is meant"


_SOME_OF_REGEX: Final = re.compile(
    r"(?:\[[^\]]*\]|\([^()]*\)|\\[dws]|\.)(?:[*+?]|\{[0-9,]+\})|\[[^\]]*\]|\([^()]*\)|\\[dws]"
)
_SOME_OF_GLOB: Final = re.compile(r"\[[^\]]*\]|\{[^{}]*\}|\?")
_LEFT_OVER: Final = frozenset("^$[](){}|\\+?")


def _value(text: str) -> str:
    return f"value: {quoted(text)}"
