"""The tallies of all rules summed up, under the names that upstream's statistics have.

Summing ten thousand of them takes long, so the sums are made by a generator, which yields where other work may run.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from operator import add, attrgetter
from typing import Final, NamedTuple

from ratelimit_service.rules.rule import Rule, window_in_words
from ratelimit_service.server.state import Counted
from ratelimit_service.telemetry.metric import BLOCK, label_text
from ratelimit_service.telemetry.tally import (
    OUTCOMES,
    POLICY_ANSWERS,
    DomainTallies,
    DomainTally,
    Path,
    Tally,
)


class Stat(NamedTuple):
    """One number of a tally that is a metric of its own."""

    name: str
    help: str
    ours: bool = False
    """Upstream has no such counter, so its name in Prometheus ends as a counter's should."""


STATS: Final = (
    Stat("total_hits", "Cost that was asked of the rule."),
    Stat("over_limit", "Cost above the limit."),
    Stat("over_limit_with_local_cache", "Cost above the limit, known without asking the store."),
    Stat("near_limit", "Cost within the limit and above NEAR_LIMIT_RATIO of it."),
    Stat("within_limit", "Cost of hits that fitted whole."),
    Stat("shadow_mode", "Cost above the limit of a rule in shadow mode, which let it pass."),
    Stat("exceeded", "Cost above the limit that exceed let through.", ours=True),
    Stat("spared", "Cost not charged, because a limit that is charged together with this one refused.", ours=True),
    Stat("unlimited", "Cost asked of a rule without a limit.", ours=True),
    Stat("replaced", "Cost not charged, because another rule replaces this one.", ours=True),
    Stat("total_negative_hits", "Cost given back."),
)
NUMBERS: Final = (*(stat.name for stat in STATS), *(answer.number for answer in POLICY_ANSWERS))
"""Every number of a tally."""

_numbers: Callable[[Tally], tuple[int, ...]] = attrgetter(*NUMBERS)

DOMAIN_NUMBERS: Final = (*OUTCOMES, "unmatched")
"""Every number of a DomainTally."""

domain_numbers: Callable[[DomainTally], tuple[int, ...]] = attrgetter(*DOMAIN_NUMBERS)


def take_tally(tally: Tally) -> tuple[int, ...] | None:
    """All that was counted, in the order of NUMBERS, for another to add, or None; here it begins anew."""
    return _take(tally, NUMBERS, _numbers(tally))


def add_tally(tally: Tally, numbers: Sequence[int]) -> None:
    """Count what was taken from another."""
    _add(tally, NUMBERS, numbers)


def take_domain(tally: DomainTally) -> tuple[int, ...] | None:
    """As `take_tally`, in the order of DOMAIN_NUMBERS."""
    return _take(tally, DOMAIN_NUMBERS, domain_numbers(tally))


def add_domain(tally: DomainTally, numbers: Sequence[int]) -> None:
    """Count what was taken from another."""
    _add(tally, DOMAIN_NUMBERS, numbers)


def _take(tally: Tally | DomainTally, names: Sequence[str], numbers: tuple[int, ...]) -> tuple[int, ...] | None:
    if not any(numbers):
        return None
    _add(tally, names, [-number for number in numbers])
    return numbers


def _add(tally: Tally | DomainTally, names: Sequence[str], numbers: Sequence[int]) -> None:
    for name, number in zip(names, numbers, strict=True):
        if number:
            tally.add(name, number)


_LIMITED = frozenset({"total_hits", "over_limit", "near_limit", "within_limit"})

TallySums = dict[str, tuple[tuple[int, ...], frozenset[str]]]
"""By the text of a path: the numbers of all tallies there, and which of them are shown while they are 0."""

RuleTexts = dict[str, tuple[Rule, str]]
"""By the text of a path: the first rule there, and the labels that say what it is."""

DomainSums = dict[str, tuple[int, ...]]
"""By the text of a domain: the numbers of its tally."""


def sum_tallies(counted: Counted, write: Callable[[Path], str]) -> Generator[str, None, TallySums]:
    """The numbers of all tallies by what `write` makes of their paths; two that come out alike are one series.

    Yields nothing but empty texts, wherever other work may run; so do the two below.
    """
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
    """The rules by what `write` makes of the paths of their tallies."""
    found: RuleTexts = {}
    for rule in () if counted.book is None else counted.book.rules:
        limit = rule.limit
        text = label_text(
            (
                ("name", rule.name),
                ("place", "" if rule.place is None else f"{rule.place.path}:{rule.place.line}"),
                ("algorithm", "" if limit is None else rule.algorithm.name),
                ("window", "" if limit is None else window_in_words(limit)),
            )
        )
        for path, _ in tallies_of(rule):
            found.setdefault(write(path), (rule, text))
        if len(found) % BLOCK == 0:
            yield ""
    return found


def sum_domains(domains: DomainTallies, write: Callable[[str], str]) -> Generator[str, None, DomainSums]:
    """The numbers of all domains by what `write` makes of their names."""
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
    """The tally of a rule by its path; of a rule that counts values apart, each value's."""
    return ((rule.path, rule.tally),) if rule.tallies is None else rule.tallies.items()


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
CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029"  # control characters (U+009B is CSI, as ESC [ is), and ends of lines
    r"\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"  # invisible ones, and those that reverse text
    r"\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that no text from a request brings into a terminal, a page or a log."""


def upstream_text(part: str) -> str:
    """A part of a path as upstream writes it: statsd has no `:` and no `|`, and in an IPv4 address no dots."""
    if ":" in part or "|" in part:
        part = part.replace(":", "_").replace("|", "_")
    if part.count(".") > 2:
        part = _IPV4.sub(lambda found: found[0].replace(".", "_"), part)
    return part


def plain(part: str) -> str:
    """The same, fit for a line of text."""
    return CONTROL.sub("_", upstream_text(part))
