"""Documents of rules -> a rulebook, or everything that is wrong with them.

What envoyproxy/ratelimit refuses is refused, and some of what it silently ignores: docs/rules-topics.md. A load is
all or nothing.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from ratelimit_service.algorithms import Algorithm
from ratelimit_service.algorithms.kinds import Elastic
from ratelimit_service.errors import Problem, RulesError
from ratelimit_service.model import Limit, RegionMode
from ratelimit_service.rules.book import ANY_DOMAIN, DEFAULT, Domain, Node, RuleBook, all_nodes
from ratelimit_service.rules.checks.lint import Calendars, lint_key, lint_value, without_hash_key
from ratelimit_service.rules.checks.review import review_descriptor, review_limit
from ratelimit_service.rules.data_files import DataFiles, ReadData, read_data_file
from ratelimit_service.rules.leasing import LEAST, NO_LEASES, LeaseOptions, most_leased, why_not_leased
from ratelimit_service.rules.lookup import Lookup
from ratelimit_service.rules.problems import LintWarning, Place, Position, Positioned, Report, quoted
from ratelimit_service.rules.reading import first
from ratelimit_service.rules.reading.fits import ReadFit, Siblings, read_fit
from ratelimit_service.rules.reading.limit import read_limit
from ratelimit_service.rules.reading.pools import DomainPools, Membership, read_elastic
from ratelimit_service.rules.reading.region_mode import read_regions
from ratelimit_service.rules.regions import ONE_REGION, RegionOptions
from ratelimit_service.rules.response import SILENT, ResponseOptions
from ratelimit_service.rules.rule import (
    ALONE,
    FIRST,
    LIST,
    REQUEST,
    Level,
    Rule,
    near_threshold,
    plural,
)
from ratelimit_service.rules.secret import DIGEST, HashValue, Secrets
from ratelimit_service.rules.syntax.document import (
    Document,
    Scalar,
    YamlList,
    YamlMap,
    free_nodes,
    kind_of,
)
from ratelimit_service.rules.syntax.maps import given, read_options, rule_fields
from ratelimit_service.rules.syntax.options import COMPARED, WITHOUT_LIMIT, MapType
from ratelimit_service.settings.fields import SourceKind
from ratelimit_service.telemetry.tally import ByteBudget, Path, Tallies, Tally


def parse(  # noqa: PLR0913 - six options of the operator's, and what a reload and a worker have besides
    documents: Sequence[Document],
    *,
    merge_domains: bool = False,
    precedence: Sequence[SourceKind] = (),
    near_ratio: float = 0.8,
    max_values: int = 1000,
    leases: LeaseOptions = NO_LEASES,
    regions: RegionOptions = ONE_REGION,
    hash_value: HashValue | None = None,
    previous: RuleBook | None = None,
    read_data: ReadData = read_data_file,
    response: ResponseOptions = SILENT,
) -> RuleBook:
    """The rulebook of these documents, and of the data files that they name; of none, a book without domains.

    With `merge_domains`, several of one source may have the same domain. Of the sources that `precedence` names, the
    first that has a domain gives it; without that, two sources may not have the same. Above `near_ratio` of a limit, a
    hit counts as near the limit. A rule whose metrics have values of requests in their names has series for at most
    `max_values` values. `hash_value` makes the digests of secret values; without it `hash_values` is an error. A rule
    takes over the tallies of the rule of `previous` that has the same path, and the book the data files that are the
    same. `response` has the options of responses that a domain does not say. Raises RulesError with every problem of
    every document.
    """
    old = {rule.path: rule for rule in previous.rules} if previous is not None else {}
    domains: dict[str, _Domain] = {}
    problems: list[Problem] = []
    warnings: list[LintWarning] = []
    data = DataFiles(read_data, {} if previous is None else previous.data)
    siblings = Siblings(data)
    sharing = _Sharing(merge_domains, precedence, [])
    load = _Load(sharing, near_ratio, max_values, leases, regions, hash_value, old, ByteBudget(), data, siblings)
    with _without_garbage_collector():
        ranks = {source: rank for rank, source in enumerate(precedence)}
        for document in sorted(documents, key=lambda each: ranks.get(each.source, len(ranks))):
            report = Report(document.name, is_file=document.source is SourceKind.FILES)
            parser = _Parser(report, load, document.source)
            with suppress(RulesError):  # stops the document; the report has the problems
                parser.read(document, domains)
            problems += report.problems
            warnings += report.warnings
        problems += data.problems
        if ANY_DOMAIN in domains:  # a request may have a secret, and a misspelt domain
            domains[ANY_DOMAIN].secrets.keys.update(*(found.secrets.keys for found in domains.values()))
        problems += [problem for found in domains.values() for problem in found.problems()]
        siblings.free()
        if problems:
            raise RulesError(problems)
        roots = {name: found.domain(response) for name, found in domains.items()}
        return RuleBook(
            roots,
            [*warnings, *data.warnings],
            data.files,
            response=None if response == SILENT else response,
            passed_over=sharing.passed_over,
        )


@contextmanager
def _without_garbage_collector() -> Iterator[None]:
    """Disable the garbage collector: a load makes a million objects and not one cycle.

    Otherwise it would stop all threads a dozen times, and once more after the load, 15 ms for ten thousand rules, and
    free nothing. Freezing and unfreezing moves the new objects to the oldest generation without a scan. Only the load
    that disabled the collector enables it again, so two concurrent loads do no harm.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.freeze()
            gc.unfreeze()
            gc.enable()


