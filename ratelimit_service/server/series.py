"""Sums of the tallies of all rules and domains, by path, under the names of envoyproxy's statistics.

Ten thousand tallies take long, so sums are made by generators, which yield an empty text wherever other work may run.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from operator import add, attrgetter
from typing import Any, Final, NamedTuple

from ratelimit_service.rules.book import ANY_DOMAIN
from ratelimit_service.rules.rule import Rule, gauge_names
from ratelimit_service.server.state import Counted
from ratelimit_service.telemetry.gauges import NO_GAUGES, Gauges
from ratelimit_service.telemetry.metric import BLOCK, label_text
from ratelimit_service.telemetry.reservations import NO_RESERVATIONS, Reservations
from ratelimit_service.telemetry.tally import (
    OUTCOMES,
    POLICY_ANSWERS,
    DomainTallies,
    DomainTally,
    Path,
    Tally,
)


class Stat(NamedTuple):
    """One number of a tally, which is a metric of its own."""

    name: str
    help: str
    ours: bool = False
    """envoyproxy/ratelimit has no such counter, so the metric's name ends in `_total`, as a counter's should."""


STATS: Final = (
    Stat(
        "total_hits",
        "Cost of hits on the rule, without refunds, replaced hits and hits that the failure policy answered.",
    ),
    Stat("over_limit", "Cost above the limit, including what shadow mode let pass."),
    Stat("over_limit_with_local_cache", "The part of over_limit that was denied locally, without asking the store."),
    Stat("near_limit", "Cost above NEAR_LIMIT_RATIO of the limit and within the limit."),
    Stat("within_limit", "Cost of allowed hits, without the part above the limit."),
    Stat("shadow_mode", "Cost that a rule in shadow mode would have refused: the part of over_limit that it let pass."),
    Stat("blocked", "The part of over_limit that a block (block_for) denied, or that began one.", ours=True),
    Stat("exceeded", "Cost above the limit that the rule's exceed option allowed, or its pool lent.", ours=True),
    Stat(
        "spared",
        "Cost not charged because another limit, charged together with this one, denied the hit, or was charged in its "
        "place.",
        ours=True,
    ),
    Stat(
        "denied_below_limit",
        "Cost below the limit of denied hits that crossed it, including what shadow mode let pass.",
        ours=True,
    ),
    Stat(
        "shadow_below_limit",
        "The part of denied_below_limit that a rule in shadow mode let pass.",
        ours=True,
    ),
    Stat("unlimited", "Total cost of all hits on a rule without a limit.", ours=True),
    Stat("replaced", "Cost not charged because another rule of the request replaces this one.", ours=True),
    Stat("total_negative_hits", "Cost refunded (is_negative_hits)."),
    Stat("settled", "Cost charged in full, because it had come about (settle).", ours=True),
    Stat("overrun", "The part of settled that is above the limit, or above what was reserved.", ours=True),
    Stat(
        "charges_dropped",
        "Cost of denied hits that was not charged, of a rule that lets looks pass: callers that look and charge are "
        "never limited.",
        ours=True,
    ),
    Stat("settles_dropped", "Cost that had come about and was not charged, because the store was away.", ours=True),
    Stat(
        "places_expired",
        "Places that were free after hold because nothing gave them back, as far as a later request found them.",
        ours=True,
    ),
)
NUMBERS: Final = (*(stat.name for stat in STATS), *(answer.number for answer in POLICY_ANSWERS))
"""Every number of a tally."""

_numbers: Callable[[Tally], tuple[int, ...]] = attrgetter(*NUMBERS)

DOMAIN_NUMBERS: Final = (*OUTCOMES, "unmatched", "no_address", "banned", "too_long")
"""Every number of a DomainTally."""

domain_numbers: Callable[[DomainTally], tuple[int, ...]] = attrgetter(*DOMAIN_NUMBERS)


def drain_tally(tally: Tally) -> tuple[int, ...] | None:
    """Return the numbers, in the order of NUMBERS, for `add_tally` elsewhere, and reset them; None if all are 0."""
    return _drain(tally, NUMBERS, _numbers(tally))


def add_tally(tally: Tally, numbers: Sequence[int]) -> None:
    """Add the numbers that `drain_tally` returned."""
    _add(tally, NUMBERS, numbers)


def drain_domain(tally: DomainTally) -> tuple[int, ...] | None:
    """As `drain_tally`, in the order of DOMAIN_NUMBERS."""
    return _drain(tally, DOMAIN_NUMBERS, domain_numbers(tally))


def add_domain(tally: DomainTally, numbers: Sequence[int]) -> None:
    """Add the numbers that `drain_domain` returned."""
    _add(tally, DOMAIN_NUMBERS, numbers)


def _drain(tally: Tally | DomainTally, names: Sequence[str], numbers: tuple[int, ...]) -> tuple[int, ...] | None:
    if not any(numbers):
        return None
    _add(tally, names, [-number for number in numbers])
    return numbers


def _add(tally: Tally | DomainTally, names: Sequence[str], numbers: Sequence[int]) -> None:
    for name, number in zip(names, numbers, strict=True):
        if number:
            tally.add(name, number)


_LIMITED = frozenset({"total_hits", "over_limit", "near_limit", "within_limit"})
_DENIED = frozenset({"total_hits", "over_limit"})

TallySums = dict[str, tuple[tuple[int, ...], frozenset[str]]]
"""For the text of each path: the sum of its tallies, and the names of the numbers that are shown while they are 0."""

RuleTexts = dict[str, tuple[Rule, str]]
"""For the text of each path: its first rule, and the labels that describe that rule."""

GaugesByText = dict[str, tuple[Gauges, frozenset[str]]]
"""For the text of each path: the gauges of its rules, and the names of those that are shown."""

ReservationsByText = dict[str, tuple[Reservations, int]]
"""For the text of each path: what became of the reservations of its rules, and the estimate of the first."""

DomainSums = dict[str, tuple[int, ...]]
"""For the text of each domain: the sum of its tallies."""


def sum_tallies(counted: Counted, write: Callable[[Path], str]) -> Generator[str, None, TallySums]:
    """Sum the tallies of all rules and overrides; `write` makes a path's text, and paths of one text are one series."""
    found: TallySums = {}
    for count, (path, tally, shown) in enumerate(_tallies(counted)):
        if count % BLOCK == 0:
            yield ""
        key = write(path)
        numbers = _numbers(tally)
        already = found.get(key)
        if already is not None:
            found[key] = tuple(map(add, numbers, already[0])), shown | already[1]
        else:
            found[key] = numbers, shown
    return found


