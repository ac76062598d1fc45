"""What a part of the service tells of itself: metrics by name, each with its values by their labels."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ratelimit_service.telemetry.exposition import Labels
from ratelimit_service.telemetry.latency import Latency


class Sort(StrEnum):
    """The types of metrics that there are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Figure(NamedTuple):
    """One metric. All of them can be told of several processes together, label by label: as sums, unless `least`."""

    name: str
    sort: Sort
    meaning: str
    values: Sequence[tuple[Labels, float | Latency]]
    """A Latency where it is a histogram."""
    least: bool = False
    """Of several processes the least value is told: it is worse, or sooner. Never of a histogram."""
