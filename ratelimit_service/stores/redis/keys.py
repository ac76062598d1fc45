"""What counters are called in Redis. Pure. Hot path.

Ours: `CACHE_KEY_PREFIX`, a version, and the counter's key, such as `rl1|shop|user=ada|fixed_window/60000000`; the
version changes when the meaning of what is stored does. In a Cluster every counter has a slot of its own, but for those
that are charged together, all or none: one step of Redis is one slot, so they share a hash tag, `rl1|{shop}shop|…`.
"""

from binascii import crc_hqx
from collections.abc import Callable
from typing import Final

from ratelimit_service.rules.rule import ALONE, REQUEST
from ratelimit_service.verdict import Hit

VERSION: Final = "rl1|"
SLOTS: Final = 16384


def plain_key(prefix: str) -> Callable[[Hit], str]:
    """Names for one server."""
    start = prefix + VERSION

    def name(hit: Hit) -> str:
        return start + hit.key

    return name


def cluster_key(prefix: str) -> Callable[[Hit], str]:
    """Names for a Cluster.

    A prefix that has a hash tag keeps it: who writes one wants all counters in one slot. Otherwise no value that a
    client sends may pass for a tag, or it could choose the node that it overloads: an empty `{}` in front of all of
    them says that the whole name counts (Redis Cluster specification, "Hash tags").
    """
    start = prefix + VERSION
    tagged = _tag(prefix.encode()) is not None

    def name(hit: Hit) -> str:
        key, rule = hit.key, hit.rule
        together = rule.together
        if together == ALONE or tagged:
            return f"{start}{{}}{key}" if "{" in key and not tagged else start + key
        shared = rule.domain if together == REQUEST else key.removesuffix(rule.ending)
        return f"{start}{{{_without_braces(shared)}}}{key}"

    return name


def plain_counter(prefix: str) -> Callable[[str], str | None]:
    """The other way round: the counter's key that a name on one server has in it; None when the name is not ours."""
    start = prefix + VERSION

    def read(name: str) -> str | None:
        return name[len(start) :] if name.startswith(start) else None

    return read


def cluster_counter(prefix: str) -> Callable[[str], str | None]:
    """The same in a Cluster, without the hash tag that `cluster_key` may have set before it."""
    plain = plain_counter(prefix)
    if _tag(prefix.encode()) is not None:
        return plain

    def read(name: str) -> str | None:
        key = plain(name)
        return key.partition("}")[2] if key is not None and key.startswith("{") else key

    return read


def resets_key(prefix: str) -> str:
    """Where it says when counters were last reset, so that services forget refusals that they remember."""
    return f"{prefix}{VERSION}resets"


def slot_of(key: str | bytes) -> int:
    """The slot that a Cluster keeps the key in: CRC-16 (XMODEM), which is `crc_hqx`, of the tag or else of it all."""
    name = key.encode() if isinstance(key, str) else key
    if b"{" in name:
        tag = _tag(name)
        if tag is not None:
            name = tag
    return crc_hqx(name, 0) % SLOTS


def _tag(name: bytes) -> bytes | None:
    begin = name.find(b"{")
    end = name.find(b"}", begin + 1)
    return name[begin + 1 : end] if begin >= 0 and end > begin + 1 else None


def _without_braces(text: str) -> str:
    # An empty tag is none.
    return text.replace("%", "%25").replace("{", "%7B").replace("}", "%7D") or "%"
