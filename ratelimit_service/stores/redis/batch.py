"""Hits as the script reads them: those that can be charged in one go are one run. Pure. Hot path.

Hits on different counters have nothing to do with each other, so those on one counter are put side by side, in order of
arrival. Like ones that come one after the other are one run: as many as fit are charged at once, and each is told
what it would have been told had it come alone. That cannot be known where each charge moves what the next one is told:

- `reset_after` of a sliding window and of a bucket depends on how much is charged;
- so does `retry_after` where refused hits count, save in a fixed window, which ends when it ends.

Hits that are charged together stay as they are, and no hit is moved past them.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from random import random
from typing import Final

from ratelimit_service.algorithms import NAMES
from ratelimit_service.model import Limit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.orders import Run

_NUMBERS: Final = {name: number for number, name in enumerate(NAMES, start=1)}

_FORGET_AT_ONCE: Final = frozenset({"fixed_window", "sub_windows", "sliding_log"})
"""What these are charged at one moment they forget at one moment, however much it is."""


class Batch:
    """Runs, each with the name of its counter; `text` is what `batch.lua` is told of them."""

    def __init__(self, name: Callable[[Hit], str], jitter: int) -> None:
        self.keys: list[str] = []
        self.runs: list[Run] = []
        self._name = name
        self._jitter = jitter
        self._limits: dict[int, int] = {}  # by the rule's identity: the hash of a limit takes a microsecond
        self._numbers_of_limits: list[int] = []
        self._numbers: list[int] = []

    def add(self, requests: Sequence[Sequence[Hit]]) -> None:
        """Take in the hits of these requests."""
        name = self._name
        counters: dict[str, list[Hit]] = {}
        for hits in requests:
            for hit in hits:
                if hit.together:
                    self._add_counters(counters)
                    counters = {}
                    self._add_groups(hits[hits.index(hit) :])
                    break
                key = name(hit)
                found = counters.get(key)
                if found is None:
                    counters[key] = [hit]
                else:
                    found.append(hit)
        self._add_counters(counters)

    def text(self, now: int) -> str:
        """A list of integers, which str() writes as JSON has it, in half the time of json.dumps."""
        return str([now, len(self._limits), *self._numbers_of_limits, *self._numbers])

    def _add_counters(self, counters: dict[str, list[Hit]]) -> None:
        keys, runs, numbers, limits = self.keys, self.runs, self._numbers, self._limits
        for key, hits in counters.items():
            first = hits[0]
            number = limits.get(id(first.rule))
            if number is not None and len(hits) == 1:
                # As _add_run does it, for almost all there are: 0.3 µs less than the call.
                keys.append(key)
                runs.append(hits)
                numbers += (number, first.cost, 1)
                continue
            for run in _runs(hits):
                self._add_run(key, run)

    def _add_groups(self, hits: Sequence[Hit]) -> None:
        for together, members in groupby(hits, _together):
            runs = [(hit,) for hit in members]
            if together:
                self._numbers.append(-len(runs))
            for run in runs:
                self._add_run(self._name(run[0]), run)

    def _add_run(self, key: str, run: Run) -> None:
        first = run[0]
        rule = first.rule
        number = self._limits.get(id(rule))
        if number is None:
            self._limits[id(rule)] = number = len(self._limits) + 1
            self._numbers_of_limits += self._fields(rule, first.limit)
        self.keys.append(key)
        self.runs.append(run)
        self._numbers += (number, first.cost, len(run))

    def _fields(self, rule: Rule, limit: Limit) -> tuple[int, ...]:
        # Windows of the calendar end all at once; were their keys to expire so, Redis would stall at each minute.
        at_once = rule.algorithm.name == "fixed_window" and not limit.first_request
        return (
            _NUMBERS[rule.algorithm.name],
            limit.requests,
            limit.window,
            limit.burst,
            limit.parts,
            int(limit.first_request),
            int(limit.count_refused),
            limit.exceed,
            int(random() * self._jitter) if at_once else 0,  # noqa: S311 - nobody must guess it
        )


def _runs(hits: Sequence[Hit]) -> list[list[Hit]]:
    """Hits on one counter, like ones that follow each other as one."""
    runs: list[list[Hit]] = []
    rule, cost = None, 0
    for hit in hits:
        if hit.cost == cost and hit.rule is rule:
            runs[-1].append(hit)
        else:
            runs.append([hit])
            rule, cost = (hit.rule, hit.cost) if hit.cost > 0 and _told_alike(hit) else (None, 0)
    return runs


def _told_alike(hit: Hit) -> bool:
    """What one hit is told can be told from what others at the same moment are told."""
    name = hit.rule.algorithm.name
    return name in _FORGET_AT_ONCE and (name == "fixed_window" or not hit.limit.count_refused)


_together = attrgetter("together")
