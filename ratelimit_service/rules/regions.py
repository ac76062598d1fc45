"""Shares a limit between regions: what each of them gets, and what cannot be shared."""

from dataclasses import replace
from typing import Final, NamedTuple

from ratelimit_service.algorithms import Algorithm
from ratelimit_service.algorithms.kinds import Synced, leased
from ratelimit_service.model import Limit, RegionMode, Regions
from ratelimit_service.rules.leasing import why_not_leased
from ratelimit_service.rules.rule import ALONE, Rule, amount_in_words
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import Backend


class RegionOptions(NamedTuple):
    """The operator's options of regions."""

    number: int = 1
    place: int = 0
    """Of this region among them, from 0."""
    may_share: bool = True
    """Counters are where regions can share them; False in memory."""
    has_home: bool = True
    """There is a home Redis."""


ONE_REGION: Final = RegionOptions()
"""No limit is shared, whatever the rules say."""


def region_options(settings: Settings) -> RegionOptions:
    """The options of regions in the settings."""
    may_share = settings.backend_type is Backend.REDIS
    return regions_of(settings)._replace(may_share=may_share, has_home=settings.home_redis is not None)


def regions_of(settings: Settings) -> RegionOptions:
    """The same of the regions alone: as if there were a home Redis, wherever counters are."""
    regions = settings.regions
    return RegionOptions(len(regions), regions.index(settings.region)) if regions else ONE_REGION


def why_not_shared(mode: RegionMode, algorithm: Algorithm, limit: Limit, together: int) -> str:
    """The reason why regions cannot share such a limit in this way, whatever its numbers are; empty if they can."""
    if mode is RegionMode.SPLIT:
        return ""
    if mode is RegionMode.CENTRAL and limit.kind.may_be_central:
        return "" if together == ALONE else "limits that are charged together are decided in one step of one Redis"
    if mode is RegionMode.SYNCED and algorithm.name != "fixed_window":
        return f"{algorithm.name} has no windows that all regions begin together, as fixed_window has"
    return why_not_leased(algorithm, limit, together)


def why_not_lent(algorithm: Algorithm, limit: Limit) -> str:
    """The reason why such a limit cannot be granted, if `why_not_shared` says nothing; empty if it can."""
    return leased.problem(algorithm, leased.member(limit, 2, 0)) or ""


def too_small(limit: Limit, mode: RegionMode, number: int) -> str:
    """The option whose number is too small for so many regions; empty if none is."""
    if mode in (RegionMode.SPLIT, RegionMode.LEASED):
        if 0 < limit.requests < number:
            return limit.kind.option
        if limit.burst and not limit.kind.burst_of(limit.requests // number, limit.window, limit.burst // number):
            return "burst"
    return ""


def wrong_floor(limit: Limit, floor: int, number: int) -> str:
    """The problem with a floor of so many percent for each region; empty if there is none."""
    if floor * number >= 100:
        most = f"write {99 // number}% or less" if number < 100 else "take floor away"
        return f"floor: {number} regions keep {floor * number}% of the limit, and nothing is left to lease; {most}"
    least = min(limit.requests, limit.capacity)
    if least * floor < 100:
        return f"floor: {floor}% of {least:,} is less than 1; write {-(-100 // max(1, least))}% or more, or remove it"
    return ""


def needs_home(mode: RegionMode) -> str:
    """The problem with a limit that is shared so, where there is no home Redis."""
    return f"regions: {mode} needs the Redis that all regions share: set HOME_REDIS_URL"


def part_of(whole: int, options: RegionOptions) -> int:
    """The part of this region; the parts of all regions sum to the whole."""
    return whole // options.number + (options.place < whole % options.number)


def shared(limit: Limit, mode: RegionMode, options: RegionOptions, floor: int = 0) -> Limit:
    """The limit as the regions share it; `floor` is a percentage."""
    if mode is RegionMode.LEASED:
        return leased.member(limit, options.number, floor)
    regions = Regions(mode, options.number, limit.requests)
    if mode is not RegionMode.SPLIT:
        return replace(limit, regions=regions, kind=Synced() if mode is RegionMode.SYNCED else limit.kind)

    def part(whole: int) -> int:
        return part_of(whole, options)

    requests, burst, exceed = map(part, (limit.requests, limit.burst, limit.exceed))
    burst = limit.kind.burst_of(requests, limit.window, burst)
    share = replace(limit, requests=requests, burst=burst, exceed=exceed, regions=regions)
    return replace(share, kind=limit.kind.share(share, part, part))


def worst_case(rule: Rule) -> tuple[str, ...]:
    """Sentences on what the regions allow together at most, which hits wait, and what a region does that is cut off."""
    limit = rule.limit
    if limit is None or not rule.regions:
        return ()
    if (regions := limit.regions) is None:
        return ("It has no effect here: each region counts by itself, as if there were no others.",)
    exact = f"All {regions.number} regions together never allow more than one limit of {regions.whole:,} does."
    none_wait = "No hit waits for another region."
    policy = f"on_store_failure answers{f': {rule.on_store_failure}' if rule.on_store_failure else ''}"
    match regions.mode:
        case RegionMode.SPLIT:
            alone = "What one region leaves idle is not used by the others. When it is cut off, nothing changes."
            return (exact, none_wait, alone)
        case RegionMode.CENTRAL:
            waits = "Every hit waits for the home Redis: the way there and back."
            return (exact, waits, f"When this region is cut off from home, {policy}.")
        case RegionMode.LEASED:
            waits = (
                "A hit waits for the home Redis, the way there and back, when nothing is left of this region's lease"
            )
            keeps = policy
            if limit.floor is not None:
                waits += " and of its floor"
                keeps = f"its floor, {amount_in_words(limit.floor)}, and denies the rest"
            return (exact, f"{waits}.", f"When this region is cut off from home, it spends its lease, then {keeps}.")
        case RegionMode.SYNCED:
            above = (regions.number - 1) * regions.whole
            flooded = (
                f"All {regions.number} regions together may allow {above:,} above {regions.whole:,} if flooded at once"
            )
            excess = "of a steady excess, what comes in twice REGION_SYNC_SECONDS and the ways to home"
            alone = "When this region is cut off from home, it goes on with what it knows of the others."
            return (f"{flooded}; {excess}.", none_wait, alone)
