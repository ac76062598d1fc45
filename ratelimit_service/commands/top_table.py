"""What `ratelimit top` shows: rates of rules between two samples of a service, and the table of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ratelimit_service.commands.terminal import RED
from ratelimit_service.errors import StoreError
from ratelimit_service.rules.report import printable
from ratelimit_service.rules.rule import plural

ORDERS: Final = ("refused", "hits", "name")
_MAX_UNREACHABLE: Final = 5
"""Lines about instances that cannot be reached."""
_NUMBER: Final = 10
"""Columns of a rate."""
_LIMIT: Final = 24
"""Columns of a limit; a terminal of less than `_WIDE` columns shows none."""
_WIDE: Final = 72


class RuleName(NamedTuple):
    """A rule, the same on every instance."""

    domain: str
    path: str


class RuleCounts(NamedTuple):
    """What a rule has counted since the service started, as cost; or per second."""

    hits: float
    refused: float


class Sample(NamedTuple):
    """What `/status` said, and when: a time of the service's clock, in seconds."""

    at: float
    started: float
    """Of the service, in seconds since the epoch: counts of another start are not compared."""
    calls: int
    rules: Mapping[RuleName, RuleCounts]
    limits: Mapping[RuleName, str]


class Rates(NamedTuple):
    """Calls and rules per second, of one instance or several."""

    calls: float
    rules: Mapping[RuleName, RuleCounts]
    limits: Mapping[RuleName, str]


@dataclass
class View:
    """What is known of all instances: rates by URL, or why there are none."""

    rates: dict[str, Rates]
    unreachable: dict[str, str]
    urls: Sequence[str]
    order: str = "refused"


def read_sample(status: Mapping[str, Any]) -> Sample:
    """The sample in the JSON of `/status`; StoreError if that is of another version."""
    try:
        names = [(RuleName(rule["domain"], " › ".join(rule["path"])), rule) for rule in status["rules"]]
        return Sample(
            status["now"],
            status["started"],
            status["calls"]["total"],
            {name: RuleCounts(rule["total"], max(0, rule["over"] - rule["shadow"])) for name, rule in names},
            {name: rule["limit"] for name, rule in names},
        )
    except (KeyError, TypeError) as error:
        raise StoreError(f"its /status is of another version: {error} is not as this command knows it") from error


def rates_between(before: Sample, now: Sample) -> Rates:
    """The rates from one sample to a later one. After a restart, or for a rule that is new, everything is new."""
    seconds = now.at - before.at
    same = before.started == now.started
    rules = {}
    for name, counts in now.rules.items():
        old = before.rules.get(name, RuleCounts(0, 0)) if same else RuleCounts(0, 0)
        rules[name] = RuleCounts(*(max(0.0, new - was) / seconds for new, was in zip(counts, old, strict=True)))
    calls = now.calls - (before.calls if same else 0)
    return Rates(max(0, calls) / seconds, rules, now.limits)


def summed(found: Iterable[Rates]) -> Rates:
    """The rates of several instances together."""
    calls, rules, limits = 0.0, dict[RuleName, RuleCounts](), dict[RuleName, str]()
    for rates in found:
        calls += rates.calls
        limits |= rates.limits
        for name, counts in rates.rules.items():
            old = rules.get(name, RuleCounts(0, 0))
            rules[name] = RuleCounts(old.hits + counts.hits, old.refused + counts.refused)
    return Rates(calls, rules, limits)


def busiest(rates: Rates, order: str, most: int) -> list[tuple[RuleName, RuleCounts]]:
    """The first rules in this order, equal ones by name."""
    keys = {
        "refused": lambda item: (-item[1].refused, -item[1].hits, item[0]),
        "hits": lambda item: (-item[1].hits, -item[1].refused, item[0]),
        "name": lambda item: item[0],
    }
    return sorted(rates.rules.items(), key=keys[order])[:most]


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
                "rule": name.path,
                "limit": rates.limits[name],
                "hits_per_second": round(counts.hits, 3),
                "refused_per_second": round(counts.refused, 3),
            }
            for name, counts in busiest(rates, view.order, most)
        ],
    }


def render(view: View, columns: int, lines: int) -> list[str]:
    """At most so many lines of at most so many columns."""
    return list(_render(view, columns, lines))[:lines]


def _render(view: View, columns: int, lines: int) -> Iterator[str]:
    rates = summed(view.rates.values())
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
    name_columns = max(8, columns - 2 * _NUMBER - 2 - (_LIMIT + 2 if limit else 0))
    yield _cut(
        f"{'refused/s':>{_NUMBER}}{'hits/s':>{_NUMBER}}  {'rule':<{name_columns}}{'  limit' if limit else ''}", columns
    )
    for name, counts in busiest(rates, view.order, lines):
        refused = f"{_rate(counts.refused):>{_NUMBER}}"
        text = _cut(printable(f"{name.domain} › {name.path}"), name_columns)
        rest = f"{_rate(counts.hits):>{_NUMBER}}  {text:<{name_columns}}"
        if limit:
            rest += f"  {_cut(rates.limits[name], _LIMIT)}"
        line = _cut(refused + rest.rstrip(), columns)
        number = line[: len(refused)]
        yield (RED(number) if counts.refused else number) + line[len(refused) :]


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: max(0, columns - 1)]}…"
