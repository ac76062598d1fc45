"""How long calls took."""

from ratelimit_service.telemetry.latency import BOUNDS, Bucket, Latency, TracedLatency


def test_a_duration_is_in_every_bucket_that_it_fits_in() -> None:
    latency = Latency()
    for nanoseconds in (0, 50_000, 50_001, 7_000_000, 11_000_000_000):
        latency.observe(nanoseconds)

    buckets = latency.buckets()

    assert buckets[:3] == [Bucket(0.00005, 2), Bucket(0.0001, 3), Bucket(0.00025, 3)]
    assert buckets[6:8] == [Bucket(0.005, 3), Bucket(0.01, 4)]
    assert buckets[-1] == Bucket(10.0, 4)
    assert latency.calls == 5
    assert latency.nanoseconds == 11_007_100_001


def test_the_bounds_have_all_of_envoyproxy() -> None:
    envoyproxy = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]

    assert [bound / 1e9 for bound in BOUNDS[-11:]] == envoyproxy
    assert list(BOUNDS) == sorted(BOUNDS)


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    latency = Latency()
    for nanoseconds, calls in ((40_000, 98), (7_000_000, 1), (11_000_000_000, 1)):
        latency.observe_all(nanoseconds, calls)

    assert [latency.quantile(share) for share in (0.5, 0.98, 0.99, 1)] == [0.00005, 0.00005, 0.01, 10.0]
    assert Latency().quantile(0.99) == 0


def test_what_is_taken_from_one_is_added_to_another() -> None:
    one, other = Latency(), Latency()
    one.observe(60_000)
    other.observe(70_000)

    other.add(*one.drain())

    assert (one.calls, one.nanoseconds) == (0, 0)
    assert (other.calls, other.nanoseconds, other.buckets()[1].calls) == (2, 130_000, 2)


def test_the_last_traced_call_of_a_bucket_is_its_exemplar() -> None:
    one, other = TracedLatency(), Latency()
    for trace_id, nanoseconds in ((1, 10), (2, 50_000), (0, 20), (3, 50_001), (4, 11_000_000_000)):
        one.trace_id = trace_id
        one.observe(nanoseconds)

    other.add_exemplars(one.drain_exemplars())

    found = {bucket: (exemplar.trace_id, exemplar.seconds) for bucket, exemplar in other.exemplars.items()}
    assert found == {0: (2, 0.00005), 1: (3, 0.000050001), len(BOUNDS): (4, 11.0)}
    assert one.exemplars == {}
    assert one.calls == 5
