"""Our script for Redis: its text, and hits as its arguments, and decisions out of its reply. Pure. Hot path.

The text is `batch.lua`, which says what goes in and comes out, with the algorithms' twins in it.
"""

from collections.abc import Callable, Sequence
from hashlib import sha1
from importlib.resources import files
from itertools import chain
from typing import Any, Final

from ratelimit_service.algorithms import NAMES
from ratelimit_service.model import Decision
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.batch import Batch
from ratelimit_service.stores.redis.orders import Encoded, Run
from ratelimit_service.system.clock import SECOND, Clock

_PLACE: Final = "--twins--\n"


def script_text() -> str:
    """The source of the script."""
    twins = []
    for index, name in enumerate(NAMES, start=1):
        chunk = files("ratelimit_service.algorithms").joinpath(f"{name}.lua").read_text(encoding="utf-8")
        twins.append(f"chunks[{index}] = '{name}'\nchunks.{name} = function()\n{chunk}\nend\n")
    batch = files("ratelimit_service.stores.redis").joinpath("batch.lua").read_text(encoding="utf-8")
    assert _PLACE in batch
    return batch.replace(_PLACE, "\n".join(twins))


class BatchScript:
    """Charges hits on counters that `key` names, at the time of Redis; in tests at that of a clock of theirs."""

    def __init__(self, key: Callable[[Hit], str], clock: Clock | None = None, *, jitter_seconds: int = 0) -> None:
        self.text = script_text()
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self.key = key
        self._clock = clock
        self._jitter = jitter_seconds * SECOND

    def encode(self, requests: Sequence[Sequence[Hit]], names: Sequence[Sequence[str]] | None = None) -> Encoded:
        """The hits of these requests as runs of a batch."""
        batch = Batch(self.key if names is None else _one_by_one(names), self._jitter)
        batch.add(requests)
        now = 0 if self._clock is None else self._clock()
        return Encoded(batch.keys, (batch.text(now),), batch.runs)

    def decode(self, reply: Any, runs: Sequence[Run]) -> list[Hit]:
        """Write the decisions on the hits; says which are refused, or have given back."""
        told: list[Hit] = []
        numbers = iter(reply)
        next(numbers)
        for hits, got, room, left, reset, retry in zip(runs, *[numbers] * 5, strict=True):
            if got == 1 and len(hits) == 1:
                hit = hits[0]
                exceed = hit.limit.exceed
                # What it took is not its cost, if it was spared or has given back.
                over = max(0, min(exceed - left, room - left)) if left < exceed else 0
                hit.decision = Decision(True, left, over, reset, 0)
                if hit.cost < 0:
                    told.append(hit)
            else:
                _share(hits, got, room, left, reset, retry)
                told += hits[max(0, got) :]
        return told


def _one_by_one(names: Sequence[Sequence[str]]) -> Callable[[Hit], str]:
    """The names that hits have already: a batch asks for that of each hit once, in order."""
    known = chain.from_iterable(names)
    return lambda _: next(known)


def _share(hits: Run, got: int, room: int, left: int, reset: int, retry: int) -> None:
    """First come, first served: the first `got` are allowed, and each finds what those before it have left."""
    cost, exceed = hits[0].cost, hits[0].limit.exceed
    if got < 0:
        cost = 0
    for index, hit in enumerate(hits):
        if index < got:
            room -= cost
            over = max(0, min(exceed - room, cost)) if room < exceed else 0
            hit.decision = Decision(True, room, over, reset, 0)
        else:
            over = max(0, min(cost + exceed - room, cost))
            hit.decision = Decision(False, left, over, reset, retry)
            room = left
