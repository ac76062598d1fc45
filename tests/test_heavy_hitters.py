"""The sketch of heavy hitters against exact counts: in any order, merged in any way, and within its bound."""

import json
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.system.clock import MINUTE
from ratelimit_service.telemetry.heavy_hitters import KEPT, Sketch
from ratelimit_service.telemetry.top_counts import HALF, RecentTop, TopCounts
from tests.clocks import Clock

Batch = dict[str, int]
"""The cost of each name in it."""

BATCHES = st.lists(
    # Some names come often, and a rotating flood of others pushes them out again and again.
    st.tuples(
        st.dictionaries(st.integers(0, 30).map(str), st.integers(1, 50), max_size=20),
        st.integers(0, 3 * KEPT),
        st.integers(0, 10**6),
        st.integers(1, 4),
    ).map(lambda drawn: drawn[0] | {f"flood {drawn[2] + number}": drawn[3] for number in range(drawn[1])}),
    max_size=6,
)


def sketch_of(batches: Sequence[Batch]) -> Sketch:
    sketch = Sketch()
    for batch in batches:
        sketch.add(Sketch(batch, 0, sum(batch.values())))
    return sketch


def check(sketch: Sketch, batches: Sequence[Batch]) -> None:
    exact = Counter[str]()
    for batch in batches:
        exact.update(batch)
    assert sketch.total == exact.total()
    assert len(sketch.counts) <= KEPT
    assert sketch.error * (KEPT + 1) <= sketch.total
    for name in exact.keys() | sketch.counts.keys():
        count = sketch.counts.get(name, 0)
        assert count <= exact[name] <= count + sketch.error


@given(BATCHES)
def test_a_count_is_too_low_by_at_most_the_error(batches: list[Batch]) -> None:
    check(sketch_of(batches), batches)


@given(BATCHES, BATCHES, BATCHES)
def test_merged_sketches_keep_the_bound_of_all_in_any_order(
    one: list[Batch], two: list[Batch], three: list[Batch]
) -> None:
    left, right = sketch_of(one), sketch_of(two)
    for packed in sketch_of(three).packed(names=100):
        left.add(Sketch(*json.loads(json.dumps(packed))))  # as a worker sends it
    right.add(left)

    check(right, [*one, *two, *three])


def test_who_has_more_than_the_error_is_kept_whatever_else_comes() -> None:
    flood = [{f"flood {number}": 1 for number in range(first, first + 2000)} for first in range(0, 100_000, 2000)]
    sketch = sketch_of([{**batch, "ada": 10} for batch in flood])

    assert sketch.total == 100_500
    assert "ada" in sketch.counts
    assert sketch.error <= 195


@given(st.lists(st.tuples(st.integers(0, 2 * HALF), BATCHES.map(lambda batches: batches[:1])), max_size=8))
def test_recent_counts_are_those_since_they_began(steps: list[tuple[int, list[Batch]]]) -> None:
    clock = Clock(0)
    recent = RecentTop(clock)
    added: list[tuple[int, list[Batch]]] = []
    for pause, batches in steps:
        clock.advance(pause)
        recent.add(TopCounts(sketch_of(batches), Sketch()))
        added.append((clock(), batches))
    began = clock() - round(recent.seconds * 1_000_000)

    check(recent.counts().allowed, [batch for when, batches in added if when >= began for batch in batches])


def test_two_halves_take_turns() -> None:
    clock = Clock(0)
    recent = RecentTop(clock)
    kept: list[tuple[float, list[str]]] = []
    for number in range(4):
        recent.add(TopCounts(sketch_of([{f"turn {number}": 1}]), Sketch()))
        kept.append((recent.seconds, sorted(recent.counts().allowed.counts)))
        clock.advance(5 * MINUTE)
    clock.advance(5 * MINUTE)
    recent.add(TopCounts(Sketch(), Sketch()))

    assert kept == [
        (0, ["turn 0"]),
        (300, ["turn 0", "turn 1"]),
        (300, ["turn 1", "turn 2"]),
        (300, ["turn 2", "turn 3"]),
    ]
    assert recent.counts().allowed.counts == {}
