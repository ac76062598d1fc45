"""Options by which a descriptor compares: `values`, `values_from`, `cidr`, `regex`, `not`; and how by `prefix`.

Each such descriptor has a name, which its metrics have and the key of its counter if all values share one. It is
`label`, or else made of what stands in the file: `method_values(GET,POST)`, `ip_not_cidr(10.0.0.0/8)`. The start and a
digest stand in for a long list, so that a name is never long, and two lists never have the same.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ratelimit_service.rules.address import Network, by_prefix, canonical, parse_address, parse_network
from ratelimit_service.rules.data_files import DataFiles
from ratelimit_service.rules.matching import Fit, Ranges, Table, Wildcards
from ratelimit_service.rules.pattern_work import PatternWork
from ratelimit_service.rules.problems import Place, Positioned, Report, quoted
from ratelimit_service.rules.regex import compiled
from ratelimit_service.rules.rule import plural
from ratelimit_service.rules.secret import HashValue
from ratelimit_service.rules.syntax.document import Scalar, YamlMap, YamlNode
from ratelimit_service.rules.syntax.maps import given, read_options
from ratelimit_service.rules.syntax.options import COMPARED, MapType

MAX_ALL_VALUES: Final = 2_000_000
"""The most values of all lists; a list that several descriptors name counts for each."""

MAX_TESTS: Final = 100
"""Descriptors of one key at a level that no look-up finds: those with `not` or `regex` are tried in turn."""

MAX_LIST_BYTES: Final = 8 * 2**20
"""The most bytes of all values of a list."""

_MAX_WORDS: Final = 60
"""Characters of a list in a name; of a longer one the start stands there, and a digest of all."""
_MAX_START: Final = 40


_Places = dict[tuple[int, int], Place]
"""Of networks, by the lowest address and the length of the prefix."""


class ReadFit(NamedTuple):
    """The test of a descriptor for values, and how it counts them."""

    fit: Fit | None = None
    """None if it matches by its name, as envoyproxy's descriptors do."""
    label: str = ""
    """What the level is called after the key; only with a fit."""
    is_address: bool = False
    """Values are compared or counted as addresses."""
    counted_as: Callable[[str], str] | None = None
    """How values are counted, for `Level.counted_as`."""
    mark: str = ""
    """For `Level.mark`."""


class Siblings:
    """The descriptors of all files at each level, to find what is given twice; and the data files that they name."""

    def __init__(self, data: DataFiles) -> None:
        self.data = data
        self.values = 0
        """In all lists."""
        self._networks: dict[object, _Places] = {}
        self._contents: dict[object, Place] = {}
        self._counts = Counter[object]()

    def networks(self, level: object) -> _Places:
        """The places of the networks at that level."""
        return self._networks.setdefault(level, {})

    def add(self, content: object, place: Place) -> Place:
        """Add a descriptor; returns the place of the first one that compares values with the same."""
        return self._contents.setdefault(content, place)

    def count(self, what: object) -> int:
        """Count a descriptor of some kind and level; returns how many there are so far."""
        self._counts[what] += 1
        return self._counts[what]

    def free(self) -> None:
        """Forget everything, piece by piece."""
        for found in self._networks.values():
            while found:
                found.popitem()


class _Read(NamedTuple):
    """The test that was read for a descriptor."""

    fit: Fit
    content: str
    """It in words that no other content has; the default of the label."""