_TOGETHER = {
    ("each", False): ALONE,
    ("each", True): ALONE,
    ("together", False): REQUEST,
    ("together", True): REQUEST,
    ("first", False): ALONE,
    ("first", True): FIRST,
    (None, False): ALONE,
    (None, True): LIST,
}
"""The bundle by the value of `charge`, and by whether the limit is in a list."""


_PLAIN = ("value", "values", "values_from")
"""The options that have values, which must be digests where values are secret."""


@dataclass(slots=True)
class _Domain:
    """The parts of a domain that are read so far."""

    name: str
    place: Place
    source: SourceKind
    secrets: Secrets
    children: dict[str, Node] = field(default_factory=dict)
    together: bool = False
    """One of its files has `charge: together`."""
    values: dict[str, Place] = field(default_factory=dict)
    """By key, the first descriptor with a value of its own and without `hash_values`."""
    lookups: dict[str, Lookup] = field(default_factory=dict)
    default: Rule | None = None
    pools: DomainPools = field(default_factory=DomainPools)
    told: dict[str, tuple[Any, Place]] = field(default_factory=dict)
    """The options of the domain as a whole by key, each with its place: those of responses, and `settle`."""
    address_keys: set[str] = field(default_factory=set)
    """The keys whose values some descriptor compares or counts as addresses."""

    def domain(self, defaults: ResponseOptions) -> Domain:
        secrets = self.secrets
        lookups = {
            key: lookup.hashed(secrets.hash_value) if key in secrets.keys else lookup
            for key, lookup in self.lookups.items()
        }
        told = {key: value for key, (value, _) in self.told.items()}
        settle = told.pop("settle", "")
        response = replace(defaults, **told)
        return Domain(
            self.children,
            self.place,
            response=None if response == SILENT else response,
            together=self.together,
            lookups=lookups,
            secrets=secrets,
            address_keys=frozenset(self.address_keys),
            default=self.pools.joined(self.children, self.default),
            settle=settle,
            pools=self.pools.rules(self.name),
            source=self.source,
        )

    def problems(self) -> Iterator[Problem]:
        """The problems of the domain's files together."""
        yield from self._plain_secrets()
        yield from self._unsettled()
        yield from self.pools.problems()
        if self.default and DEFAULT in self.children and (place := self.children[DEFAULT].place):
            message = f"descriptor {quoted(DEFAULT)} has the name of the domain's default, at {self.default.place}"
            yield Problem(*place, message)

    def _unsettled(self) -> Iterator[Problem]:
        """Limits that cannot be settled in a domain that settles, and reservations in one that does not."""
        place = self.told["settle"][1] if "settle" in self.told else None
        for child in self.children.values():
            for node in all_nodes(child):
                for rule in () if node.rule is None else (node.rule, *node.rule.beside):
                    if rule.limit is None or rule.place is None:
                        continue
                    why = rule.limit.kind.why_not_settled
                    if why and place is not None:
                        yield Problem(*rule.place, f"this limit cannot have what settle charges, at {place}: {why}")
                    if rule.limit.kind.reserves and place is None:
                        yield Problem(*rule.place, "reserve needs settle at the top of a file, the key of a last entry")

    def _plain_secrets(self) -> Iterator[Problem]:
        """Values that the rules would show, of keys whose values are secret."""
        for key in self.values.keys() & self.secrets.keys:
            message = f"the values of {quoted(key)} are secret in this domain; write hash_values: true here too"
            yield Problem(*self.values[key], message)


