"""The hottest descriptors of the last minutes as JSON: those with most hits, and those that were refused most."""

from collections.abc import Callable
from math import ceil
from typing import Any, Final

from ratelimit_service.rules.descriptor_name import read_descriptor_name
from ratelimit_service.server.series import CONTROL
from ratelimit_service.server.state import ServiceState
from ratelimit_service.system.clock import Clock, steady_clock
from ratelimit_service.telemetry.top_counts import RecentTop, TopCounts, TopDescriptor

MOST: Final = 20
"""The length of each of the two lists."""


class TopDescriptors:
    """The hottest descriptors of a service, of one process or of all workers."""

    def __init__(self, state: ServiceState, clock: Clock = steady_clock) -> None:
        self._state = state
        self._recent = RecentTop(clock)

    def look(self) -> None:
        """Add what was counted since the last look. Called every few seconds."""
        self._recent.add(self._state.counted.top.drain())

    def recent(self) -> tuple[TopCounts, float]:
        """The recent counts, and how many seconds ago that began."""
        self.look()
        return self._recent.counts(), self._recent.seconds

    def as_json(self, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
        """The hottest of the wanted names; what is not a list is of all of them."""
        counts, seconds = self.recent()
        return {
            "seconds": round(seconds),
            "hits": ceil(counts.hits),
            "refused": ceil(counts.refused.total),
            "error": ceil(counts.error),
            "refused_error": ceil(counts.refused.error),
            "skipped": counts.allowed.skipped + counts.refused.skipped,
            "most_hits": [_shown(hot) for hot in counts.most_hits(MOST, wanted)],
            "most_refused": [_shown(hot) for hot in counts.most_refused(MOST, wanted)],
        }


def of_rule(domain: str, path: str) -> Callable[[str], bool]:
    """Whether a name is of the rule with this path in the domain, `.` between its levels."""
    known: dict[str, bool] = {}

    def wanted(name: str) -> bool:
        levels, _, key = name.partition("||")
        prefix = f"{levels}||{key.partition('|')[0]}|"  # of few rules: each is read once
        if prefix not in known:
            read = read_descriptor_name(prefix)
            known[prefix] = ".".join(read.rule) == path and domain in {read.domain, read.rule_domain}
        return known[prefix]

    return wanted


def described(name: str) -> dict[str, Any]:
    """The parts of the name of a descriptor and its rule, as JSON."""
    read = read_descriptor_name(name)
    return {
        "domain": CONTROL.sub("_", read.domain),
        "rule": list(read.rule),
        "entries": [[CONTROL.sub("_", part) for part in entry] for entry in read.entries],
    }


def _shown(hot: TopDescriptor) -> dict[str, Any]:
    return {**described(hot.name), "hits": ceil(hot.hits), "refused": ceil(hot.refused)}
