"""Readers of values in Go's syntax, which envoyproxy's deployments use.

A reader takes a text and returns its value. It raises a ValueError that says what was expected; the caller adds the
name and the text before it. Durations may be in Go's syntax too, and are read as everywhere.
"""

import ipaddress
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ratelimit_service.system.address import ANY_HOST, Tcp
from ratelimit_service.system.clock import DAY
from ratelimit_service.system.duration import read_duration

TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})

_INTEGER: Final = re.compile(
    r"([+-]?)(?:0[xX](?P<x>_?[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*)|0[bB](?P<b>_?[01]+(?:_[01]+)*)"
    r"|0[oO]?(?P<o>_?[0-7]+(?:_[0-7]+)*)|(?P<d>[1-9][0-9]*(?:_[0-9]+)*|0))"
)
_NUMBER: Final = re.compile(r"\+?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")
_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_ALLOWED_NAME: Final = re.compile(r"\*|\.?[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?")
_ORIGIN: Final = re.compile(r"\*|[a-z][a-z0-9+.-]{0,30}://(?:[a-z0-9_.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")
_PERCENT: Final = re.compile(r"([0-9]{1,4}) *%")
_SHARE: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,20})?)(%)?")
_REGION: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_MAX_REGIONS: Final = 100
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")


def read_bool(text: str) -> bool:
    """A boolean in the syntax of `strconv.ParseBool`."""
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise ValueError("is not a boolean such as true, false, 1 or 0")


def read_integer(text: str) -> int:
    """An integer in the syntax of `strconv.ParseInt` with base 0: 8081, 0x1f91, 0o17, 1_000; a leading 0 is octal."""
    match = _INTEGER.fullmatch(text) if len(text) <= 80 else None
    if match is None:
        raise ValueError("is not a whole number")
    bases = {"x": 16, "b": 2, "o": 8, "d": 10}
    digits, base = next((match[name], bases[name]) for name in bases if match[name])
    number = int(digits.removeprefix("_"), base)
    return -number if match[1] == "-" else number


def read_list(text: str) -> tuple[str, ...]:
    """The parts between commas; an empty text is an empty list."""
    return tuple(text.split(",")) if text.strip() else ()


def read_map(text: str) -> tuple[tuple[str, str], ...]:
    """Keys and values, `k:v,k2:v2`. As in envoyproxy, a value cannot contain a colon."""
    pairs = tuple(item.split(":") for item in read_list(text))
    if any(len(pair) != 2 or not pair[0].strip() for pair in pairs):
        raise ValueError("is not a map such as key:value,key2:value2")
    return tuple((key.strip(), value) for key, value in pairs)


def read_node_metadata(text: str) -> tuple[tuple[str, str], ...]:
    """Keys and values, `k=v,k2=v2`. As in envoyproxy, a value may contain `=`, and what has none is left out."""
    pairs = (item.partition("=") for item in read_list(text))
    return tuple((key, value) for key, equals, value in pairs if equals)


def empty_as(value: int, read: Callable[[str], int]) -> Callable[[str], int]:
    """A reader that takes an empty text, and 0, for this value."""
    return lambda text: (read(text) if text else 0) or value


def duration(minimum: str, *, empty: int | None = None) -> Callable[[str], int]:
    """A reader of durations not below `minimum`; an empty text is `empty`, if that is given."""
    bound = read_duration(minimum)

    def read(text: str) -> int:
        if not text and empty is not None:
            return empty
        microseconds = read_duration(text)
        if microseconds < bound:
            raise ValueError("is below zero" if bound == 0 else f"is shorter than {minimum}")
        return microseconds

    return read


def integer(minimum: int, maximum: int = 2**31 - 1) -> Callable[[str], int]:
    """A reader of integers from `minimum` to `maximum`."""

    def read(text: str) -> int:
        try:
            number = read_integer(text)
        except ValueError:
            number = minimum - 1
        if not minimum <= number <= maximum:
            raise ValueError(f"is not a whole number from {minimum} to {maximum}")
        return number

    return read


def number(minimum: float, maximum: float, noun: str = "number") -> Callable[[str], float]:
    """A reader of decimals from `minimum` to `maximum`."""

    def read(text: str) -> float:
        if _NUMBER.fullmatch(text) and minimum <= (decimal := float(text)) <= maximum:
            return decimal
        raise ValueError(f"is not a {noun} from {minimum} to {maximum}")

    return read


