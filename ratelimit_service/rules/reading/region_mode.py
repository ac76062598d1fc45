"""The options `regions` and `floor` of a limit -> the limit as the regions of the deployment share it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ratelimit_service.algorithms import Algorithm
from ratelimit_service.model import Limit, RegionMode
from ratelimit_service.rules.problems import Report
from ratelimit_service.rules.regions import (
    RegionOptions,
    needs_home,
    shared,
    too_small,
    why_not_lent,
    why_not_shared,
    wrong_floor,
)
from ratelimit_service.rules.rule import ALONE
from ratelimit_service.rules.syntax.document import YamlMap
from ratelimit_service.rules.syntax.maps import given


class ReadRegions(NamedTuple):
    """The limit and the words that are read of them."""

    limit: Limit
    words: str
    """What is written, such as `leased, floor 10%`; empty if nothing is."""


def read_regions(
    block: YamlMap,
    options: Mapping[str, Any],
    counted: tuple[Algorithm, Limit, int],
    deployment: RegionOptions,
    report: Report,
) -> ReadRegions:
    """The limit of this block as the regions share it; what contradicts that is reported.

    `counted` has the algorithm, the limit as it is read so far, and the bundle that it is charged in.
    """
    algorithm, limit, together = counted
    written: str = options.get("regions", "")
    floor: int = options.get("floor", 0)
    if given(block, "floor") and written != RegionMode.LEASED:
        report.add(block.fields["floor"].key, "floor has no meaning without regions: leased")
        floor = 0
    if not written:
        return ReadRegions(limit, "")
    mode = RegionMode(written)
    at = block.fields["regions"].value
    words = f"{mode}, floor {floor}%" if floor else f"{mode}"
    number = deployment.number
    in_force = number > 1 and (mode is RegionMode.SPLIT or deployment.may_share)
    instead = [
        f"regions: {other}"
        for other in (RegionMode.CENTRAL, RegionMode.SPLIT)
        if other is not mode and not why_not_shared(other, algorithm, limit, together)
    ]
    if mode is not RegionMode.SPLIT and together != ALONE:
        instead.insert(0, "charge: each in the descriptor")
    fix = f"; write {' or '.join(instead)}" if instead else ""
    if "elastic" in options:
        message = "regions contradicts elastic, whose pool each region has for itself: remove one of them"
        report.add(at, message)
    elif why := why_not_shared(mode, algorithm, limit, together):
        report.add(at, f"regions: {mode} is impossible: {why}{fix}")
    elif number > 1 and (small := too_small(limit, mode, number)):
        field = block.fields.get(small)
        message = f"{small} is less than 1 for each of the {number} regions: write {number} or more"
        report.add(at if field is None else field.value, message)
    elif floor and (wrong := wrong_floor(limit, floor, max(2, number))):
        report.add(block.fields["floor"].value, wrong)
    elif mode is RegionMode.LEASED and limit.requests and (why := why_not_lent(algorithm, limit)):
        report.add(at, f"regions: {mode} is impossible: {why}{fix}")
    elif in_force and mode is not RegionMode.SPLIT and not deployment.has_home:
        report.add(at, needs_home(mode))
    elif in_force and limit.requests:
        limit = shared(limit, mode, deployment, floor)
    return ReadRegions(limit, words)
