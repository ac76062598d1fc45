"""What a descriptor compares values with, from its options: `values`, `cidr`, `regex`, `not`, and `group`.

Each such descriptor has a name, which its metrics have and the keys of its counters if all values share one. It is
`label`, or else made of what stands in the file: `method_values(GET,POST)`, `ip_not_cidr(10.0.0.0/8)`. The start and a
digest stand in for a long list, so that a name is never long, and two lists never have the same.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ratelimit_service.rules.address import Network, grouped_by, parse_address, parse_network
from ratelimit_service.rules.document import Scalar, YamlMap
from ratelimit_service.rules.matching import Fit, Table
from ratelimit_service.rules.options import MapType, given, read_options
from ratelimit_service.rules.report import Report, quoted
from ratelimit_service.rules.rule import Place, plural
from ratelimit_service.rules.secret import DIGEST, HashValue

COMPARED: Final = ("value", "values", "cidr")
"""The options that say what values are compared with. A descriptor has one of them, or none."""

MAX_LIST_BYTES: Final = 8 * 2**20
"""Of all values of a list."""

_MAX_WORDS: Final = 60
"""Characters of a list in a name; of a longer one the start stands there, and a digest of all."""
_MAX_START: Final = 40


_Places = dict[tuple[int, int], Place]
"""Of networks, by the lowest address and the length of the prefix."""


class ReadFit(NamedTuple):
    """How a descriptor fits values, and how it counts them."""

    fit: Fit | None = None
    """None if it matches by its name, as upstream's descriptors do."""
    label: str = ""
    """What the level is called after the key; only with a fit."""
    is_address: bool = False
    """Values are compared or counted as addresses."""
    counted_as: Callable[[str], str] | None = None
    """How values are counted, for `Level.counted_as`."""


class Siblings:
    """What all files have at each level so far, to find what is given twice."""

    def __init__(self) -> None:
        self._networks: dict[object, _Places] = {}
        self._contents: dict[object, Place] = {}

    def networks(self, level: object) -> _Places:
        """The places of the networks at that level."""
        return self._networks.setdefault(level, {})

    def add(self, content: object, place: Place) -> Place:
        """Add a descriptor; returns the place of the first one that compares values with the same."""
        return self._contents.setdefault(content, place)

    def free(self) -> None:
        """Forget everything, piece by piece."""
        for found in self._networks.values():
            while found:
                found.popitem()


class _Read(NamedTuple):
    """What a descriptor compares values with."""

    fit: Fit
    content: str
    """It in words that no other content has; the default of the label."""
    has_addresses: bool


def read_fit(
    item: YamlMap,
    values: Mapping[str, Any],
    siblings: Siblings,
    level: tuple[object, ...],
    report: Report,
    hash_value: HashValue | None,
) -> ReadFit:
    """How the descriptor fits and counts values. `level` tells its level from all others.

    With `hash_value` the values of its key are secret.
    """
    compared = [option for option in COMPARED if given(item, option)]
    if len(compared) > 1:
        _report_second(item, compared, report)
        return ReadFit()
    option = compared[0] if compared else ""
    exact = option == "value" and "*" not in values.get(option, "*")
    group = _read_group(item, values, report) if "group" in values and not exact else None
    if exact and "group" in values:
        report.add(item.fields["group"].key, "group has no meaning for a single value, which has a single counter")
    if option in ("", "value"):
        if "label" in values:
            report.add(item.fields["label"].key, "label has no meaning without values or cidr")
        return ReadFit(counted_as=group, is_address=group is not None)
    key: str = values.get("key", "")
    if option not in values or not key:
        return ReadFit()  # malformed, which is reported
    if "*" in key:
        report.add(item.fields["key"].value, f"a key with a * in it cannot have {option}, which is for one key")
    at = item.fields["key"].key
    place = Place(report.path, at.line, at.column)
    if option == "values":
        fit, content, has_addresses = _read_values(key, values[option], hash_value, report)
    else:
        networks = siblings.networks((level, key, values.get("priority", 0)))
        fit, content, has_addresses = _read_networks(key, values[option], networks, report)
    first = siblings.add((level, key, content), place)
    if first is not place and "label" in values:  # without labels, their names are the same, which is reported
        report.add(at, f"this descriptor matches the same {fit.words} as the one at {first}; join them")
    counted_as = group or (grouped_by(32, 128) if has_addresses else None)
    return ReadFit(fit, values.get("label", content), group is not None or bool(fit.networks), counted_as)


