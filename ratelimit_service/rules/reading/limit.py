"""The map `rate_limit` of a descriptor, or one of `rate_limits` -> its algorithm and its limit."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ratelimit_service.algorithms import BUCKETS, PLACES, Algorithm, open_algorithm
from ratelimit_service.algorithms.kinds import Block, Places, Queue, Reserved, queue
from ratelimit_service.model import MAX_REQUESTS, PLAIN, Kind, Limit, Unit
from ratelimit_service.rules.problems import Positioned, Report, quoted
from ratelimit_service.rules.reading.calendar import read_calendar
from ratelimit_service.rules.syntax.document import Scalar, YamlMap
from ratelimit_service.rules.syntax.maps import given, limit_fields, missing, read_options
from ratelimit_service.rules.syntax.options import BY_MAP, LIMITING, OF_PLACES, WITHOUT_LIMIT, MapType
from ratelimit_service.rules.syntax.values import Excess
from ratelimit_service.rules.window import Window, largest_unit
from ratelimit_service.system.calendar import Calendar

_OPTIONS = BY_MAP[MapType.RATE_LIMIT]
_AT_MOST: Final = Excess(50, percent=True)
_NOT_RESERVED = ("queue", "elastic", "block_for")
"""Kinds of their own."""
_NOT_QUEUED = ("burst", "exceed", "count_refused", "block_for", "block_up_to")
"""Options of how much is allowed at once, or of what becomes of the refused: in a queue that is its length."""


def read_limit(
    block: YamlMap, at: Positioned, options: Mapping[str, Any], defaults: Mapping[str, Any], report: Report
) -> tuple[Algorithm, Limit | None]:
    """The algorithm and the limit of a `rate_limit` block; None if there is none, or it is malformed and reported."""
    if without := list(filter(options.get, WITHOUT_LIMIT)):
        first, *others = without
        for key in (*others, *(key for key in LIMITING if given(block, key))):
            verb = "means the same as" if key == "allow" else "contradicts"
            report.add(block.fields[key].key, f"{key} {verb} {first}: remove one of them")
    if without or any(key not in options and given(block, key) for key in WITHOUT_LIMIT):
        return open_algorithm("fixed_window"), None

    if given(block, "concurrency"):
        return open_algorithm(PLACES), _read_places(block, at, options, report)
    return _read_windowed(block, at, options, defaults, report)


def _read_windowed(
    block: YamlMap, at: Positioned, options: Mapping[str, Any], defaults: Mapping[str, Any], report: Report
) -> tuple[Algorithm, Limit | None]:
    """The algorithm and the limit of a block that counts in windows."""
    default = "sub_windows" if given(block, "elastic") else defaults.get("algorithm")
    name: str = options.get("algorithm") or default or "fixed_window"
    known_name = "algorithm" in options or not given(block, "algorithm")
    if known_name:
        _check_used(block, name, report)
    calendar: Calendar | None = None
    if given(block, "calendar"):
        calendar = read_calendar(block, options["calendar"], report) if "calendar" in options else None
        window = None if calendar is None else calendar.length
    else:
        window = _window_length(block, options, at, report)
    requests: int | None = options.get("requests_per_unit")
    if missing(block, "requests_per_unit", MapType.RATE_LIMIT):
        report.add(at, "rate_limit has no requests_per_unit; write requests_per_unit: 0 to block")
    algorithm = open_algorithm(name)
    form = next((form for key, form in KINDS.items() if key in (*options, *defaults) and _uses(key, name)), _PLAIN)
    kind = form.read(block, {**defaults, **options}, report)
    if window is None or requests is None or not known_name:
        return algorithm, None

    chosen = options
    if defaults:
        chosen = {key: value for key, value in {**defaults, **options}.items() if _uses(key, name)}
    if form.without and kind is not PLAIN:
        chosen = {key: value for key, value in chosen.items() if key not in form.without}
    if kind is not PLAIN:
        algorithm = form.algorithm or algorithm
        chosen = {**chosen, **form.fixed}
    fields = limit_fields(chosen)
    excess: Excess | None = chosen.get("exceed")
    limit = Limit(
        requests,
        # Responses to Envoy have the window as a multiple of the largest unit that divides it.
        largest_unit(window) or Unit.SECOND,
        window,
        first_request=chosen.get("anchor") == "first_request" and calendar is None,
        count_refused=chosen.get("count_refused", name == "fixed_window"),
        exceed=0 if excess is None else excess.of(requests),
        calendar=calendar,
        kind=kind,
        **{**fields, "burst": kind.burst_of(requests, window, fields.get("burst", 0))},
    )
    _check_blocks(block, chosen, at, report)
    _check_reserve(block, options, report)
    if limit.most > MAX_REQUESTS:
        report.add(at, f"the limit and exceed add up to more than {MAX_REQUESTS}")
    elif reason := algorithm.problem(limit):
        report.add(block.fields["algorithm"].key if "algorithm" in block.fields else at, f"{name}: {reason}")
    return algorithm, limit


def read_queue(block: YamlMap, fields: YamlMap, report: Report) -> int:
    """The longest delay of the queue; 0 if it is malformed, or contradicted by the block, which is reported."""
    for key in _NOT_QUEUED:
        if given(block, key):
            reason = "max_delay says how many it holds" if key == "burst" else "only one that waits too long is refused"
            report.add(block.fields[key].key, f"{key} contradicts queue, where {reason}: remove one of them")
    delay: int = read_options(fields, MapType.QUEUE, report).get("max_delay", 0)
    return delay


def _read_places(block: YamlMap, at: Positioned, options: Mapping[str, Any], report: Report) -> Limit | None:
    """The limit of a block with `concurrency`."""
    for key in LIMITING:
        if key not in OF_PLACES and given(block, key):
            message = f"{key} contradicts concurrency, which counts the requests under way: remove one of them"
            report.add(block.fields[key].key, message)
    if missing(block, "hold", MapType.RATE_LIMIT):
        after = "the time after which a place that nothing gave back is free"
        report.add(at, f"concurrency needs hold, {after}; write more than the longest request takes, such as hold: 60s")
    if missing(block, "place", MapType.RATE_LIMIT):
        named = "the key of the entry that names each request"
        report.add(at, f"concurrency needs place, {named}, such as place: request_id")
    if not {"concurrency", "hold", "place"} <= options.keys():
        return None
    return Limit(options["concurrency"], Unit.SECOND, options["hold"], count_refused=False, kind=Places())


class KindForm(NamedTuple):
    """A kind of limit, as options say it."""

    read: Callable[[YamlMap, Mapping[str, Any], Report], Kind]
    """The kind by the block and its options; PLAIN if they are malformed, which is reported."""
    without: Sequence[str] = ()
    """Options that such a limit cannot have: as defaults of the file they do not apply to it."""
    algorithm: Algorithm | None = None
    """What counts it, if it has an algorithm of its own."""
    fixed: Mapping[str, Any] = MappingProxyType({})
    """The values of other options that such a limit has."""


def _read_queued(block: YamlMap, options: Mapping[str, Any], report: Report) -> Kind:
    delay = read_queue(block, options["queue"], report)
    return Queue(delay, delay) if delay else PLAIN


def _read_block(_block: YamlMap, options: Mapping[str, Any], _report: Report) -> Kind:
    return Block(options["block_for"], options.get("block_up_to", 0))


def _read_reserved(block: YamlMap, options: Mapping[str, Any], report: Report) -> Kind:
    values = read_options(options["reserve"], MapType.RESERVE, report)
    requests, name = options.get("requests_per_unit"), options.get("algorithm") or "fixed_window"
    if not {"id", "hold"} <= values.keys() or requests is None:
        return PLAIN
    bucket = name in BUCKETS
    capacity = min(requests, (options.get("burst") or requests) if bucket else requests)
    estimate: int = values.get("estimate", 0)
    at_most: int = values.get("at_most", _AT_MOST).of(capacity)
    if estimate > capacity > 0:
        report.add(
            _place_of("estimate", block, options),
            f"estimate {estimate:,} is more than the limit has room for, {capacity:,}",
        )
    elif "at_most" in values and at_most < estimate <= capacity:
        report.add(
            _place_of("at_most", block, options), f"at_most, {at_most:,}, is less than the estimate, {estimate:,}"
        )
    return Reserved(values["hold"], estimate, max(1, estimate, at_most), bucket=bucket)


def _place_of(key: str, block: YamlMap, options: Mapping[str, Any]) -> Positioned:
    """The value in the `reserve` of this limit, or the limit to which that of defaults does not fit."""
    of = options["reserve"].fields[key] if given(block, "reserve") else block.fields["requests_per_unit"]
    value: Positioned = of.value
    return value


_PLAIN: Final = KindForm(lambda *_: PLAIN)

KINDS: Final = {
    "queue": KindForm(_read_queued, _NOT_QUEUED, queue),
    "block_for": KindForm(_read_block),
    "reserve": KindForm(_read_reserved, fixed=MappingProxyType({"count_refused": False})),
}
"""The forms of kinds, by the option that only this kind has."""


def _check_reserve(block: YamlMap, options: Mapping[str, Any], report: Report) -> None:
    if not given(block, "reserve"):
        return
    for key in _NOT_RESERVED:
        if given(block, key):
            report.add(block.fields[key].key, f"{key} contradicts reserve: remove one of them")
    if options.get("count_refused"):
        message = "count_refused contradicts reserve: a refused reservation would use up the window"
        report.add(block.fields["count_refused"].key, message)
    if options.get("lease") == "auto":
        report.add(block.fields["lease"].key, f"lease contradicts {Reserved.why_not_leased}")


def _check_blocks(block: YamlMap, options: Mapping[str, Any], at: Positioned, report: Report) -> None:
    place = next((block.fields[key].key for key in ("block_up_to", "block_for") if given(block, key)), at)
    first, longest = options.get("block_for", 0), options.get("block_up_to", 0)
    if not first:
        if given(block, "block_up_to") and not given(block, "block_for"):
            report.add(place, "block_up_to has no meaning without block_for")
    elif longest and longest < first:
        report.add(place, "block_up_to is shorter than block_for")


def _uses(key: str, algorithm: str) -> bool:
    option = _OPTIONS.get(key)
    return option is not None and algorithm in option.algorithms


def _check_used(block: YamlMap, algorithm: str, report: Report) -> None:
    for key in block.fields:
        if key in _OPTIONS and not _uses(key, algorithm) and given(block, key):
            able = _OPTIONS[key].algorithms
            only = "without concurrency" if able == (PLACES,) else f"for {algorithm}, only for {' and '.join(able)}"
            report.add(block.fields[key].key, f"{key} has no meaning {only}")


def _window_length(block: YamlMap, options: Mapping[str, Any], at: Positioned, report: Report) -> int | None:
    """The length of the window that `unit` and `unit_multiplier` give; None if malformed, which is reported."""
    window: Window | None = options.get("unit")
    multiplier: int | None = options.get("unit_multiplier")
    if all(missing(block, key, MapType.RATE_LIMIT) for key in ("unit", "calendar")):
        report.add(at, "rate_limit has no unit; write one, such as unit: minute, or unlimited: true")
    if window is None:
        return None
    if multiplier is not None:
        field = block.fields["unit_multiplier"]
        if window.times is not None:
            unit = block.fields["unit"].value
            text = unit.text if isinstance(unit, Scalar) else ""
            report.add(field.key, f"unit_multiplier contradicts unit {quoted(text)}: remove one of the numbers")
            return None
        window = Window(window.unit, multiplier)
        if window.problem:
            so_many = f"a window of so many {window.unit.name.lower()}s"
            report.add(field.value, f"unit_multiplier {multiplier}: {so_many} {window.problem}")
            return None
    return window.microseconds
