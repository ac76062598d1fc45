"""Figures of several processes: as a message carries them, and as those of one, label by label."""

from collections.abc import Iterable, Sequence
from typing import Any

from ratelimit_service.telemetry.figures import Figure, Sort
from ratelimit_service.telemetry.latency import Latency

Value = float | Latency


def packed(figures: Iterable[Figure]) -> list[Any]:
    """As JSON can carry them."""
    return [
        [
            figure.name,
            figure.sort,
            figure.meaning,
            [
                [list(labels), [value.counts, value.nanoseconds] if isinstance(value, Latency) else value]
                for labels, value in figure.values
            ],
            figure.least,
        ]
        for figure in figures
    ]


def unpacked(packed: Iterable[Any]) -> list[Figure]:
    """The figures that were packed."""
    return [
        Figure(
            name, Sort(sort), meaning, [(tuple(map(tuple, labels)), _value(value)) for labels, value in values], least
        )
        for name, sort, meaning, values, least in packed
    ]


def lasting(figures: Iterable[Figure]) -> list[Figure]:
    """What is still true when the process has ended: not how many there are of anything."""
    return [figure for figure in figures if figure.sort is not Sort.GAUGE]


def summed(sources: Iterable[Sequence[Figure]]) -> list[Figure]:
    """All of them as one, in the order in which they come first."""
    found: dict[str, tuple[Figure, dict[tuple[tuple[str, str], ...], Value]]] = {}
    for figures in sources:
        for figure in figures:
            _, values = found.setdefault(figure.name, (figure, {}))
            for labels, value in figure.values:
                key = tuple(labels)
                values[key] = _both(figure, values[key], value) if key in values else value
    return [figure._replace(values=list(values.items())) for figure, values in found.values()]


def _both(figure: Figure, one: Value, other: Value) -> Value:
    if isinstance(one, Latency) and isinstance(other, Latency):
        both = Latency()
        both.add(one.counts, one.nanoseconds)
        both.add(other.counts, other.nanoseconds)
        return both
    assert not isinstance(one, Latency), "a metric is of one sort"
    assert not isinstance(other, Latency), "a metric is of one sort"
    return min(one, other) if figure.least else one + other


def _value(value: Any) -> Value:
    if isinstance(value, int | float):
        return value
    latency = Latency()
    latency.add(*value)
    return latency
