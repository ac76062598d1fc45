"""The tallies of all rules summed up, under the names that upstream's statistics have.

Summing ten thousand of them takes long, so the sums are made by a generator, which yields where other work may run.
"""

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from operator import add, attrgetter
from typing import Final, NamedTuple, Protocol

from ratelimit_service.latency import Latency
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.store import StoreStatus
from ratelimit_service.tally import Path, Tallies, Tally, Totals

BLOCK = 100
"""Series worked on at a time: a tenth of a millisecond."""


class Counted(Protocol):
    """What a limiter has counted, or those of all workers together."""

    @property
    def book(self) -> RuleBook | None:
        """The rules, with their tallies."""

    @property
    def overrides(self) -> Tallies:
        """Of limits sent with requests."""

    @property
    def unknown_domains(self) -> Tallies:
        """Requests for domains without rules, counted in `total_hits`."""

    @property
    def totals(self) -> Totals:
        """Of the service as a whole."""

    @property
    def waits(self) -> Latency:
        """How long requests waited for the store."""

    @property
    def store(self) -> StoreStatus:
        """Where the counters are."""


class Stat(NamedTuple):
    """One number of a tally."""

    name: str
    meaning: str


STATS: Final = (
    Stat("total_hits", "Cost that was asked of the rule."),
    Stat("over_limit", "Cost above the limit."),
    Stat("over_limit_with_local_cache", "Cost above the limit, known without asking the store."),
    Stat("near_limit", "Cost within the limit and above NEAR_LIMIT_RATIO of it."),
    Stat("within_limit", "Cost of hits that fitted whole."),
    Stat("shadow_mode", "Cost above the limit of a rule in shadow mode, which let it pass."),
    Stat("exceeded", "Cost above the limit that exceed let through."),
    Stat("spared", "Cost not charged, because a limit that is charged together with this one refused."),
    Stat("unlimited", "Cost asked of a rule without a limit."),
    Stat("replaced", "Cost not charged, because another rule replaces this one."),
    Stat("total_negative_hits", "Cost given back."),
)
_numbers: Callable[[Tally], tuple[int, ...]] = attrgetter(*(stat.name for stat in STATS))


def take_tally(tally: Tally) -> tuple[int, ...] | None:
    """All that was counted, in the order of STATS, for another to add, or None; here it begins anew."""
    numbers = _numbers(tally)
    if not any(numbers):
        return None
    add_tally(tally, [-number for number in numbers])
    return numbers


def add_tally(tally: Tally, numbers: Sequence[int]) -> None:
    """Count what was taken from another."""
    for stat, number in zip(STATS, numbers, strict=True):
        if number:
            setattr(tally, stat.name, getattr(tally, stat.name) + number)


_LIMITED = frozenset({"total_hits", "over_limit", "near_limit", "within_limit"})

Sums = dict[str, tuple[tuple[int, ...], frozenset[str]]]
"""By what stands before the numbers: the numbers of all tallies there, and which of them are shown while they are 0."""


def sums(counted: Counted, write: Callable[[Path], str]) -> Generator[str, None, Sums]:
    """The numbers of all tallies by what `write` makes of their paths; two that come out alike are one series."""
    found: Sums = {}
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


def _tallies(counted: Counted) -> Iterator[tuple[Path, Tally, frozenset[str]]]:
    for rule in () if counted.book is None else counted.book.rules:
        shown = _shown(rule)
        if rule.tallies is None:
            yield rule.path, rule.tally, shown
        else:
            for path, tally in rule.tallies.items():
                yield path, tally, shown
    for path, tally in counted.overrides.items():
        yield path, tally, _LIMITED


def _shown(rule: Rule) -> frozenset[str]:
    """What is shown while it is 0: a counter that begins with its first hit hides that hit from `rate`."""
    shown = _LIMITED if rule.limit is not None else frozenset({"unlimited"})
    if rule.shadow:
        shown |= {"shadow_mode"}
    if rule.limit is not None and rule.limit.exceed:
        shown |= {"exceeded"}
    if rule.limit is not None and rule.together:
        shown |= {"spared"}
    if rule.name:
        shown |= {"replaced"}
    return shown


_IPV4 = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


def upstream_text(part: str) -> str:
    """A part of a path as upstream writes it: statsd has no `:` and no `|`, and in an IPv4 address no dots."""
    if ":" in part or "|" in part:
        part = part.replace(":", "_").replace("|", "_")
    if part.count(".") > 2:
        part = _IPV4.sub(lambda found: found[0].replace(".", "_"), part)
    return part


def plain(part: str) -> str:
    """The same, fit for a line of text."""
    return _CONTROL.sub("_", upstream_text(part))
