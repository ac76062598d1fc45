"""What a part of the service tells of itself: metrics by name, each with its values by their labels."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ratelimit_service.exposition import Labels
from ratelimit_service.latency import Latency


class Sort(StrEnum):
    """The types of metrics that there are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Figure(NamedTuple):
    """One metric. All of them may be summed over processes, label by label."""

    name: str
    sort: Sort
    meaning: str
    values: Sequence[tuple[Labels, int | Latency]]
    """A Latency where it is a histogram."""
