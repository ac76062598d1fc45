"""The table of `ratelimit top`: rates of rules between two samples of a service, and refused descriptors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ratelimit_service.commands.terminal import RED
from ratelimit_service.errors import StoreError
from ratelimit_service.rules.problems import printable
from ratelimit_service.rules.rule import entries_in_words, plural
from ratelimit_service.system.clock import SECOND, duration_in_words
from ratelimit_service.telemetry.gauges import NO_GAUGES, Gauges
from ratelimit_service.telemetry.reservations import NO_RESERVATIONS, Reservations

ORDERS: Final = ("refused", "hits", "name")
_MAX_UNREACHABLE: Final = 5
"""Lines about instances that cannot be reached."""
_NUMBER: Final = 10
"""Columns of a rate."""
_LIMIT: Final = 24
"""Columns of a limit; a terminal of less than `_WIDE` columns shows none."""
_WIDE: Final = 72
_GAUGES: Final = 16
"""Columns of what is held, waits or is taken of a rule, where some rule has that; from `_WIDER` columns on."""
_WIDER: Final = 100
_RESERVED_HEADS: Final = ("reserved", "unsettled", "overran", "p50", "p95", "estimate")
_MAX_RESERVED: Final = 5
"""Lines of rules that reserve, on a terminal of at least `_TALL` lines."""
_TALL: Final = 20
_MAX_RULES: Final = 500
"""Lines of a table, on the largest of terminals."""


class Name(NamedTuple):
    """A rule, or a descriptor that is refused, the same on every instance."""

    domain: str
    text: str
    """The path of the rule, or the entries."""


class HitCounts(NamedTuple):
    """The counts of a rule or a descriptor, as cost: since the service started, lately, or per second."""

    hits: float
    refused: float
    """With what its policy answered."""


class TopKeys(NamedTuple):
    """The descriptors that were refused most lately, with their cost."""

    seconds: float
    error: float
    """By how much `refused` may be too high."""
    hits_error: float
    """By how much `hits` may be."""
    estimated: bool
    """Not every hit was looked at."""
    keys: Mapping[Name, HitCounts]
    """Not per second."""


class ReservedUnits(NamedTuple):
    """What became of a rule's reservations, and its estimate."""

    found: Reservations
    estimate: int


class Sample(NamedTuple):
    """The counts that a service sent, and when: a time of its clock, in seconds."""

    at: float
    started: float
    """Of the service, in seconds since the epoch: counts of another start are not compared."""
    calls: int
    rules: Mapping[Name, HitCounts]
    limits: Mapping[Name, str]
    gauges: Mapping[Name, Gauges]
    """Of the rules that have some."""
    reserved: Mapping[Name, ReservedUnits]
    """Of the rules that reserve."""
    hot: TopKeys


class Rates(NamedTuple):
    """Calls and rules per second, and what is refused, of one instance or several."""

    calls: float
    rules: Mapping[Name, HitCounts]
    limits: Mapping[Name, str]
    gauges: Mapping[Name, Gauges]
    reserved: Mapping[Name, ReservedUnits]
    hot: TopKeys


@dataclass
class View:
    """The state of all instances: rates by URL, or why there are none."""

    rates: dict[str, Rates]
    unreachable: dict[str, str]
    urls: Sequence[str]
    order: str = "refused"