def describe_rules(counted: Counted, write: Callable[[Path], str]) -> Generator[str, None, RuleTexts]:
    """Describe all rules, by the paths of their tallies."""
    found: RuleTexts = {}
    for rule in () if counted.book is None else counted.book.rules:
        limit = rule.limit
        text = label_text(
            (
                ("name", rule.name),
                ("place", "" if rule.place is None else rule.place.short),
                ("algorithm", "" if limit is None else rule.algorithm.name),
                ("window", "" if limit is None else limit.window_in_words),
                ("counter", "shared" if limit is not None and _has_one_counter(rule) else ""),
                ("shadow", "true" if rule.shadow else ""),
            )
        )
        for path, _ in tallies_of(rule):
            found.setdefault(write(path), (rule, text))
            if len(found) % BLOCK == 0:
                yield ""
    return found


def _has_one_counter(rule: Rule) -> bool:
    """Whether all callers share its counter: no level of it counts values apart."""
    apart = any(level.several and level.shared is None for level in rule.levels)
    return not apart and rule.domain != ANY_DOMAIN


def emptied(found: dict[Any, Any]) -> Iterator[str]:
    """Empty it; at once that would take ten milliseconds for what so many tallies are summed in."""
    while found:
        for _ in range(min(BLOCK, len(found))):
            found.popitem()
        yield ""


