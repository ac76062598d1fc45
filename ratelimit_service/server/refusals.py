"""The last refused requests that were chosen, of one process or of all workers, as JSON: who, when and why."""

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

from ratelimit_service.limiter.refusals import MOST, Refusal
from ratelimit_service.server.series import CONTROL
from ratelimit_service.server.state import ServiceState
from ratelimit_service.server.top_descriptors import described
from ratelimit_service.system.clock import SECOND


class LastRefusals:
    """At most MOST of them: 100 kB, and 800 kB when all names are as long as they may be."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._kept: deque[Refusal] = deque(maxlen=MOST)

    def look(self) -> None:
        """Add those since the last look. Called every few seconds."""
        self._kept = deque(sorted([*self._kept, *self._state.counted.refusals.drain()]), maxlen=MOST)

    def text(self) -> Iterator[str]:
        """All of them as JSON, in blocks, the newest first."""
        self.look()
        yield '{"refusals": ['
        for index, refusal in enumerate(reversed(self._kept)):
            yield f"{', ' if index else ''}{json.dumps(_shown(refusal))}"
        yield "]}\n"


def _shown(refusal: Refusal) -> dict[str, Any]:
    return {
        "when": refusal.when / SECOND,
        **described(refusal.name),
        "why": refusal.why,
        "words": CONTROL.sub("_", refusal.words),
        "place": refusal.place,
        "cost": refusal.cost,
        "stands_for": round(refusal.stands_for),
    }
