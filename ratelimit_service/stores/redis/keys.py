"""Names of counters in Redis. Pure.

A name is `CACHE_KEY_PREFIX`, a version, and the counter's key, such as `rl2|shop|user=ada|fixed_window/60000000`; the
version changes when the meaning of what is stored does. In a Cluster each counter has a slot of its own, except those
that are charged together, all or none: one step of Redis needs one slot, so they share a hash tag, `rl2|{shop}shop|…`;
and the members of a pool share one with it.
"""

import re
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from ratelimit_service.algorithms.kinds import ENDINGS, Reserved
from ratelimit_service.rules.rule import REQUEST
from ratelimit_service.stores.hit import OnCounter

VERSION: Final = "rl2|"
SLOTS: Final = 16384


def plain_key(prefix: str) -> Callable[[OnCounter], str]:
    """Names for one server."""
    start = prefix + VERSION

    def name(hit: OnCounter) -> str:
        return start + hit.key

    return name


def cluster_key(prefix: str) -> Callable[[OnCounter], str]:
    """Names for a Cluster.

    A prefix with a hash tag puts all counters into one slot. Otherwise no value that a client sends may be taken for a
    tag, or the client could choose the node that it overloads: an empty `{}` before it says that the whole name
    counts (Redis Cluster specification, "Hash tags").
    """
    start = prefix + VERSION
    tagged = _tag(prefix.encode()) is not None

    def name(hit: OnCounter) -> str:
        key, rule = hit.key, hit.rule
        if not rule.shares_slot or tagged:
            return f"{start}{{}}{key}" if "{" in key and not tagged else start + key
        if rule.common_key:
            shared = rule.common_key.rpartition("|")[0]
        else:
            shared = rule.counter_domain if rule.together == REQUEST else key.removesuffix(rule.key_suffix)
        return f"{start}{{{_without_braces(shared)}}}{key}"

    return name


def plain_second(counter: str, ending: str) -> str:
    """The name of the second counter of the one with this name, on one server."""
    return counter + ending


def cluster_second(counter: str, ending: str) -> str:
    """The same in a Cluster: in the slot of the counter."""
    name = counter + ending
    return name_in_slot(name, slot_of(counter)) or name


def first_counter(name: bytes) -> bytes:
    """The name of the counter whose second one has this name; any other name as it is."""
    return _SECOND_NAME.sub(b"", name)


_SECOND_NAME: Final = re.compile(
    rb"(?:%b)[01]*\Z" % "|".join((*map(re.escape, ENDINGS), rf"\|{Reserved.twin}/[0-9a-f]{{16}}")).encode()
)


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
    """The key that says when counters were last reset, so that services clear their denied cache."""
    return f"{prefix}{VERSION}resets"


def bans_keys(prefix: str) -> tuple[str, str]:
    """The keys of the bans, and of when they end; in a Cluster both are in one slot."""
    return f"{prefix}{VERSION}{{bans}}", f"{prefix}{VERSION}{{bans}}ends"


def rules_keys(prefix: str) -> tuple[str, str]:
    """The keys of the stored rules, and of when they end; in a Cluster both are in one slot, as is their past."""
    return f"{prefix}{VERSION}{{rules}}", f"{prefix}{VERSION}{{rules}}ends"


def rules_past_key(prefix: str, domain: str) -> str:
    """The key of the past of a domain's stored rules."""
    return f"{prefix}{VERSION}{{rules}}past|{domain}"


def register_keys(prefix: str) -> tuple[str, str]:
    """The keys of the register of regions at home, and of their shares; in a Cluster both are in one slot."""
    return f"{prefix}{VERSION}{{regions}}", f"{prefix}{VERSION}{{regions}}shares"


def region_keys(prefix: str) -> tuple[str, str]:
    """The keys of the name that a region's Redis has, and of what its processes have read of the register."""
    return f"{prefix}{VERSION}{{region}}", f"{prefix}{VERSION}{{region}}floors"


def name_in_slot(start: str, slot: int) -> str | None:
    """A name that begins with `start` and is in that slot; None if a hash tag in it puts it into another slot."""
    untouched = start + "0" * _DIGITS
    missing = slot_of(untouched) ^ slot
    if _tag(start.encode()) is not None:
        return None if missing else start
    ones = 0
    for bit, digits in enumerate(_digits_by_bit()):
        if missing >> bit & 1:
            ones ^= digits
    return start + f"{ones:0{_DIGITS}b}"


_DIGITS: Final = 16
"""Each 0 or 1; enough to reach every slot."""


@cache
def _digits_by_bit() -> Sequence[int]:
    """The last digits of a name that, when flipped, change a bit of a slot alone, for each bit.

    A CRC is linear: flipping the same digits changes the slot by the same bits, whatever the name. So it is a system of
    linear equations modulo 2, solved by Gaussian elimination; trying names would take 16,384 of them on average.
    """
    zeros = b"0" * _DIGITS
    rows = []
    for place in range(_DIGITS):
        digits = 1 << place
        changed = f"{digits:0{_DIGITS}b}".encode()
        rows.append([(crc_hqx(changed, 0) ^ crc_hqx(zeros, 0)) % SLOTS, digits])
    for bit in range(SLOTS.bit_length() - 1):
        pivot = next(row for row in range(bit, _DIGITS) if rows[row][0] >> bit & 1)
        rows[bit], rows[pivot] = rows[pivot], rows[bit]
        for row in range(_DIGITS):
            if row != bit and rows[row][0] >> bit & 1:
                rows[row][0] ^= rows[bit][0]
                rows[row][1] ^= rows[bit][1]
    return [digits for _, digits in rows[: SLOTS.bit_length() - 1]]


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
