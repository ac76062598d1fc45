"""IP addresses and networks as numbers, so that each has one form, however it is written. Pure.

An IPv6 address is its number below 2**128. An IPv4 address is its number above `IPV4`, also when it is written as an
IPv6 address that maps it, `::ffff:10.0.0.1`. Zones (`%eth0`) are dropped. The standard library's `ipaddress` accepts
the same texts, and takes two to five times as long.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from ratelimit_service.rules.rule import Address, Entries
from ratelimit_service.rules.secret import DIGEST, Digest

IPV4: Final = 1 << 128

_MAPPED: Final = 0xFFFF
"""The upper 96 bits of an IPv6 address that maps an IPv4 address (RFC 4291, section 2.5.5.2)."""
_OCTETS: Final = {str(number): number for number in range(256)}
"""Leading zeros are refused, as `ipaddress` does: some programs read them as octal numbers."""
_GROUPS: Final = 8
_DIGITS: Final = 32
_LONGEST: Final = 64
"""Characters of an address with its zone. A longer text is none: reading it would only take time."""


def parse_address(text: str) -> int | None:
    """The number of the address; None if the text is not one. Of an operator's network, that of its first address."""
    if text.__class__ is Address and "/" in text:
        network = parse_network(text)
        return None if network is None else network.low
    return _parse(text) if len(text) <= _LONGEST else None


@lru_cache(64)  # a plan needs the same address three times
def _parse(text: str) -> int | None:
    if ":" not in text:
        number = _ipv4(text)
        return None if number is None else IPV4 | number
    address, percent, zone = text.partition("%")
    if percent and (not zone or "%" in zone):
        return None
    number = _ipv6(address)
    if number is not None and number >> 32 == _MAPPED:
        return IPV4 | number & 0xFFFFFFFF
    return number


def _ipv4(text: str) -> int | None:
    octets = text.split(".")
    if len(octets) != 4:
        return None
    try:
        first, second, third, fourth = [_OCTETS[octet] for octet in octets]
    except KeyError:
        return None
    return first << 24 | second << 16 | third << 8 | fourth


def _ipv6(text: str) -> int | None:
    if "." in text:  # the last 32 bits may be written as an IPv4 address
        head, _, tail = text.rpartition(":")
        low = _ipv4(tail)
        if low is None:
            return None
        text = f"{head}:{low >> 16:x}:{low & 0xFFFF:x}"
    before, gap, after = text.partition("::")
    high = before.split(":") if before else []
    low_groups = after.split(":") if after else []
    zeros = _GROUPS - len(high) - len(low_groups)
    if (zeros < 1 if gap else zeros) or "" in high or "" in low_groups:
        return None
    digits = "".join([group.zfill(4) for group in (*high, *["0"] * zeros, *low_groups)])
    try:
        # Other than int(), this takes no signs and no underscores. Spaces, which it skips, make fewer octets.
        octets = bytes.fromhex(digits)
    except ValueError:
        return None
    return int.from_bytes(octets, "big") if len(digits) == len(octets) * 2 == _DIGITS else None


def address_text(number: int) -> str:
    """The canonical text: IPv6 compressed and in lower case (RFC 5952)."""
    if number >= IPV4:
        return f"{number >> 24 & 255}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    high, low = number >> 64, number & 0xFFFFFFFFFFFFFFFF
    if not low and high >> 48:
        # As of most networks, the longest run of zeros is at the end. This takes a third of the time.
        groups = [high >> 48, high >> 32 & 0xFFFF, high >> 16 & 0xFFFF, high & 0xFFFF]
        while not groups[-1]:
            groups.pop()
        return ":".join([f"{group:x}" for group in groups]) + "::"
    return str(IPv6Address(number))


class Network(NamedTuple):
    """A network: its lowest address, and the length of its prefix."""

    low: int
    bits: int
    as_written: bool = True
    """No bit of the host was set."""

    @property
    def end(self) -> int:
        """The number after its highest address."""
        return self.low + (1 << (32 if self.low >= IPV4 else 128) - self.bits)

    def __str__(self) -> str:
        return f"{address_text(self.low)}/{self.bits}"


def parse_network(text: str) -> Network | None:
    """The network of a text such as `10.0.0.0/8`; an address alone is a network of one. None for any other text."""
    address, slash, length = text.partition("/")
    number = parse_address(address)
    if number is None or "%" in address:
        return None
    bits = most = 32 if ":" not in address else 128
    if slash:
        if length not in _LENGTHS or (bits := _LENGTHS[length]) > most:
            return None
        if most > 32 and number >= IPV4:  # an IPv4 network, written as IPv6
            bits -= 96
            if bits < 0:
                return _network(_MAPPED << 32 | number & 0xFFFFFFFF, bits + 96)
    elif number >= IPV4:
        bits = 32
    return _network(number, bits)


_LENGTHS: Final = {str(number): number for number in range(129)}


def _network(number: int, bits: int) -> Network:
    host = (32 if number >= IPV4 else 128) - bits
    low = number >> host << host
    return Network(low, bits, low == number)


def canonical(value: str) -> str:
    """An address in its canonical text; whatever is not an address as it is."""
    number = parse_address(value)
    return value if number is None else Address(address_text(number))


def canonical_network(value: str) -> str:
    """An address or a network in its canonical text, a network of one as the address; any other text as it is."""
    network = _network_in(value)
    return value if network is None else _network_text(network)


def address_names(value: str, lengths: Iterable[int]) -> Iterator[str]:
    """The names of an address, or a network; no other text has such a name.

    Its canonical text, and of the networks with prefixes of these lengths those that contain it.
    """
    network = _network_in(value)
    if network is not None:
        yield _network_text(network)
        yield from (_network_text(_network(network.low, bits)) for bits in lengths if bits < network.bits)


def _network_in(value: str) -> Network | None:
    """The network of a text, of one address if that is what it has."""
    if "/" in value:
        return parse_network(value)
    number = parse_address(value)
    return None if number is None else _network(number, 32 if number >= IPV4 else 128)


def from_operator(entries: Entries) -> Entries:
    """The entries of an operator's request, which are as a page shows them.

    So a digest stands for its value, and a network for its addresses, which some rule counts by this prefix.
    """
    return tuple([(key, _meant(value)) for key, value in entries])


def _meant(value: str) -> str:
    if DIGEST.fullmatch(value):
        return Digest(value)
    return Address(value) if "/" in value and parse_network(value) is not None else value


def _network_text(network: Network) -> str:
    return str(network) if network.end - network.low > 1 else address_text(network.low)


def by_prefix(ipv4: int, ipv6: int) -> Callable[[str], str]:
    """A function that counts addresses by prefixes of these lengths; what is not an address is counted as it is.

    A network of one address is counted as the address.
    """

    def prefix(value: str) -> str:
        number = parse_address(value)
        if number is None:
            # The digest of an operator's request stands for a prefix here, rather than for a text.
            return Address(value) if value.__class__ is Digest else value
        return Address(_network_text(_network(number, ipv4 if number >= IPV4 else ipv6)))

    return prefix
