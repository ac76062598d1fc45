"""Our script for Redis: its text, and hits as its arguments, and decisions out of its reply. Pure. Hot path.

The text is `batch.lua`, which says what goes in and comes out, with the algorithms' twins in it.
"""

from collections.abc import Callable, Sequence
from hashlib import sha1
from importlib.resources import files
from random import random
from typing import Any, Final

from ratelimit_service.algorithms import NAMES
from ratelimit_service.clock import Clock
from ratelimit_service.model import Decision
from ratelimit_service.rules.rule import Rule
from ratelimit_service.verdict import Hit

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


class Script:
    """Charges hits on counters that `key` names, at the time of Redis; in tests at that of a clock of theirs."""

    def __init__(self, key: Callable[[Hit], str], clock: Clock | None = None, *, jitter_seconds: int = 0) -> None:
        self.text = script_text()
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self.key = key
        self._clock = clock
        self._jitter = jitter_seconds * 1000
        self._numbers = {name: number for number, name in enumerate(NAMES, start=1)}

    def encode(self, requests: Sequence[Sequence[Hit]]) -> tuple[list[str], tuple[str]]:
        """Keys and the plan for the hits of these requests."""
        name = self.key
        keys: dict[str, int] = {}
        limits: dict[int, int] = {}  # by the rule's identity: the hash of a limit takes a microsecond
        found: list[int] = []
        plan: list[int] = []
        for hits in requests:
            group = 0
            for index, hit in enumerate(hits):
                if hit.together != group:
                    group = hit.together
                    if group:
                        plan.append(-_length(hits, index))
                rule = hit.rule
                number = limits.get(id(rule))
                if number is None:
                    limits[id(rule)] = number = len(limits) + 1
                    found += self._fields(rule)
                key = name(hit)
                plan += (keys.setdefault(key, len(keys) + 1), number, hit.cost)
        now = 0 if self._clock is None else self._clock()
        # A list of integers is written by str() as JSON has it, in half the time of json.dumps.
        return list(keys), (str([now, len(limits), *found, *plan]),)

    def decode(self, reply: Any, requests: Sequence[Sequence[Hit]]) -> None:
        """Write the decisions on the hits."""
        at = 1
        for hits in requests:
            for hit in hits:
                remaining, over, reset, retry = reply[at : at + 4]
                hit.decision = Decision(not retry, remaining, over, reset, retry)
                at += 4

    def _fields(self, rule: Rule) -> tuple[int, ...]:
        limit = rule.limit
        assert limit is not None, "an unlimited rule has no counter"
        # Windows of the calendar end all at once; were their keys to expire so, Redis would stall at each minute.
        at_once = rule.algorithm.name == "fixed_window" and not limit.first_request
        return (
            self._numbers[rule.algorithm.name],
            limit.requests,
            limit.window,
            limit.burst,
            limit.parts,
            int(limit.first_request),
            int(limit.count_refused),
            limit.exceed,
            int(random() * self._jitter) if at_once else 0,  # noqa: S311 - nobody must guess it
        )


def _length(hits: Sequence[Hit], first: int) -> int:
    """How many hits stand one after the other with the same `together`."""
    together = hits[first].together
    end = first
    while end < len(hits) and hits[end].together == together:
        end += 1
    return end - first