_OF_DOMAIN = (*(field.name for field in fields(ResponseOptions)), "settle")
"""Keys at the top of a file which its domain has as a whole."""


class _Sharing(NamedTuple):
    """What becomes of a domain that two documents have."""

    merge: bool
    precedence: Sequence[SourceKind]
    passed_over: list[Problem]


class _Load(NamedTuple):
    """The state that all documents of one load share."""

    sharing: _Sharing
    near_ratio: float
    max_values: int
    leases: LeaseOptions
    regions: RegionOptions
    hash_value: HashValue | None
    old: Mapping[Path, Rule]
    budget: ByteBudget
    data: DataFiles
    siblings: Siblings


class _Parser:
    """Reads the rules of one document."""

    def __init__(self, report: Report, load: _Load, source: SourceKind) -> None:
        self._report = report
        self._load = load
        self._source = source
        self._domain = self._new_domain("", Position(0, 0))
        self._charge: str | None = None
        self._defaults: Mapping[str, Any] = {}
        self._calendars = Calendars()

    def read(self, document: Document, domains: dict[str, _Domain]) -> None:
        """Add the document's rules to its domain."""
        root = document.nodes(self._report)
        if root is None or (isinstance(root, Scalar) and root.value is None):
            self._report.stop(Position(1, 1), "the file is empty; it must begin with a domain")
        if not isinstance(root, YamlMap):
            self._report.stop(root, f"a rules file is a map with domain and descriptors, not {kind_of(root)}")
        try:
            self._read_root(root, domains)
        finally:
            free_nodes(root)

    def _read_root(self, root: YamlMap, domains: dict[str, _Domain]) -> None:
        values = read_options(root, MapType.FILE, self._report)
        self._charge = values.get("charge")
        if "defaults" in values:
            self._defaults = read_options(values["defaults"], MapType.DEFAULTS, self._report)
        if "domain" in values:
            at = root.fields["domain"].value
            self._domain = new = self._new_domain(values["domain"], at)
            first = domains.setdefault(new.name, new)
            first.together = first.together or self._charge == "together"
            same, sharing = first.source == new.source, self._load.sharing
            if first is new or (same and sharing.merge):
                self._domain = first
                self._add_told(root, values)
            elif not same and first.source in sharing.precedence:
                sharing.passed_over.append(Problem(*new.place, f"domain {quoted(new.name)} comes from {first.place}"))
                return
            else:
                # The rest of this file is checked too, and with the other one which values are secret.
                new.secrets, new.values = first.secrets, first.values
                way = "MERGE_DOMAIN_CONFIG joins files" if same else "RULES_PRECEDENCE says which source comes first"
                self._report.add(at, f"domain {quoted(new.name)} is already in {first.place}; {way}")
        self._domain.pools.add(values.get("pools", []), self._report)
        for item in values.get("lookup", []):
            self._add_lookup(item)
        if "otherwise" in values:
            self._add_default(values["otherwise"], root.fields["otherwise"].key)
        self._add_descriptors(values.get("descriptors", []), (), self._domain.children)
        self._calendars.warn(self._report)

    def _new_domain(self, name: str, at: Positioned) -> _Domain:
        # Without a key there is an error, and no book.
        return _Domain(
            name, self._report.place(at), self._source, Secrets(self._load.hash_value or HashValue(""), set())
        )

    def _add_told(self, root: YamlMap, values: Mapping[str, Any]) -> None:
        """Add the options that the file says of its domain as a whole."""
        for key in _OF_DOMAIN:
            if key in values:
                at = root.fields[key].key
                first, place = self._domain.told.setdefault(key, (values[key], self._report.place(at)))
                if first != values[key]:
                    self._report.add(at, f"{key} of domain {quoted(self._domain.name)} has another value at {place}")

    def _add_default(self, item: YamlMap, at: Scalar) -> None:
        values = read_options(item, MapType.OTHERWISE, self._report)
        shared = DEFAULT if values.get("share_threshold") else None
        rule = self._read_rule(item, values, (Level(DEFAULT, shared, several=True),))
        if rule is None:
            if not given(item, "rate_limit") and not given(item, "rate_limits"):
                self._report.add(at, f"{at.text} has no rate_limit; write one, or remove {at.text}")
        elif (first := self._domain.default) is not None:
            self._report.add(at, f"domain {quoted(self._domain.name)} has a default already, at {first.place}")
        else:
            beside = tuple(replace(each, default=True) for each in rule.beside)
            self._domain.default = replace(rule, default=True, beside=beside)

    def _add_lookup(self, item: YamlMap) -> None:
        values = read_options(item, MapType.LOOKUP, self._report)
        if not {"from", "key", "as"} <= values.keys():
            return
        key, becomes, place = values["key"], values["as"], self._report.place(item)
        lookups = self._domain.lookups
        if key in lookups:
            message = f"entries with the key {quoted(key)} are looked up twice, first by {lookups[key].place}"
            self._report.add(item.fields["key"].value, message)
            return
        if values.get("hash_values"):
            self._read_secret(item, key, "")
        file = self._load.data.open(values["from"], item.fields["from"].value, "from", self._report)
        if file is None:
            return
        nameless = [value for value, name in file.entries.items() if not name]
        if nameless:
            message = f"the line has no name, and the lookup at {place} needs one, the {becomes} of the value"
            if len(nameless) > 1:
                message += f"; also {plural(len(nameless) - 1, 'more line')} without one"
            self._load.data.report_of(file).add(file.places()[nameless[0]], message)
        lookups[key] = Lookup(key, becomes, file.entries, values.get("else"), file.path, place)

    def _add_descriptors(self, items: Sequence[YamlMap], above: tuple[Level, ...], children: dict[str, Node]) -> None:
        """Add the descriptors of one level to its children."""
        for item in items:
            values = read_options(item, MapType.DESCRIPTOR, self._report)
            key: str = values.get("key", "")
            value, hash_value = self._read_value(item, key, values)
            level = (self._domain.name, *above)
            found = read_fit(item, values, self._load.siblings, level, self._report, hash_value)
            label = found.label or value
            name = f"{key}_{label}" if label else key
            if found.is_address:
                self._domain.address_keys.add(key)
            is_malformed = any(given(item, option) and option not in values for option in COMPARED)
            if not is_malformed:
                self._check_new(item, name, children)
            own = self._read_level(item, values, found, name)
            levels = (*above, own)
            rule = self._read_rule(item, values, levels)
            review_descriptor(item, values, self._report)
            below: dict[str, Node] = {}
            self._add_descriptors(values.get("descriptors", []), levels, below)
            if rule is not None:
                self._check_rule(item, rule, below)
            place, priority = self._report.place(_key_of(item)), values.get("priority", 0)
            node = Node(below, rule, place, key=key, key_only=own.key_only, fit=found.fit, priority=priority)
            if not is_malformed:
                children.setdefault(name, node)

    def _read_value(self, item: YamlMap, key: str, values: Mapping[str, Any]) -> tuple[str, HashValue | None]:
        """The value of a descriptor as the book has it, and what makes digests of the values if they are secret."""
        value: str = values.get("value", "")
        if finding := lint_key(key, value):
            self._report.warn(item.fields["key"].value, *finding)
        if given(item, "hash_values") and values.get("hash_values", True):
            return self._read_secret(item, key, value), self._domain.secrets.hash_value
        if "*" not in value and (plain := [option for option in _PLAIN if values.get(option)]):
            self._domain.values.setdefault(key, self._report.place(item.fields[plain[0]].value))
        if finding := lint_value(key, value):
            self._report.warn(item.fields["value"].value, *finding)
        return value, None

    def _check_new(self, item: YamlMap, name: str, children: Mapping[str, Node]) -> None:
        """Check that no descriptor before it has this name at its level."""
        if name in children and "key" in item.fields:
            message = (
                f"descriptor {quoted(name)} is given twice at this level, first at {children[name].place}; join them"
            )
            self._report.add(item.fields["key"].key, message)

    def _read_level(self, item: YamlMap, values: Mapping[str, Any], found: ReadFit, name: str) -> Level:
        """The level of a descriptor with this name."""
        key = values.get("key", "")
        several = found.fit is not None or "*" in name
        key_only = not values.get("value") and found.fit is None
        shared = None
        if values.get("share_threshold"):
            shared = name[len(key) + 1 :] or key
            if key and not several:
                needs = "a list, cidr, regex, not or a value with a * in it"
                message = f"share_threshold needs {needs}, and this is {quoted(name)}"
                self._report.add(item.fields["share_threshold"].key, message)
        counted_as = None if shared is not None else found.counted_as
        names_key = "*" not in key and (shared is not None or (counted_as is not None and "prefix" not in values))
        return Level(
            name,
            shared,
            by_value=bool(values.get("value_to_metric")) and shared is None and (several or key_only),
            counted_as=counted_as,
            key_only=key_only,
            several=several or key_only,
            key=key if names_key else "",
            mark=found.mark or (name if "*" in name and found.fit is None else ""),
            as_envoyproxy=counted_as is None and (shared is None or found.fit is None),
        )

    def _read_secret(self, item: YamlMap, key: str, value: str) -> str:
        """Make the values of the key secret; returns the descriptor's value as the book has it."""
        at = item.fields["hash_values"].key
        for option in ("value", "values"):
            node = item.fields[option].value if option in item.fields else None
            for each in node.items if isinstance(node, YamlList) else [node]:
                if isinstance(each, Scalar):
                    self._report.hide(each, each.text)
        if "*" in key:
            self._report.add(at, f"hash_values needs a key without a *, and this is {quoted(key)}")
        elif self._load.hash_value is None:
            self._report.add(at, "hash_values needs a key that all instances share: set HASH_KEY or HASH_KEY_FILE")
        elif not self._load.hash_value.key_given:
            self._report.warn(at, *without_hash_key(digest=DIGEST.fullmatch(value) is not None))
        self._domain.secrets.keys.add(key)
        return value if not value or "*" in value else self._domain.secrets.hash_value.written(value)

    def _read_rule(self, item: YamlMap, values: Mapping[str, Any], levels: tuple[Level, ...]) -> Rule | None:
        """The rule of a descriptor. If it has a list of limits: the first one, with the others in `beside`."""
        if "rate_limits" not in values:
            if "rate_limit" not in values:
                return None
            block = values["rate_limit"]
            if values.get("charge") == "first":
                message = "charge: first needs rate_limits, a list of limits in the order in which they are charged"
                self._report.add(item.fields["charge"].value, message)
            return self._read_limit_rule(
                block, item.fields["rate_limit"].key, values, _sharing_holders([block], levels, self._defaults)
            )
        at = item.fields["rate_limits"].key
        if "rate_limit" in values:
            self._report.add(at, "rate_limits contradicts rate_limit: put that limit into the list")
        blocks: Sequence[YamlMap] = values["rate_limits"]
        if not blocks:
            self._report.add(at, "rate_limits is an empty list; remove it, or write a limit")
        rules: list[Rule] = []
        levels = _sharing_holders(blocks, levels, self._defaults)
        for block in blocks:
            rule = self._read_limit_rule(block, block, values, levels, rules)
            if rule.limit is not None:
                rules.append(rule)
        return replace(rules[0], beside=tuple(rules[1:])) if rules else None

    def _check_rule(self, item: YamlMap, rule: Rule, below: Mapping[str, Node]) -> None:
        """Check a descriptor's rule together with its next level, where none may have the name of a limit of a list."""
        for each in (rule, *rule.beside):
            for suffix in each.path_suffix:
                place = below[suffix].place if suffix in below else None
                if place is not None:
                    message = f"descriptor {quoted(suffix)} has the name of the limit of rate_limits at {each.place}"
                    self._report.add(place, message)
        if rule.limit is None and given(item, "prefix") and not below:
            at = item.fields["prefix"].key
            message = f"{at.text} has no effect: what is always denied, or allowed, has no counter"
            self._report.warn(at, "no-effect", message)

    def _read_limit_rule(
        self,
        block: YamlMap,
        at: Positioned,
        values: Mapping[str, Any],
        levels: tuple[Level, ...],
        before: Sequence[Rule] | None = None,
    ) -> Rule:
        """The rule of one limit; in a list, `before` has the rules of the limits before it."""
        options = read_options(block, MapType.RATE_LIMIT, self._report)
        holder = next((index for index, level in enumerate(levels) if _has_holders(level)), -1)
        together = _TOGETHER[values.get("charge") or self._charge, before is not None]
        defaults = self._defaults if holder >= 0 else self._without_reserve(block)
        defaults = first.defaults(block, options, defaults, self._report) if together == FIRST else defaults
        algorithm, limit = read_limit(block, at, options, defaults, self._report)
        review_limit(block, options, self._report)
        elastic: Mapping[str, Any] = {}
        if limit is not None and "elastic" in options:
            limit, elastic = read_elastic(block, options, limit, self._report)
        regions = ""
        if limit is not None:
            deployment = self._load.regions
            limit, regions = read_regions(block, options, (algorithm, limit, together), deployment, self._report)
        if limit is not None and algorithm.name == "fixed_window" and limit.epoch_aligned:
            self._calendars.add(limit, options["unit"].unit, block.fields["unit"].value)
        replaces = self._read_replaces(options.get("replaces", []), options.get("name", ""))
        if given(block, "for") and not given(block, "deny"):
            at_for = block.fields["for"].key
            message = f"{at_for.text} has no meaning without deny: of a limit it follows from the counter"
            self._report.add(at_for, message)
        path_suffix: Path = ()
        if before is not None:
            for key in filter(options.get, WITHOUT_LIMIT):
                self._report.add(block.fields[key].key, f"{key} has no meaning among several limits")
            if limit is not None:
                path_suffix = (
                    first.path_suffix(at, options.get("name", ""), limit, before, self._report)
                    if together == FIRST
                    else self._suffix_in_list(at, algorithm, limit, before)
                )

        fields = rule_fields(self._defaults, values, options)
        if limit is not None and limit.kind.holds:
            fields["quota_unit"] = limit.kind.counts
            if holder < 0:
                named = quoted(options["place"])
                message = f"place {named}: no descriptor above this limit has that key and no value; write the limit"
                self._report.add(block.fields["place"].value, f"{message} into a descriptor - key: {options['place']}")
        if values.get("detailed_metric"):
            levels = tuple(level if level.shared is not None else level._replace(by_value=True) for level in levels)
        path = (self._domain.name, *(level.name for level in levels), *path_suffix)
        old = self._load.old.get(path)
        lease = 0 if limit is None else self._lease(block, options, algorithm, limit, together)
        if limit is not None and lease and "count_refused" not in {*self._defaults, *options}:
            # A full window stays full, counted or not; but what is counted would take what others give back.
            limit = replace(limit, crossing_only=limit.count_refused)
        rule = Rule(
            self._domain.name,
            levels,
            limit,
            algorithm,
            replaces=replaces,
            place=self._report.place(at),
            near=0 if limit is None else self._near(limit),
            together=together,
            lease=lease,
            regions=regions,
            path_suffix=path_suffix,
            tally=Tally() if old is None else old.tally,
            measured=None if old is None else old.measured,
            tallies=self._tallies(levels, path_suffix, old) if any(level.by_value for level in levels) else None,
            secrets=self._domain.secrets,
            holder=holder,
            **fields,
        )
        if "pool" in elastic:
            self._join_pool(block.fields["elastic"].key, options["elastic"].fields["pool"].value, elastic, rule)
        return rule

    def _without_reserve(self, block: YamlMap) -> Mapping[str, Any]:
        """The defaults for a limit whose requests no level names: reserve does not apply to it."""
        if given(block, "reserve"):
            message = "reserve: no descriptor above this limit has the key id and no value; write the limit into one"
            self._report.add(block.fields["reserve"].value, message)
        return {key: value for key, value in self._defaults.items() if key != "reserve"}

    def _near(self, limit: Limit) -> int:
        most = limit.capacity
        if limit.kind.waits_for_home:
            return most  # a region knows what it may spend, not what is left at home: nothing counts as near
        return near_threshold(most, self._load.near_ratio)

    def _tallies(self, levels: tuple[Level, ...], path_suffix: Path, old: Rule | None) -> Tallies:
        """The tallies of values, which go on from the rule's that had the same path before."""
        if old is not None and old.tallies is not None:
            old.tallies.use_budget(self._load.budget)
            return old.tallies
        names = ("other" if level.by_value else level.name for level in levels)
        return Tallies((self._domain.name, *names, *path_suffix), self._load.max_values, self._load.budget)

    def _join_pool(self, at: Positioned, at_pool: Positioned, elastic: Mapping[str, Any], rule: Rule) -> None:
        if rule.together != ALONE:
            message = "elastic cannot be charged together with other limits: write charge: each in the descriptor"
            self._report.add(at, message)
        place = self._report.place(at_pool)
        self._domain.pools.add_member(Membership(elastic["pool"], elastic.get("strict", False), place, rule))

    def _lease(
        self, block: YamlMap, options: Mapping[str, Any], algorithm: Algorithm, limit: Limit, together: int
    ) -> int:
        auto, share = self._load.leases
        most = most_leased(limit, share)
        why_not = why_not_leased(algorithm, limit, together)
        if "elastic" in options:
            why_not = Elastic.why_not_leased
        if limit.is_central:
            why_not = f"regions: {RegionMode.CENTRAL}: processes do not lease from what regions share"
        if options.get("lease") == "auto":
            if share and not (why_not or most):
                why_not = f"{share * 100:g} % of it, which a process may hold, is less than {LEAST}"
            if why_not:
                self._report.warn(block.fields["lease"].key, "lease", f"this limit does not lease: {why_not}")
        wanted = options.get("lease") or self._defaults.get("lease")
        return most if not why_not and (auto if wanted is None else wanted == "auto") else 0

    def _suffix_in_list(self, at: Positioned, algorithm: Algorithm, limit: Limit, before: Sequence[Rule]) -> Path:
        """The name of a limit in its list: its window, and its algorithm if an earlier limit has the same window.

        Of calendar windows the unit is enough, if no earlier limit has the same unit.
        """
        calendar = limit.calendar
        name = limit.window_label
        alike = [other for other in before if other.limit is not None and other.limit.window_label == name]
        if alike and not limit.kind.in_windows:
            self._report.add(at, f"{limit.kind.option} is given twice in rate_limits, first at {alike[0].place}")
        for other in alike if limit.kind.in_windows else ():
            if other.algorithm is algorithm and other.limit is not None and other.limit.same_windows(limit):
                window = limit.window_in_words
                message = f"a {algorithm.name} per {window} is given twice in rate_limits, first at {other.place}"
                self._report.add(at, message)
        if not alike:
            return (name,)
        return (f"{name}_{algorithm.name if calendar is None else f'{calendar.start}_{calendar.zone}'}",)

    def _read_replaces(self, items: Sequence[YamlMap], own: str) -> frozenset[str]:
        names = set()
        for item in items:
            name = read_options(item, MapType.REPLACES, self._report).get("name", "")
            if name and name == own:
                self._report.add(item.fields["name"].value, f"replaces {quoted(name)} is the name of this limit itself")
            names.add(name)
        return frozenset(names)


def _sharing_holders(
    blocks: Sequence[YamlMap], levels: tuple[Level, ...], defaults: Mapping[str, Any]
) -> tuple[Level, ...]:
    """The levels for the limits of these blocks: one whose values name requests shares a counter for all of them."""
    named = [block.fields["place"].value for block in blocks if given(block, "place")]
    own: list[Any] = [block.fields["reserve"].value for block in blocks if given(block, "reserve")]
    for reserve in own or [defaults.get("reserve")]:
        named += [reserve.fields["id"].value] if isinstance(reserve, YamlMap) and given(reserve, "id") else []
    keys = {node.text for node in named if isinstance(node, Scalar)}
    return tuple(
        level._replace(shared="*", by_value=False, counted_as=None) if level.key_only and level.name in keys else level
        for level in levels
    )


def _key_of(item: YamlMap) -> Positioned:
    return item.fields["key"].key if "key" in item.fields else item


def _has_holders(level: Level) -> bool:
    return level.key_only and level.shared is not None
