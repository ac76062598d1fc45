"""Metrics of several processes, merged into one."""

import json

from ratelimit_service.telemetry.latency import Exemplar, Latency
from ratelimit_service.telemetry.metric import (
    Metric,
    MetricType,
    exposition,
    merge_metrics,
    pack_metrics,
    unpack_metrics,
    without_gauges,
)


def metrics_of_one(*, ended: int, reset: int, open_: int, nanoseconds: int) -> list[Metric]:
    latency = Latency()
    latency.observe(nanoseconds)
    return [
        Metric(
            "ended_total", MetricType.COUNTER, "Gone.", [((("reason", "age"),), ended), ((("reason", "reset"),), reset)]
        ),
        Metric("open", MetricType.GAUGE, "Here.", [((), open_)]),
        Metric("seconds", MetricType.HISTOGRAM, "Took.", [((), latency)]),
    ]


def sent(metrics: list[Metric]) -> list[Metric]:
    """As another process has them."""
    return unpack_metrics(json.loads(json.dumps(pack_metrics(metrics))))


def test_metrics_are_merged_label_by_label_after_they_were_sent() -> None:
    one, other = (
        sent(metrics_of_one(ended=ended, reset=ended + 1, open_=ended, nanoseconds=60_000)) for ended in (1, 10)
    )

    total = merge_metrics([one, other])

    assert [(metric.name, metric.type, metric.help) for metric in total] == [
        ("ended_total", "counter", "Gone."),
        ("open", "gauge", "Here."),
        ("seconds", "histogram", "Took."),
    ]
    assert total[0].samples == [((("reason", "age"),), 11), ((("reason", "reset"),), 13)]
    assert total[1].samples == [((), 11)]
    ((labels, latency),) = total[2].samples
    assert isinstance(latency, Latency)
    assert (labels, latency.calls, latency.nanoseconds, latency.buckets()[1].calls) == ((), 2, 120_000, 2)


def test_of_what_is_worse_when_it_is_less_the_least_is_told() -> None:
    one, other = (
        sent([Metric("expiry", MetricType.GAUGE, "When.", [((), seconds)], merge_by_min=True)])
        for seconds in (1_900_000_000, 1_800_000_000)
    )

    assert merge_metrics([one, other]) == merge_metrics([other, one])
    assert merge_metrics([one, other])[0].samples == [((), 1_800_000_000)]


def test_of_a_worker_that_has_ended_only_what_counts_up_lasts() -> None:
    gone = without_gauges(metrics_of_one(ended=1, reset=2, open_=3, nanoseconds=4))

    assert [metric.name for metric in gone] == ["ended_total", "seconds"]


def test_openmetrics_has_exemplars_and_counters_that_end_in_total() -> None:
    """A counter that does not has the type unknown, so that its name stays."""
    latency = Latency()
    latency.observe(60_000)
    latency.exemplars[1] = Exemplar(1, 0xAF7, 0.00006, 1_700_000_000.1234)
    metrics = [
        Metric("ended_total", MetricType.COUNTER, 'Said "no".', [((("reason", 'a "b"'),), 1)]),
        Metric("hits", MetricType.COUNTER, "envoyproxy/ratelimit's.", [((), 2)]),
        Metric("seconds", MetricType.HISTOGRAM, "Took.", [((), latency)]),
    ]

    lines = "".join(exposition(metrics, openmetrics=True)).splitlines()

    assert lines[:9] == [
        '# HELP ended Said \\"no\\".',
        "# TYPE ended counter",
        'ended_total{reason="a \\"b\\""} 1',
        "# HELP hits envoyproxy/ratelimit's.",
        "# TYPE hits unknown",
        "hits 2",
        "# HELP seconds Took.",
        "# TYPE seconds histogram",
        'seconds_bucket{le="5e-05"} 0',
    ]
    assert (
        lines[9] == 'seconds_bucket{le="0.0001"} 1 # {trace_id="00000000000000000000000000000af7"} 6e-05 1700000000.123'
    )
    assert "#" not in "".join(lines[10:])
