"""Limits that lease: an instance may charge units of their hot counters in advance, and spend them without Redis."""

from dataclasses import replace
from typing import Final, NamedTuple

from ratelimit_service.algorithms import Algorithm
from ratelimit_service.algorithms.lease import leasing
from ratelimit_service.model import Limit, RegionMode
from ratelimit_service.rules.rule import ALONE, Rule
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import Backend, KeyFormat, LeaseMode
from ratelimit_service.system.clock import SECOND

LEAST: Final = 4
"""Units: below that, giving back what is left costs as many calls as leasing saves."""


class LeaseOptions(NamedTuple):
    """The operator's options of leases."""

    auto: bool = False
    """Limits lease if the rules do not say whether they do."""
    share: float = 0.05
    """Of a limit, the most that an instance holds; 0 if nothing leases."""


NO_LEASES: Final = LeaseOptions()
"""No limit leases unless its rule says so."""


def lease_options(settings: Settings) -> LeaseOptions:
    """The options of leases in the settings."""
    # In memory there is nothing to save, and on envoyproxy's counters its instances count too.
    able = settings.backend_type is Backend.REDIS and settings.key_format is KeyFormat.OWN
    return LeaseOptions(settings.leases is LeaseMode.AUTO, settings.lease_max_share if able else 0.0)


def most_leased(limit: Limit, share: float) -> int:
    """The most units of a counter that an instance holds; 0 for a limit that is too small."""
    most = int(min(limit.requests, limit.capacity) * share)
    return most if most >= LEAST else 0


_LEAST_TERM: Final = 5 * SECOND
"""Envoys report every five seconds: in shorter terms they would mostly wait."""


def why_no_quota(rule: Rule) -> str:
    """The reason why Envoys get no quotas of its limit (RLQS); empty if they do."""
    limit, algorithm = rule.limit, rule.algorithm
    if limit is None:
        return "it has no limit"
    why = why_not_leased(algorithm, limit, rule.together)
    if why:
        return why
    if limit.regions is not None and limit.regions.mode is not RegionMode.SPLIT:
        return "regions share it"
    found = leasing(algorithm)
    if found.leased_from is not None:
        return f"{algorithm.name} has no windows"
    if found.term(replace(limit, longest_term=limit.window)) < _LEAST_TERM:
        return "its windows, or their parts, are shorter than five seconds"
    return ""


def why_not_leased(algorithm: Algorithm, limit: Limit, together: int) -> str:
    """The reason why a limit does not lease, whatever the rules say; empty if it does."""
    if limit.kind.why_not_leased:
        return limit.kind.why_not_leased
    if not algorithm.leases:
        return f"{algorithm.name} keeps the moment of each request"
    if together != ALONE:
        return "limits that are charged together are decided in one step of Redis"
    if limit.first_request:
        return "its windows begin with a request"
    # A fixed window that is over its limit stays so until it ends, whatever is counted meanwhile.
    if limit.count_refused and algorithm.name != "fixed_window":
        return "count_refused: each refused request has to reach Redis"
    if limit.exceed:
        return "exceed: which requests are above the limit is known to Redis alone"
    return ""
