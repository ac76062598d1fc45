"""What stands in a `rate_limit` -> a limit and its algorithm, or what is wrong with it."""

from collections.abc import Mapping
from typing import Any

from ratelimit_service.algorithms import Algorithm, open_algorithm
from ratelimit_service.model import MAX_REQUESTS, Limit, Unit
from ratelimit_service.rules.block import given, missing
from ratelimit_service.rules.kinds import Excess, Span, window_problem
from ratelimit_service.rules.nodes import Fields
from ratelimit_service.rules.options import BY_BLOCK, Block
from ratelimit_service.rules.report import Placed, Report, quoted

_OPTIONS = BY_BLOCK[Block.RATE_LIMIT]
LIMITING = tuple(key for key in _OPTIONS if key not in ("unlimited", "name", "replaces"))
"""What says how much is allowed; an unlimited rule has none of it."""

_LARGEST_FIRST = sorted(((unit.window, unit) for unit in Unit), reverse=True)


def read_limit(
    block: Fields, at: Placed, options: Mapping[str, Any], defaults: Mapping[str, Any], report: Report
) -> tuple[Algorithm, Limit | None]:
    """The limit of a block with these options; None when it is unlimited or malformed, which the report then has."""
    unlimited = bool(options.get("unlimited"))
    if unlimited:
        for key in LIMITING:
            if given(block, key):
                report.add(block.fields[key].key, f"{key} contradicts unlimited: take one of them away")
        return open_algorithm("fixed_window"), None

    name: str = options.get("algorithm") or defaults.get("algorithm") or "fixed_window"
    known_name = "algorithm" in options or not given(block, "algorithm")
    if known_name:
        _check_meaning(block, name, report)
    window = _window(block, options, at, report)
    requests: int | None = options.get("requests_per_unit")
    if missing(block, "requests_per_unit", Block.RATE_LIMIT):
        report.add(at, "rate_limit has no requests_per_unit; write requests_per_unit: 0 to block")
    algorithm = open_algorithm(name)
    if window is None or requests is None or not known_name:
        return algorithm, None

    chosen = options
    if defaults:
        chosen = {key: value for key, value in {**defaults, **options}.items() if _means(key, name)}
    excess: Excess | None = chosen.get("exceed")
    limit = Limit(
        requests,
        # Envoy hears of the window as a multiple of the largest unit that divides it.
        next(unit for length, unit in _LARGEST_FIRST if window % length == 0),
        window,
        burst=chosen.get("burst", 0),
        parts=chosen.get("parts", _OPTIONS["parts"].default),
        first_request=chosen.get("anchor") == "first_request",
        count_refused=chosen.get("count_refused", name == "fixed_window"),
        exceed=0 if excess is None else excess.of(requests),
    )
    if (limit.burst or requests) + limit.exceed > MAX_REQUESTS:
        report.add(at, f"the limit and exceed come to more than {MAX_REQUESTS}")
    elif (problem := getattr(algorithm, "problem", None)) and (reason := problem(limit)):
        report.add(block.fields["algorithm"].key if "algorithm" in block.fields else at, f"{name}: {reason}")
    return algorithm, limit


def _means(key: str, algorithm: str) -> bool:
    option = _OPTIONS.get(key)
    return option is not None and algorithm in option.algorithms


def _check_meaning(block: Fields, algorithm: str, report: Report) -> None:
    for key in block.fields:
        if key in _OPTIONS and not _means(key, algorithm) and given(block, key):
            able = " and ".join(_OPTIONS[key].algorithms)
            report.add(block.fields[key].key, f"{key} has no meaning for {algorithm}, only for {able}")


def _window(block: Fields, options: Mapping[str, Any], at: Placed, report: Report) -> int | None:
    span: Span | None = options.get("unit")
    multiplier: int | None = options.get("unit_multiplier")
    if missing(block, "unit", Block.RATE_LIMIT):
        report.add(at, "rate_limit has no unit; write one, such as unit: minute, or unlimited: true")
    if span is None:
        return None
    times = 1 if span.times is None else span.times
    if multiplier is not None:
        field = block.fields["unit_multiplier"]
        if span.times is not None:
            text = getattr(block.fields["unit"].value, "text", "")
            report.add(field.key, f"unit_multiplier contradicts unit {quoted(text)}: take one of the numbers away")
            return None
        times = multiplier
        if problem := window_problem(span.unit, times):
            report.add(field.value, f"unit_multiplier {times}: a window of so many {span.unit.name.lower()}s {problem}")
            return None
    return times * span.unit.window
