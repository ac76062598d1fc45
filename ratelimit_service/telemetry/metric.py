"""Metrics: their types, their merge when several processes report them, and their text for Prometheus.

The text has format 0.0.4, or is OpenMetrics. It is written here, because prometheus_client adds `_total` to the name of
every counter, and envoyproxy's names, which dashboards use, do not end so. OpenMetrics requires that suffix: there
these have the type unknown, which keeps their names, and Prometheus computes the same with them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice, starmap
from operator import add
from typing import Any, Final, NamedTuple

from ratelimit_service.telemetry.latency import Exemplar, Latency

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
OPENMETRICS_END: Final = "# EOF\n"

BLOCK: Final = 100
"""Series written in one block: a tenth of a millisecond."""

Labels = Iterable[tuple[str, str]]
Value = float | Latency
Sample = tuple[Labels | str, Value]
"""A value with its labels. The labels may be a text that `label_text` wrote, extra labels included: a rule has the same
labels in a dozen metrics, and there are ten thousand rules."""


class MetricType(StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """A metric with its series. Equal series of several processes are added, unless `merge_by_min` is set."""

    name: str
    type: MetricType
    help: str
    samples: Sequence[Sample]
    """The value of a histogram is a Latency."""
    merge_by_min: bool = False
    """The least value of all processes is taken: it is the worst, or the soonest. Not for histograms."""


def value_of(metrics: Iterable[Metric], name: str) -> float | Latency | None:
    """The value of a metric without labels; None if it is not among these."""
    return next((metric.samples[0][1] for metric in metrics if metric.name == name), None)


def counter(name: str, text: str, value: float, *labels: tuple[str, str]) -> Metric:
    """A counter with one series."""
    return Metric(name, MetricType.COUNTER, text, [(labels, value)])


def counter_by(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """A counter with one series for each value of one label."""
    return Metric(name, MetricType.COUNTER, text, [(((label, each),), number) for each, number in values])


def gauge(name: str, text: str, value: float, *labels: tuple[str, str], merge_by_min: bool = False) -> Metric:
    """A gauge with one series."""
    return Metric(name, MetricType.GAUGE, text, [(labels, value)], merge_by_min)


def histogram(name: str, text: str, value: Latency, *labels: tuple[str, str]) -> Metric:
    """A histogram with one series."""
    return Metric(name, MetricType.HISTOGRAM, text, [(labels, value)])


def in_blocks(metric: Metric, samples: Iterable[Sample | None]) -> Iterator[Metric]:
    """The metric with these samples but for None, in parts of at most BLOCK that were looked at; at least one part."""
    remaining = iter(samples)
    while True:
        block = list(islice(remaining, BLOCK))
        yield metric._replace(samples=[sample for sample in block if sample is not None])
        if len(block) < BLOCK:
            return


def exposition(metrics: Iterable[Metric], extra: Labels = (), *, openmetrics: bool = False) -> Iterator[str]:
    """Metrics as text, a block or two for each; `extra` labels stand on every series.

    Metrics that follow each other with one name are parts of one metric. OpenMetrics has exemplars too; at its end the
    caller writes OPENMETRICS_END.
    """
    previous = ""
    for metric in metrics:
        if metric.name != previous:
            previous = metric.name
            yield (_openmetrics_head if openmetrics else head)(metric.name, metric.type, metric.help)
        name, lines = metric.name, list[str]()
        for labels, value in metric.samples:
            if isinstance(labels, str):
                # Not by `line`: these are most of the series, and a call is a tenth of the time of a scrape.
                lines.append(f"{name}{{{labels}}} {value!r}\n")
            elif isinstance(value, Latency):
                lines += _histogram_lines(name, labels, value, extra, exemplars=value.exemplars if openmetrics else {})
            else:
                lines.append(line(name, label_text((*labels, *extra)), value))
        yield "".join(lines)


def head(name: str, kind: str, text: str) -> str:
    """The HELP and TYPE lines of a metric."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _openmetrics_head(name: str, kind: str, text: str) -> str:
    """The same for OpenMetrics, where a counter's name is without the suffix of its series."""
    if kind == MetricType.COUNTER:
        name, kind = (name.removesuffix("_total"), kind) if name.endswith("_total") else (name, "unknown")
    return head(name, kind, text).replace('"', '\\"')