def merge_gauges(counted: Counted, write: Callable[[Path], str]) -> Generator[str, None, GaugesByText]:
    """Merge the gauges of rules by their paths. Queues and places have them always, leases while something is held."""
    found: GaugesByText = {}
    gauges, book = counted.gauges, counted.book
    for count, rule in enumerate(() if book is None else book.rules if gauges else book.measured):
        if count % BLOCK == 0:
            yield ""
        names, of_rule = gauge_names(rule), gauges.get(rule.tally, NO_GAUGES)
        if names and (of_rule is not NO_GAUGES or not rule.lease):
            key = write(rule.path)
            others, shown = found.get(key, (NO_GAUGES, frozenset()))
            found[key] = of_rule.merge(others), shown.union(names)
    return found


def merge_reservations(counted: Counted, write: Callable[[Path], str]) -> Generator[str, None, ReservationsByText]:
    """Merge the reservations of rules by their paths; of those that reserve, from the start."""
    found: ReservationsByText = {}
    for count, rule in enumerate(() if counted.book is None else counted.book.reserving):
        if count % BLOCK == 0:
            yield ""
        key, estimate = write(rule.path), 0 if rule.limit is None else rule.limit.kind.estimate
        others, first = found.get(key, (NO_RESERVATIONS, estimate))
        found[key] = rule.reservations.merge(others), first
    return found


def sum_domains(domains: DomainTallies, write: Callable[[str], str]) -> Generator[str, None, DomainSums]:
    """Sum the tallies of all domains; `write` makes a domain's text."""
    found: DomainSums = {}
    for count, (domain, tally) in enumerate(domains.items()):
        if count % BLOCK == 0:
            yield ""
        key, numbers = write(plain(domain)), domain_numbers(tally)
        found[key] = tuple(map(add, numbers, found[key])) if key in found else numbers
    return found


def _tallies(counted: Counted) -> Iterator[tuple[Path, Tally, frozenset[str]]]:
    for rule in () if counted.book is None else counted.book.rules:
        shown = _shown(rule)
        for path, tally in tallies_of(rule):
            yield path, tally, shown
    for path, tally in counted.overrides.items():
        yield path, tally, _LIMITED


def tallies_of(rule: Rule) -> Iterable[tuple[Path, Tally]]:
    """The tally of a rule with its path; of a rule that counts values apart, one for each value."""
    return ((rule.path, rule.tally),) if rule.tallies is None else rule.tallies.items()


def _shown(rule: Rule) -> frozenset[str]:
    """The names of the rule's numbers that are shown while they are 0."""
    # Prometheus's rate() does not see the first hit of a counter that appears with that hit.
    shown = _LIMITED if rule.limit is not None else _DENIED if rule.deny else frozenset({"unlimited"})
    if rule.shadow:
        shown |= {"shadow_mode"}
    if rule.limit is not None:
        shown = shown.union(rule.limit.tallied)
    if rule.limit is not None and rule.together:
        shown |= {"spared"}
    if rule.name:
        shown |= {"replaced"}
    return shown


_IPV4 = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}")
CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029"  # control characters (U+009B is CSI, as ESC [ is), and ends of lines
    r"\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"  # invisible ones, and those that reverse text
    r"\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that are removed from a request's text before it is written to a terminal, a page or a log."""


def envoyproxy_text(part: str) -> str:
    """A part of a path as envoyproxy writes it for statsd: `_` for `:`, `|`, and the dots of an IPv4 address."""
    if ":" in part or "|" in part:
        part = part.replace(":", "_").replace("|", "_")
    if part.count(".") > 2:
        part = _IPV4.sub(lambda found: found[0].replace(".", "_"), part)
    return part


def plain(part: str) -> str:
    """A part of a path as envoyproxy writes it, and without control characters."""
    return CONTROL.sub("_", envoyproxy_text(part))
