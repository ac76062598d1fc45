"""Warnings and notes about limits that regions share, for `check` and the log of a load."""

from collections.abc import Iterator
from typing import Final

from ratelimit_service.model import RegionMode
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.problems import LintWarning, quoted, warning_at
from ratelimit_service.rules.regions import needs_home
from ratelimit_service.rules.rule import Rule, plural
from ratelimit_service.system.clock import MINUTE, duration_in_words

_WAITING: Final = (RegionMode.CENTRAL, RegionMode.LEASED)
_FEW: Final = 50
"""Requests: a lease of so small a limit is a few of them, and most have to wait for the next one."""


def without_effect(book: RuleBook) -> LintWarning | None:
    """The warning that limits say how regions share them, and are not shared; at the first one."""
    # A limit of 0 is the same in all regions.
    limits = ((rule, rule.limit) for rule in book.rules if rule.regions and rule.limit is not None)
    found = [rule for rule, limit in limits if limit.requests and limit.regions is None]
    if not found:
        return None
    what = "this limit" if len(found) == 1 else f"this limit and {plural(len(found) - 1, 'other')}"
    needs = "it needs REGIONS with several names, and counters in Redis unless it is split"
    return warning_at(found[0].place, "regions", f"regions has no effect on {what}: {needs}")


def review_regions(rule: Rule) -> Iterator[LintWarning]:
    """Warnings about a limit that another mode would serve better."""
    limit, mode = rule.limit, rule.regions.partition(",")[0]
    if limit is None or not limit.requests:
        return
    if mode == RegionMode.LEASED and limit.requests < _FEW:
        message = f"a limit below {_FEW} has too little to lease: write regions: central"
        yield warning_at(rule.place, "regions", message)
    if mode == RegionMode.SYNCED and limit.window < MINUTE:
        message = (
            f"in windows of {duration_in_words(limit.window)} regions learn of each other too late, and together allow "
            "up to three times the limit: write regions: leased, or windows of a minute or more"
        )
        yield warning_at(rule.place, "regions", message)


def without_home(book: RuleBook) -> Iterator[LintWarning]:
    """The warning at the first limit that needs the home Redis, without one: serve refuses it."""
    for rule in book.rules:
        if rule.limit is not None and (regions := rule.limit.regions) and regions.mode is not RegionMode.SPLIT:
            yield warning_at(rule.place, "regions", needs_home(regions.mode))
            return


def region_notes(book: RuleBook) -> Iterator[LintWarning]:
    """Notes on what limits with `regions` need of the settings and of Envoy, which are not known here."""
    if (idle := without_effect(book)) is not None:
        yield idle
    for name in book.domains:
        waiting = (rule for rule in book.rules_in(name) if rule.regions.startswith(_WAITING))
        if (rule := next(waiting, None)) is not None:
            message = (
                f"requests of domain {quoted(name)} may wait for the home Redis: Envoy's filter needs a timeout longer "
                "than the way there and back, such as timeout: 0.5s, and has 20 ms by default"
            )
            yield warning_at(rule.place, "regions", message)