def read_sample(now: Mapping[str, Any], described: Mapping[str, Any]) -> Sample:
    """The sample in the JSON of `/status/now` and `/status/rules`; StoreError if that is of another version."""
    try:
        columns = now["columns"]
        hits = [columns.index(name) for name in ("total", "policy_allowed", "policy_refused", "failed")]
        over, shadow, refused = map(columns.index, ("over", "shadow", "policy_refused"))
        own = [(name, columns.index(name)) for name in Gauges._fields if name in columns]
        of_reserved = [(name, columns.index(name)) for name in Reservations._fields if name in columns]
        rules, limits, gauges, reserved = {}, {}, {}, {}
        for rule, counts in zip(described["rules"], now["counts"], strict=True):
            name = Name(rule["domain"], " › ".join(rule["path"]))
            numbers = counts or [0] * len(columns)
            all_hits = sum(numbers[index] for index in hits)
            rules[name] = HitCounts(all_hits, max(0, numbers[over] - numbers[shadow]) + numbers[refused])
            limits[name] = rule["limit"]
            if any(numbers[index] for _, index in own):
                gauges[name] = Gauges(**{each: numbers[index] for each, index in own})
            if any(numbers[index] for _, index in of_reserved):
                found = Reservations(**{each: numbers[index] for each, index in of_reserved})
                reserved[name] = ReservedUnits(found, rule.get("estimate", 0))
        calls = now["calls"]["total"]
        return Sample(now["now"], now["started"], calls, rules, limits, gauges, reserved, _read_top(now["hot"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"unsupported /status/now (version mismatch): {error}") from error


def _read_top(hot: Mapping[str, Any]) -> TopKeys:
    keys = dict[Name, HitCounts]()
    for key in hot["most_refused"]:  # of several limits on a descriptor each may refuse it
        name = Name(key["domain"], entries_in_words(key["entries"]))
        _add(keys, name, HitCounts(key["hits"], key["refused"]))
    return TopKeys(hot["seconds"], hot["refused_error"], hot["error"], hot["skipped"] > 0, keys)


def _add(sums: dict[Name, HitCounts], name: Name, counts: HitCounts) -> None:
    old = sums.get(name, HitCounts(0, 0))
    sums[name] = HitCounts(old.hits + counts.hits, old.refused + counts.refused)


def rates_between(before: Sample, now: Sample) -> Rates:
    """The rates from one sample to a later one. After a restart, or for a rule that is new, everything is new."""
    seconds = now.at - before.at
    same = before.started == now.started
    rules = {}
    for name, counts in now.rules.items():
        old = before.rules.get(name, HitCounts(0, 0)) if same else HitCounts(0, 0)
        rules[name] = HitCounts(*(max(0.0, new - was) / seconds for new, was in zip(counts, old, strict=True)))
    calls = now.calls - (before.calls if same else 0)
    return Rates(max(0, calls) / seconds, rules, now.limits, now.gauges, now.reserved, now.hot)


def summed(found: Iterable[Rates]) -> Rates:
    """The rates of several instances together."""
    calls, rules, limits = 0.0, dict[Name, HitCounts](), dict[Name, str]()
    gauges, reserved = dict[Name, Gauges](), dict[Name, ReservedUnits]()
    hot = TopKeys(0, 0, 0, False, {})
    keys = dict[Name, HitCounts]()
    for rates in found:
        calls += rates.calls
        limits |= rates.limits
        for name, counts in rates.rules.items():
            _add(rules, name, counts)
        for name, own in rates.gauges.items():
            gauges[name] = own.merge(gauges.get(name, NO_GAUGES))
        for name, (found_here, estimate) in rates.reserved.items():
            others = reserved[name].found if name in reserved else NO_RESERVATIONS
            reserved[name] = ReservedUnits(found_here.merge(others), estimate)
        other = rates.hot
        hot = TopKeys(
            max(hot.seconds, other.seconds),
            hot.error + other.error,
            hot.hits_error + other.hits_error,
            hot.estimated or other.estimated,
            keys,
        )
        for key, counts in other.keys.items():
            _add(keys, key, counts)
    return Rates(calls, rules, limits, gauges, reserved, hot)


def first(found: Mapping[Name, HitCounts], order: str, most: int) -> list[tuple[Name, HitCounts]]:
    """The first rules or descriptors in this order, equal ones by name."""
    keys = {
        "refused": lambda item: (-item[1].refused, -item[1].hits, item[0]),
        "hits": lambda item: (-item[1].hits, -item[1].refused, item[0]),
        "name": lambda item: item[0],
    }
    return sorted(found.items(), key=keys[order])[:most]


def as_json(view: View, most: int) -> dict[str, Any]:
    """The rates per second as JSON, the first `most` rules."""
    rates = summed(view.rates.values())
    return {
        "instances": len(view.rates),
        "unreachable": [{"url": url, "why": why} for url, why in view.unreachable.items()],
        "calls_per_second": round(rates.calls, 3),
        "rules": [
            {
                "domain": name.domain,
                "rule": name.text,
                "limit": rates.limits[name],
                "hits_per_second": round(counts.hits, 3),
                "refused_per_second": round(counts.refused, 3),
                "gauges": rates.gauges.get(name, NO_GAUGES)._asdict(),
                "reservations": None if name not in rates.reserved else rates.reserved[name].found._asdict(),
            }
            for name, counts in first(rates.rules, view.order, most)
        ],
        "refused": {
            "seconds": rates.hot.seconds,
            "error": rates.hot.error,
            "hits_error": rates.hot.hits_error,
            "estimated": rates.hot.estimated,
            "descriptors": [
                {"domain": name.domain, "entries": name.text, "hits": counts.hits, "refused": counts.refused}
                for name, counts in first(rates.hot.keys, "refused", most)
            ],
        },
    }


def render(view: View, columns: int, lines: int, *, rules: int = _MAX_RULES, keys: int = 0) -> list[str]:
    """At most so many lines of at most so many columns, of so many rules, and last of so many refused descriptors."""
    rates = summed(view.rates.values())
    refused = list(_render_keys(rates.hot, columns, keys)) if keys else []
    reserved = list(_render_reserved(rates.reserved, columns)) if lines >= _TALL else []
    rest = lines - len(reserved) - len(refused)
    return [*list(_render(view, rates, columns, rules))[:rest], *reserved, *refused]


def _render_reserved(reserved: Mapping[Name, ReservedUnits], columns: int) -> Iterator[str]:
    """Lines of the rules of which most is reserved."""
    if not reserved:
        return
    yield _cut("".join(f"{head:>{_NUMBER}}" for head in _RESERVED_HEADS) + "  rule", columns)
    most = sorted(reserved.items(), key=lambda item: (-item[1].found.reservations_open_units, item[0]))
    for name, (found, estimate) in most[:_MAX_RESERVED]:
        numbers = (
            f"{found.reservations_open_units:,}",
            _share(found.reservations_unsettled_units, found.reservations_due_units),
            _share(found.overran_lately, found.settled_lately),
            *(f"{number:,}" if number else "" for number in (found.settled_p50, found.settled_p95, estimate)),
        )
        cells = "".join(f"{_cut(number, _NUMBER - 1):>{_NUMBER}}" for number in numbers)
        yield _cut(f"{cells}  {printable(f'{name.domain} › {name.text}')}", columns)


def _share(part: int, whole: int) -> str:
    return f"{100 * max(0, part) / whole:.0f} %" if whole > 0 else ""


def _render_keys(hot: TopKeys, columns: int, most: int) -> Iterator[str]:
    if not hot.keys:
        return
    last = duration_in_words(round(hot.seconds) * SECOND)
    yield _cut(f"{'refused':>{_NUMBER}}{'hits':>{_NUMBER}}  descriptor, in the last {last}, {_exactness(hot)}", columns)
    for name, counts in first(hot.keys, "refused", most):
        rest = f"{counts.hits:>{_NUMBER},}  {printable(f'{name.domain} {name.text}')}"
        yield _row(f"{counts.refused:>{_NUMBER},}", rest, columns, red=True)


def _exactness(hot: TopKeys) -> str:
    """`exact`, or how far the numbers may be off."""
    if hot.estimated:
        return "estimated"
    if not hot.error and not hot.hits_error:
        return "exact"
    refused = f"at most {hot.error:,} too many" if hot.error else "exact"
    return f"refused {refused}, hits at most {hot.hits_error:,} too many"


def _render(view: View, rates: Rates, columns: int, rules: int) -> Iterator[str]:
    busy = sum(counts.hits > 0 for counts in rates.rules.values())
    yield _cut(
        f"{len(view.rates)} of {plural(len(view.urls), 'instance')}, {_rate(rates.calls).strip()} calls/s, "
        f"{busy:,} of {plural(len(rates.rules), 'rule')} busy, by {view.order}",
        columns,
    )
    for url, why in list(view.unreachable.items())[:_MAX_UNREACHABLE]:
        yield RED(_cut(printable(f"{url}: {why}"), columns))
    if not view.rates:
        yield _cut("waiting for the second sample" if not view.unreachable else "no rates", columns)
        return
    limit = columns >= _WIDE
    gauges = columns >= _WIDER and bool(rates.gauges)
    name_columns = max(8, columns - 2 * _NUMBER - 2 - (_LIMIT + 2 if limit else 0) - (_GAUGES + 2 if gauges else 0))
    head = f"{'refused/s':>{_NUMBER}}{'hits/s':>{_NUMBER}}  {'rule':<{name_columns}}"
    yield _cut(f"{head}{'  now':<{_GAUGES + 2}}  limit" if gauges else f"{head}{'  limit' if limit else ''}", columns)
    for name, counts in first(rates.rules, view.order, rules):
        refused = f"{_rate(counts.refused):>{_NUMBER}}"
        text = _cut(printable(f"{name.domain} › {name.text}"), name_columns)
        rest = f"{_rate(counts.hits):>{_NUMBER}}  {text:<{name_columns}}"
        if gauges:
            rest += f"  {_cut(_in_words(rates.gauges.get(name, NO_GAUGES)), _GAUGES):<{_GAUGES}}"
        if limit:
            rest += f"  {_cut(printable(rates.limits[name]), _LIMIT)}"
        yield _row(refused, rest.rstrip(), columns, red=counts.refused > 0)


def _in_words(gauges: Gauges) -> str:
    """`61 held`, `3 wait`, `47 taken`, or `200 on loan`."""
    numbers = (
        (gauges.held, "held"),
        (gauges.waiting, "wait"),
        (gauges.places_taken, "taken"),
        (gauges.on_loan, "on loan"),
    )
    return ", ".join(f"{number:,} {word}" for number, word in numbers if number)


def _row(refused: str, rest: str, columns: int, *, red: bool) -> str:
    line = _cut(refused + rest, columns)
    number = line[: len(refused)]
    return (RED(number) if red else number) + line[len(refused) :]


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: max(0, columns - 1)]}…"
