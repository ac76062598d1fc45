"""A snapshot: the rules that a control plane has at one time, as a response of xDS says them."""

from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final, NamedTuple

from ratelimit_service.errors import Problem
from ratelimit_service.rules.problems import MAX_PROBLEMS, shortened
from ratelimit_service.rules.sources.xds.resource import XdsResource
from ratelimit_service.rules.sources.xds.wire import fields_of

TYPE_URL: Final = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
_MESSAGE: Final = TYPE_URL.rpartition("/")[2]

MAX_RESOURCES: Final = 50_000
"""The most resources, and so domains, of a snapshot."""
MAX_DESCRIPTORS: Final = 200_000
"""The most descriptors of a snapshot, at all levels. Each takes up to 7 KB while it is loaded; 16 MiB have room for
three million."""
MAX_LEVELS: Final = 50
"""The most levels of descriptors, about as many as a rules file may have."""
MAX_NONCE: Final = 16 * 1024
"""Bytes of a nonce, and of a version: they are sent back with each answer."""


class XdsSnapshot(NamedTuple):
    """A snapshot, decoded as far as the resources of their own."""

    version: str
    nonce: str
    resources: Sequence[XdsResource]
    digest: str
    """Of the resources, in any order: the same rules have the same."""
    problems: tuple[Problem, ...]
    """Why it cannot be loaded as far as it was decoded."""


def decode(response: bytes, name: str) -> XdsSnapshot:
    """The snapshot in a DiscoveryResponse of the control plane with this name. ValueError if it is not one."""
    texts = {1: "", 4: "", 5: ""}
    found: list[bytes] = []
    problems: list[Problem] = []
    count = 0
    for field, value in fields_of(response):
        if field == 2:
            count += 1
            if count <= MAX_RESOURCES:
                found.append(value)
        elif field in texts:
            if len(value) > MAX_NONCE:
                raise ValueError(f"field {field} has more than {MAX_NONCE >> 10} KiB")
            texts[field] = value.decode()
    if texts[4] not in ("", TYPE_URL):
        problems.append(Problem(name, 0, 0, f"the response has resources of another type: {shortened(texts[4])}"))
    if count > MAX_RESOURCES:
        problems.append(Problem(name, 0, 0, f"the response has {count:,} resources, of {MAX_RESOURCES:,} at most"))
    resources = []
    descriptors = 0
    for number, each in enumerate(() if problems else found):
        resource = _resource(each, number)
        if isinstance(resource, XdsResource):
            resources.append(resource)
            descriptors += _count(resource.text, 3, MAX_DESCRIPTORS - descriptors)
            if descriptors > MAX_DESCRIPTORS:
                most = f"more than {MAX_DESCRIPTORS:,} descriptors, or more than {MAX_LEVELS} levels of them"
                problems.append(Problem(name, 0, 0, f"the response has {most}"))
                break
        elif len(problems) < MAX_PROBLEMS:
            problems.append(resource)
    return XdsSnapshot(texts[1], texts[5], resources, _digest(found, count), tuple(problems))


def _resource(message: bytes, number: int) -> XdsResource | Problem:
    """The resource in an Any, the `number`th of its response; or what is wrong with it."""
    name = f"resource {number}"
    try:
        parts = dict(fields_of(message))
        type_name = parts.get(1, b"").decode().rpartition("/")[2]
        if type_name != _MESSAGE:
            return Problem(name, 0, 0, f"is a {shortened(type_name) or 'message without a type'}, not a {_MESSAGE}")
        text = parts.get(2, b"")
        if own := dict(fields_of(text)).get(1, b"").decode():
            name = f"resource {shortened(own)}"
    except ValueError as error:
        return Problem(name, 0, 0, f"is not a {_MESSAGE}: {error}")
    return XdsResource(name, text)


def _count(message: bytes, field: int, most: int, depth: int = 0) -> int:
    """The descriptors in a message, in this field of it; more than `most` of them are not counted on.

    Too many levels are as many. What is no message is an error later, with its place.
    """
    if depth > MAX_LEVELS:
        return most + 1
    found = 0
    with suppress(ValueError):
        for number, value in fields_of(message):
            if number == field:
                found += 1 + _count(value, 4, most - found - 1, depth + 1)
                if found > most:
                    break
    return found


def _digest(resources: Sequence[bytes], count: int) -> str:
    # A control plane may keep them in a map, and send the same ones in another order.
    digest = blake2b(f"{count}".encode(), digest_size=8)
    for each in sorted(blake2b(resource, digest_size=16).digest() for resource in resources):
        digest.update(each)
    return digest.hexdigest()