def _report_second(item: YamlMap, compared: Sequence[str], report: Report) -> None:
    keys = sorted((item.fields[option].key for option in compared), key=lambda key: (key.line, key.column))
    first, second, *_ = [key.text for key in keys]
    report.add(keys[1], f"{second} contradicts {first}: a descriptor has one of {', '.join(COMPARED)}")


def _read_values(key: str, items: Sequence[Scalar], hash_value: HashValue | None, report: Report) -> _Read:
    table: Table[str | int, bool] = Table(len(items))
    size = 0
    has_addresses = False
    texts = [item.text for item in items]
    if hash_value is not None:
        texts = [text if DIGEST.fullmatch(text) else hash_value(text) for text in texts]
    for item, text in zip(items, texts, strict=True):
        address = parse_address(text)
        entry = text if address is None else address
        if "*" in item.text:
            message = (
                f"{quoted(text)}: values are compared as they are, with no *; write it as the value of a descriptor"
            )
            report.add(item, message)
        elif table.get(entry):
            report.warn(item, "duplicate", f"{quoted(text)} is in this list twice")
        table.setdefault(entry, True)
        has_addresses = has_addresses or address is not None
        size += len(text.encode())
    if size > MAX_LIST_BYTES:
        report.add(
            items[0], f"the values of this list are larger than {MAX_LIST_BYTES >> 20} MiB; make two lists of them"
        )
    fit = Fit(key, "list", plural(len(table), "value"), values=table, hash_value=hash_value)
    return _Read(fit, _content("values", texts), has_addresses)


def _read_networks(key: str, items: Sequence[Scalar], places: _Places, report: Report) -> _Read:
    networks: list[Network] = []
    for item in items:
        network = parse_network(item.text)
        if network is None:
            report.add(item, f"{quoted(item.text)} is no network, such as 10.0.0.0/8 or 2001:db8::/32")
            continue
        if not network.as_written:
            report.warn(
                item, "host-bits", f"{quoted(item.text)} has bits of a host; it is used as the network {network}"
            )
        place = Place(report.path, item.line, item.column)
        first = places.setdefault((network.low, network.bits), place)
        if first is not place:
            report.add(item, f"network {network} is given twice at this level, first at {first}; take one of them away")
        networks.append(network)
    fit = Fit(key, "range", plural(len(networks), "network"), networks=tuple(networks))
    return _Read(fit, _content("cidr", [str(network) for network in networks]), True)


def _content(option: str, texts: Iterable[str]) -> str:
    """`values(GET,POST)`, or of a long list its start and a digest."""
    words = ""
    digest = blake2b(digest_size=8)
    for text in texts:
        if len(words) <= _MAX_WORDS:
            words = f"{words},{text}" if words else text
        digest.update(b"%d:" % len(text) + text.encode())
    if len(words) > _MAX_WORDS:
        words = f"{words[:_MAX_START]}…{digest.hexdigest()}"
    return f"{option}({words})"


def _read_group(item: YamlMap, values: Mapping[str, Any], report: Report) -> Callable[[str], str]:
    """How `group` counts addresses."""
    at = item.fields["group"].key
    lengths = read_options(values["group"], MapType.GROUP, report)
    if values.get("share_threshold"):
        report.add(at, "group contradicts share_threshold, with which all values share one counter")
    elif not values["group"].fields:
        report.add(at, "group has neither ipv4 nor ipv6, the lengths of the prefixes by which addresses are counted")
    return grouped_by(lengths.get("ipv4", 32), lengths.get("ipv6", 128))