def read_share(text: str) -> float:
    """A share such as `5%`, or `0.05`."""
    if match := _SHARE.fullmatch(text):
        share = float(match[1]) / (100 if match[2] else 1)
        if 0 < share <= 1:
            return share
    raise ValueError("is not a share such as 5%, at most 100%")


def read_hosts(text: str) -> tuple[str, ...]:
    """Addresses or names to listen on, separated by commas; IPv6 with or without its brackets."""
    return tuple(dict.fromkeys(_host(part.strip()) for part in text.split(",")))


def _host(text: str) -> str:
    if not text:
        return ANY_HOST
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        # Digits and dots alone are an address gone wrong, not a name.
        if bare == text and _HOST.fullmatch(text) and text.strip("0123456789."):
            return text
    raise ValueError("is not an address or a name to listen on such as 0.0.0.0, :: or localhost")


def read_names(text: str) -> tuple[str, ...]:
    """Host names, separated by commas, in lower case; `.svc` stands for all names that end so, `*` for any name."""
    return _listed(text, _ALLOWED_NAME, "is not a list of names such as limits.example.com, .example.com or *")


def read_origins(text: str) -> tuple[str, ...]:
    """Origins in the form of the Origin header, separated by commas, in lower case; `*` stands for any."""
    return _listed(text, _ORIGIN, "is not a list of origins such as https://console.example.com, or *")


def _listed(text: str, allowed: re.Pattern[str], wrong: str) -> tuple[str, ...]:
    parts = tuple(part for part in (part.strip().lower() for part in text.split(",")) if part)
    if not all(allowed.fullmatch(part) for part in parts):
        raise ValueError(wrong)
    return parts


def read_regions(text: str) -> tuple[str, ...]:
    """Names of regions, separated by commas, each once; an empty text is an empty list."""
    names = tuple(name.strip() for name in read_list(text))
    if not all(map(_REGION.fullmatch, names)):
        raise ValueError("is not a list of names such as eu,us,ap")
    if len(set(names)) < len(names):
        raise ValueError("has a region twice")
    if len(names) > _MAX_REGIONS:
        raise ValueError(f"has more than {_MAX_REGIONS} regions")
    return names


def read_address(text: str) -> Tcp:
    """An address to listen on in the syntax of `net.Listen`: `:9090`, `127.0.0.1:9090`, `[::1]:9090`."""
    host, colon, port = text.rpartition(":")
    with suppress(ValueError):
        if colon and (":" not in host or host.startswith("[")):
            return Tcp(_host(host), integer(0, 65535)(port))
    raise ValueError("is not an address to listen on such as :9090, 127.0.0.1:9090 or [::1]:9090")


def read_header(text: str) -> str:
    """The name of an HTTP header (RFC 9110, section 5.1: a token)."""
    if not _HEADER.fullmatch(text):
        raise ValueError("is not a header name such as RateLimit-Limit")
    return text


def read_jitter(text: str) -> tuple[int, int]:
    """The most by which a wait is lengthened: a percentage of it, and microseconds; one of both is 0."""
    if (match := _PERCENT.fullmatch(text)) is not None:
        if int(match[1]) <= 100:
            return int(match[1]), 0
    elif text:
        microseconds = read_duration(text)
        if 0 <= microseconds <= DAY:
            return 0, microseconds
    else:
        return 0, 0
    raise ValueError("is not a share up to 100% or a time up to 24h such as 10% or 5s")


def read_path(text: str) -> str:
    """The path of a URL, without a query."""
    if not re.fullmatch(r"/[!-~]*", text) or "?" in text or "#" in text:
        raise ValueError("is not a path such as /metrics")
    return text


def read_labels(text: str) -> tuple[tuple[str, str], ...]:
    """A map whose keys are names of Prometheus labels; `_` replaces characters that a name cannot contain."""
    labels = tuple((re.sub(r"^(?=[0-9])|[^a-zA-Z0-9_]", "_", key), value) for key, value in read_map(text))
    names = [name for name, _ in labels]
    if len(set(names)) < len(names) or any(name.startswith("__") for name in names):
        raise ValueError("has a label twice, or one that starts with __")
    return labels
