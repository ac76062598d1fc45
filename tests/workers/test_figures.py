"""What the transports of several workers tell, as one."""

import json

from ratelimit_service.server.workers.figures import lasting, packed, summed, unpacked
from ratelimit_service.telemetry.figures import Figure, Sort
from ratelimit_service.telemetry.latency import Latency


def figures(*, ended: int, reset: int, open_: int, nanoseconds: int) -> list[Figure]:
    latency = Latency()
    latency.observe(nanoseconds)
    return [
        Figure("ended_total", Sort.COUNTER, "Gone.", [((("reason", "age"),), ended), ((("reason", "reset"),), reset)]),
        Figure("open", Sort.GAUGE, "Here.", [((), open_)]),
        Figure("seconds", Sort.HISTOGRAM, "Took.", [((), latency)]),
    ]


def test_figures_are_summed_label_by_label_after_they_were_sent() -> None:
    one, other = (
        unpacked(json.loads(json.dumps(packed(figures(ended=ended, reset=ended + 1, open_=ended, nanoseconds=60_000)))))
        for ended in (1, 10)
    )

    total = summed([one, other])

    assert [(figure.name, figure.sort, figure.meaning) for figure in total] == [
        ("ended_total", "counter", "Gone."),
        ("open", "gauge", "Here."),
        ("seconds", "histogram", "Took."),
    ]
    assert total[0].values == [((("reason", "age"),), 11), ((("reason", "reset"),), 13)]
    assert total[1].values == [((), 11)]
    ((labels, latency),) = total[2].values
    assert isinstance(latency, Latency)
    assert (labels, latency.calls, latency.nanoseconds, latency.buckets()[1].calls) == ((), 2, 120_000, 2)


def test_of_what_is_worse_when_it_is_less_the_least_is_told() -> None:
    one, other = (
        unpacked(json.loads(json.dumps(packed([Figure("expiry", Sort.GAUGE, "When.", [((), seconds)], least=True)]))))
        for seconds in (1_900_000_000, 1_800_000_000)
    )

    assert summed([one, other]) == summed([other, one])
    assert summed([one, other])[0].values == [((), 1_800_000_000)]


def test_of_a_worker_that_has_ended_only_what_counts_up_lasts() -> None:
    gone = lasting(figures(ended=1, reset=2, open_=3, nanoseconds=4))

    assert [figure.name for figure in gone] == ["ended_total", "seconds"]