def label_text(labels: Labels) -> str:
    """Labels as text between the braces; those with an empty value are left out, which means the same."""
    return ",".join([f'{name}="{_escape(value)}"' for name, value in labels if value])


def line(name: str, labels: str, value: float) -> str:
    """The line of one series; `labels` is a text from `label_text`."""
    return f"{name}{{{labels}}} {value!r}\n" if labels else f"{name} {value!r}\n"


def _histogram_lines(
    name: str, labels: Labels, latency: Latency, extra: Labels, exemplars: Mapping[int, Exemplar]
) -> Iterator[str]:
    calls = latency.calls
    buckets = [*((repr(bucket.seconds), bucket.calls) for bucket in latency.buckets()), ("+Inf", calls)]
    for number, (bound, below) in enumerate(buckets):
        text = line(f"{name}_bucket", label_text((*labels, ("le", bound), *extra)), below)
        if number in exemplars:
            _, trace_id, seconds, when = exemplars[number]
            text = f'{text[:-1]} # {{trace_id="{trace_id:032x}"}} {seconds!r} {when:.3f}\n'
        yield text
    yield line(f"{name}_sum", label_text((*labels, *extra)), latency.nanoseconds / 1e9)
    yield line(f"{name}_count", label_text((*labels, *extra)), calls)


def _pairs(labels: Labels | str) -> tuple[tuple[str, str], ...]:
    assert not isinstance(labels, str), "only series of rules and domains have their labels as text"
    return tuple(labels)


def _escape(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def pack_metrics(metrics: Iterable[Metric]) -> list[Any]:
    """Metrics as lists that JSON can carry to another process."""
    return [metric._replace(samples=list(starmap(_packed, metric.samples))) for metric in metrics]


def _packed(labels: Labels | str, value: Value) -> Any:
    return _pairs(labels), (value.counts, value.nanoseconds) if isinstance(value, Latency) else value


def unpack_metrics(packed: Iterable[Any]) -> list[Metric]:
    """The metrics that `pack_metrics` packed."""
    return [
        Metric(name, MetricType(kind), help_text, list(starmap(_unpacked, samples)), merge_by_min)
        for name, kind, help_text, samples, merge_by_min in packed
    ]


def _unpacked(labels: Any, value: Any) -> Sample:
    return tuple(map(tuple, labels)), value if isinstance(value, int | float) else Latency(*value)


def without_gauges(metrics: Iterable[Metric]) -> list[Metric]:
    """The counters and histograms, which stay true after their process has exited."""
    return [metric for metric in metrics if metric.type is not MetricType.GAUGE]


def merge_metrics(sources: Iterable[Iterable[Metric]]) -> list[Metric]:
    """Merge the metrics of all sources by name, in the order in which the names appear."""
    found: dict[str, tuple[Metric, dict[tuple[tuple[str, str], ...], Value]]] = {}
    for metrics in sources:
        for metric in metrics:
            _, values = found.setdefault(metric.name, (metric, {}))
            for labels, value in metric.samples:
                key = _pairs(labels)
                values[key] = _merge_values(metric, values[key], value) if key in values else value
    return [metric._replace(samples=list(values.items())) for metric, values in found.values()]


def _merge_values(metric: Metric, one: Value, other: Value) -> Value:
    if isinstance(one, Latency) and isinstance(other, Latency):
        return Latency(map(add, one.counts, other.counts), one.nanoseconds + other.nanoseconds)
    assert not isinstance(one, Latency), "a metric has one type"
    assert not isinstance(other, Latency), "a metric has one type"
    return min(one, other) if metric.merge_by_min else one + other
