"""A metric: its type, the merge of what several processes report, and Prometheus's text format 0.0.4, written by hand.

prometheus_client names every counter `…_total`, and upstream's names, which dashboards have, end otherwise. That is why
OpenMetrics, where the suffix is law, is not offered.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from ratelimit_service.telemetry.latency import Latency

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Iterable[tuple[str, str]]
Value = float | Latency


class MetricType(StrEnum):
    """The types of metrics that there are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric. Those of several processes are merged label by label: they are added, unless `merge_by_min`."""

    name: str
    type: MetricType
    help: str
    samples: Sequence[tuple[Labels, Value]]
    """Each value with its labels; the value of a histogram is a Latency."""
    merge_by_min: bool = False
    """The least value of all processes counts: it is the worst, or the soonest. Never of a histogram."""


def head(name: str, kind: str, text: str) -> str:
    """The two lines before the first series of a metric."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def label_text(labels: Labels) -> str:
    """Labels as they stand between the braces; those without a value are left out, which means the same."""
    return ",".join([f'{name}="{_escape(value)}"' for name, value in labels if value])


def line(name: str, labels: str, value: float) -> str:
    """One series; `labels` is from `label_text`."""
    return f"{name}{{{labels}}} {value!r}\n" if labels else f"{name} {value!r}\n"


def _escape(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def pack_metrics(metrics: Iterable[Metric]) -> list[Any]:
    """Metrics as lists that JSON can carry to another process."""
    return [
        [
            metric.name,
            metric.type,
            metric.help,
            [
                [list(labels), [value.counts, value.nanoseconds] if isinstance(value, Latency) else value]
                for labels, value in metric.samples
            ],
            metric.merge_by_min,
        ]
        for metric in metrics
    ]


def unpack_metrics(packed: Iterable[Any]) -> list[Metric]:
    """The metrics that `pack_metrics` packed."""
    return [
        Metric(
            name,
            MetricType(kind),
            help_text,
            [(tuple(map(tuple, labels)), _unpack_value(value)) for labels, value in samples],
            merge_by_min,
        )
        for name, kind, help_text, samples, merge_by_min in packed
    ]


def without_gauges(metrics: Iterable[Metric]) -> list[Metric]:
    """The counters and histograms: those that stay true after their process has exited."""
    return [metric for metric in metrics if metric.type is not MetricType.GAUGE]


def merge_metrics(sources: Iterable[Iterable[Metric]]) -> list[Metric]:
    """The metrics of all sources, one for each name, in the order in which the names come first."""
    found: dict[str, tuple[Metric, dict[tuple[tuple[str, str], ...], Value]]] = {}
    for metrics in sources:
        for metric in metrics:
            _, values = found.setdefault(metric.name, (metric, {}))
            for labels, value in metric.samples:
                key = tuple(labels)
                values[key] = _merge_values(metric, values[key], value) if key in values else value
    return [metric._replace(samples=list(values.items())) for metric, values in found.values()]


def _merge_values(metric: Metric, one: Value, other: Value) -> Value:
    if isinstance(one, Latency) and isinstance(other, Latency):
        both = Latency()
        both.add(one.counts, one.nanoseconds)
        both.add(other.counts, other.nanoseconds)
        return both
    assert not isinstance(one, Latency), "a metric has one type"
    assert not isinstance(other, Latency), "a metric has one type"
    return min(one, other) if metric.merge_by_min else one + other


def _unpack_value(value: Any) -> Value:
    if isinstance(value, int | float):
        return value
    latency = Latency()
    latency.add(*value)
    return latency