def read_fit(
    item: YamlMap,
    values: Mapping[str, Any],
    siblings: Siblings,
    level: tuple[object, ...],
    report: Report,
    hash_value: HashValue | None,
) -> ReadFit:
    """Read how the descriptor fits and counts values. `level` tells its level from all others.

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
    prefix = _read_prefix(item, values, report) if "prefix" in values else None
    if not option or (option == "value" and not negated):
        if "label" in values:
            words = _one_of([*COMPARED[1:], "not"], "or")
            report.add(item.fields["label"].key, f"label has no meaning without {words}")
        if prefix is not None and "*" not in values.get(option, "*"):
            at = item.fields["prefix"].key
            report.add(at, f"{at.text} has no meaning for a single value, which has a single counter")
        return ReadFit(counted_as=prefix, is_address=prefix is not None)
    key: str = values.get("key", "")
    if option not in values or not key:
        return ReadFit()  # malformed, which is reported
    if "*" in key:
        report.add(item.fields["key"].value, f"a key with a * in it cannot have {option}, which is for one key")
    # The same network as in a descriptor that is negated is not a mistake.
    networks = {} if negated else siblings.networks((level, key, values.get("priority", 0)))
    read = _Reader(key, siblings, report, hash_value, networks)
    fit, content = read.option(option, values[option], item.fields[option].value)
    if negated:
        fit, content = _negated(fit), f"not_{content}"
    at = item.fields["key"].key
    if fit.is_tested and siblings.count(("tested", level, key)) == MAX_TESTS + 1:
        report.add(at, f"this level has more than {MAX_TESTS} descriptors of this key with not or regex")
    place = report.place(at)
    first = siblings.add((level, key, content), place)
    if first is not place and "label" in values:  # without labels, their names are the same, which is reported
        report.add(at, f"this descriptor matches what the one at {first} does; join them")
    is_address = prefix is not None or bool(fit.networks)
    # Not the name: counters must stay when a list changes. Nor the option, as a list may move into a data file.
    mark = f"{siblings.count(('counted by prefix', level, key))}" if prefix is not None else ""
    # With or without an address in it: one that is added must not change how others are counted.
    counted_as = prefix or (canonical if fit.kind in ("list", "range") else None)
    return ReadFit(fit, values.get("label", content), is_address, counted_as, mark)


def _negated(fit: Fit) -> Fit:
    """The fit for all other values."""
    ranges = Ranges((network, True) for network in fit.networks)

    def is_inside(value: str, _: PatternWork) -> object:
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


class _Reader(NamedTuple):
    """Reads what one descriptor compares values with."""

    key: str
    siblings: Siblings
    report: Report
    hash_value: HashValue | None
    networks: _Places
    """Those of the level so far."""

    def option(self, option: str, value: Any, at: YamlNode) -> _Read:
        """Read the option with this value, which stands there, as a test for values."""
        match option, at:
            case "values", _:
                return self._values(value, at)
            case "values_from", _:
                return self._values_from(value, at)
            case "cidr", _:
                return self._networks(value)
            case "regex", _:
                return self._regex(value, at)
        text = value if "*" in value else self._text(value)
        fit = Fit(self.key, "pattern", quoted(text), search=self._compared_with(text), pattern=text)
        return _Read(fit, _content("value", [text]))

    def _compared_with(self, text: str) -> Callable[[str, PatternWork], object]:
        """The test whether a value is this `value`, as a descriptor without `not` would compare it."""
        if "*" in text:
            return Wildcards([(text, True)]).find
        hash_value = self.hash_value
        if hash_value is None:
            return lambda value, _: value == text
        return lambda value, _: hash_value(value) == text

    def _values(self, items: Sequence[Scalar], at: Positioned) -> _Read:
        texts = [self._listed(item.text) for item in items]
        if sum(len(text.encode()) for text in texts) > MAX_LIST_BYTES:
            message = f"the values of this list are larger than {MAX_LIST_BYTES >> 20} MiB; put them into a data file"
            self.report.add(at, message)
        table: Table[str | int, bool] = Table(len(items))
        for item, text in zip(items, texts, strict=True):
            if "*" in item.text:
                self.report.add(item, f"{quoted(text)}: {_NO_PATTERN}; write it as the value of a descriptor")
            elif not _add(text, table):
                self.report.warn(item, "duplicate", f"{quoted(text)} is in this list twice")
        return self._list(table, plural(len(table), "value"), _content("values", texts), at)

    def _values_from(self, name: str, at: Positioned) -> _Read:
        file = self.siblings.data.open(name, at, "values_from", self.report)
        values = () if file is None else file.entries
        table: Table[str | int, bool] = Table(len(values))
        patterns = []
        for value in values:
            _add(self._listed(value), table)
            if "*" in value:
                patterns.append(value)
        if file is not None and patterns:
            # Not quoted: the values may be secrets, and messages are logged.
            self.siblings.data.report_of(file).add(file.places()[patterns[0]], f"a value with a *: {_NO_PATTERN}")
        return self._list(
            table, f"{plural(len(table), 'value')} of {quoted(name)}", _content("values_from", [name]), at
        )

    def _text(self, value: str) -> str:
        """The value, or its digest if it is a secret."""
        return value if self.hash_value is None else self.hash_value.written(value)

    def _listed(self, value: str) -> str:
        """The value of a list, or its digest: of an address, that of its canonical form."""
        return value if self.hash_value is None else self.hash_value.written(canonical(value))

    def _list(self, table: Table[str | int, bool], words: str, content: str, at: Positioned) -> _Read:
        before = self.siblings.values
        self.siblings.values += len(table)
        if before <= MAX_ALL_VALUES < self.siblings.values:
            self.report.add(at, f"all lists together have more than {MAX_ALL_VALUES:,} values")
        return _Read(Fit(self.key, "list", words, values=table, hash_value=self.hash_value), content)

    def _networks(self, items: Sequence[Scalar]) -> _Read:
        networks: list[Network] = []
        for item in items:
            network = parse_network(item.text)
            if network is None:
                self.report.add(item, f"{quoted(item.text)} is not a network, such as 10.0.0.0/8 or 2001:db8::/32")
                continue
            if not network.as_written:
                message = f"{quoted(item.text)} has bits of a host; it is used as the network {network}"
                self.report.warn(item, "host-bits", message)
            place = self.report.place(item)
            first = self.networks.setdefault((network.low, network.bits), place)
            if first is not place:
                message = f"network {network} is given twice at this level, first at {first}; remove one of them"
                self.report.add(item, message)
            networks.append(network)
        fit = Fit(self.key, "range", plural(len(networks), "network"), networks=tuple(networks))
        return _Read(fit, _content("cidr", [str(network) for network in networks]))

    def _regex(self, pattern: str, at: Positioned) -> _Read:
        fit = Fit(self.key, "regex", quoted(pattern), pattern=pattern)
        try:
            regex = compiled(pattern)
            fit = replace(fit, search=regex.matches, weight=regex.weight)
        except ValueError as error:
            self.report.add(at, f"regex {quoted(pattern)}: {error}")
        return _Read(fit, _content("regex", [pattern]))


_NO_PATTERN: Final = "the values of a list are compared as they are, with no *"


def _add(text: str, table: Table[str | int, bool]) -> bool:
    """Add a value to a list, an address as its number; returns whether it is new."""
    address = parse_address(text)
    entry = text if address is None else address
    if table.get(entry):
        return False
    table.setdefault(entry, True)
    return True


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


def _read_prefix(item: YamlMap, values: Mapping[str, Any], report: Report) -> Callable[[str], str]:
    """Read how `prefix` counts addresses."""
    at = item.fields["prefix"].key
    lengths = read_options(values["prefix"], MapType.PREFIX, report)
    if values.get("share_threshold"):
        report.add(at, f"{at.text} contradicts share_threshold, with which all values share one counter")
    elif not values["prefix"].fields:
        lengths_of = "the lengths of the prefixes by which addresses are counted"
        report.add(at, f"{at.text} has neither ipv4 nor ipv6, {lengths_of}")
    return by_prefix(lengths.get("ipv4", 32), lengths.get("ipv6", 128))
