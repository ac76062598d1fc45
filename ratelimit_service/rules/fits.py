"""What a descriptor compares values with, from its options: `values`, `cidr`, `regex`, `not`; and `group`.

Each such descriptor has a name, which its metrics have and the keys of its counters if all values share one. It is
`label`, or else made of what stands in the file: `method_values(GET,POST)`, `ip_not_cidr(10.0.0.0/8)`. The start and a
digest stand in for a long list, so that a name is never long, and two lists never have the same.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ratelimit_service.rules.address import Network, grouped_by, parse_address, parse_network
from ratelimit_service.rules.document import Scalar, YamlMap
from ratelimit_service.rules.matching import Fit, Ranges, Table, Wildcards
from ratelimit_service.rules.options import MapType, given, read_options
from ratelimit_service.rules.regex import compiled
from ratelimit_service.rules.report import Positioned, Report, quoted
from ratelimit_service.rules.rule import Place, plural
from ratelimit_service.rules.secret import DIGEST, HashValue

COMPARED: Final = ("value", "values", "cidr", "regex")
"""The options that say what values are compared with. A descriptor has one of them, or none; `not` inverts each."""

MAX_TESTS: Final = 100
"""Descriptors of one key at a level that no look-up finds: those with `not` or `regex` are tried in turn."""

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
        self._counts = Counter[object]()

    def networks(self, level: object) -> _Places:
        """The places of the networks at that level."""
        return self._networks.setdefault(level, {})

    def add(self, content: object, place: Place) -> Place:
        """Add a descriptor; returns the place of the first one that compares values with the same."""
        return self._contents.setdefault(content, place)

    def count(self, level: object) -> int:
        """Count a descriptor that needs a test of its own; returns how many the level has."""
        self._counts[level] += 1
        return self._counts[level]

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
    compared = [option for option in COMPARED if given(item, option) and values.get(option) != ""]
    if len(compared) > 1:
        _report_second(item, compared, report)
        return ReadFit()
    option = compared[0] if compared else ""
    negated = bool(values.get("not"))
    if negated and not option:
        report.add(item.fields["not"].key, f"not has nothing to invert; write {_one_of(COMPARED, 'or')} beside it")
    group = _read_group(item, values, report) if "group" in values else None
    if not option or (option == "value" and not negated):
        if "label" in values:
            words = _one_of([*COMPARED[1:], "not"], "or")
            report.add(item.fields["label"].key, f"label has no meaning without {words}")
        if group is not None and "*" not in values.get(option, "*"):
            report.add(item.fields["group"].key, "group has no meaning for a single value, which has a single counter")
        return ReadFit(counted_as=group, is_address=group is not None)
    key: str = values.get("key", "")
    if option not in values or not key:
        return ReadFit()  # malformed, which is reported
    if "*" in key:
        report.add(item.fields["key"].value, f"a key with a * in it cannot have {option}, which is for one key")
    # The same network as in a descriptor that is negated is no mistake.
    networks = {} if negated else siblings.networks((level, key, values.get("priority", 0)))
    fit, content, has_addresses = _read(option, item, values, networks, report, hash_value)
    if negated:
        fit, content = _negated(fit), f"not_{content}"
    at = item.fields["key"].key
    if fit.is_tested and siblings.count((level, key)) == MAX_TESTS + 1:
        report.add(at, f"this level has more than {MAX_TESTS} descriptors of this key with not or regex")
    place = Place(report.path, at.line, at.column)
    first = siblings.add((level, key, content), place)
    if first is not place and "label" in values:  # without labels, their names are the same, which is reported
        report.add(at, f"this descriptor matches what the one at {first} does; join them")
    is_address = group is not None or bool(fit.networks)
    counted_as = group or (grouped_by(32, 128) if has_addresses else None)
    return ReadFit(fit, values.get("label", content), is_address, counted_as)


def _read(
    option: str,
    item: YamlMap,
    values: Mapping[str, Any],
    networks: _Places,
    report: Report,
    hash_value: HashValue | None,
) -> _Read:
    """What the option compares values with."""
    key, value = values["key"], values[option]
    match option, item.fields[option].value:
        case "cidr", _:
            return _read_networks(key, value, networks, report)
        case "regex", at:
            return _read_regex(key, value, at, report)
        case "value", Scalar() as scalar if "*" not in value:
            return _read_values(key, [scalar], hash_value, report)
        case "value", _:
            fit = Fit(key, "pattern", quoted(value), search=Wildcards([(value, True)]).find)
            return _Read(fit, f"value({value})", False)
        case _:
            return _read_values(key, value, hash_value, report)


def _negated(fit: Fit) -> Fit:
    """The fit for all other values."""
    ranges = Ranges((network, True) for network in fit.networks)

    def is_inside(value: str) -> object:
        address = parse_address(value)
        return address is not None and ranges.find(address)

    return replace(fit, negated=True, search=is_inside if fit.networks else fit.search)


def _one_of(options: Sequence[str], word: str) -> str:
    """`a, b or c`."""
    *first, last = options
    return f"{', '.join(first)} {word} {last}"


def _report_second(item: YamlMap, compared: Sequence[str], report: Report) -> None:
    keys = sorted((item.fields[option].key for option in compared), key=lambda key: (key.line, key.column))
    first, second, *_ = [key.text for key in keys]
    report.add(keys[1], f"{second} contradicts {first}: a descriptor has one of {_one_of(COMPARED, 'and')}")


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


def _read_regex(key: str, pattern: str, at: Positioned, report: Report) -> _Read:
    try:
        search: Callable[[str], bool] = compiled(pattern)
    except ValueError as error:
        report.add(at, f"regex {quoted(pattern)}: {error}")
        search = bool
    return _Read(Fit(key, "regex", quoted(pattern), search=search), _content("regex", [pattern]), False)


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
