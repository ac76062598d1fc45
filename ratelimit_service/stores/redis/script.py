"""Hits as they travel: requests cut into parts, parts put into orders, orders encoded for the script. Pure. Hot path.

Law: no request keeps Redis from others. A hit takes 4 to 9 µs of Redis, whatever its cost. A part has at most
`MOST_IN_PART` of them, a call `MOST_IN_CALL`, and the next part of a request waits behind what has come meanwhile.
Only a bundle cannot be cut, because it must be one step: the store refuses one of more than `MOST_IN_CALL`.

The text of the script is `batch.lua`, which says what goes in and comes out, with the algorithms' twins in it. Hits on
different counters have nothing to do with each other, so those on one counter are put side by side, in order of
arrival. Like ones that come one after the other are one run: as many as fit are charged at once, and each is told
what it would have been told had it come alone. That cannot be known where each charge moves what the next one is told:

- `reset_after` of a sliding window and of a bucket depends on how much is charged;
- so does `retry_after` where refused hits count, save in a fixed window, which ends when it ends.

Hits that are charged together stay as they are, and no hit is moved past them.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha1
from importlib.resources import files
from itertools import chain, groupby
from operator import attrgetter
from random import random
from typing import Any, Final, NamedTuple, Protocol

from ratelimit_service.algorithms import NAMES
from ratelimit_service.model import Decision, Limit
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.requests import Waiting
from ratelimit_service.system.clock import SECOND, Clock

MOST_IN_PART: Final = 200
"""Of one request. Envoy sends a handful; 1,000 descriptors with a list of limits each are many thousands."""

MOST_IN_CALL: Final = 500
"""Two to four milliseconds of Redis, which has no time for other instances meanwhile."""

Run = Sequence[Hit]
"""Hits of one rule and one cost on one counter, in order of arrival: the script answers them as one."""


class Encoded(NamedTuple):
    """Hits as a script takes them."""

    keys: Sequence[str]
    arguments: Sequence[str | int]
    runs: Sequence[Run]
    """In the order in which the script answers them."""


class Script(Protocol):
    """What runs in Redis: it turns hits into keys and arguments, and a reply into decisions."""

    @property
    def text(self) -> str:
        """Its source."""

    @property
    def sha(self) -> str:
        """The name Redis has for it."""

    def key(self, hit: Hit) -> str:
        """The name of its counter, which may be another one a moment later."""

    def encode(self, requests: Sequence[Sequence[Hit]], names: Sequence[Sequence[str]] | None = None) -> Encoded:
        """Keys and arguments for the hits of these requests; with the names that `key` gave them if they have some."""

    def decode(self, reply: Any, runs: Sequence[Run]) -> Sequence[Hit]:
        """Write the decisions on the hits; says which are refused, or have given back."""


class Group:
    """What may travel in one command: there is one object for each script, in a Cluster for each script and slot."""

    __slots__ = ("script", "slot")

    def __init__(self, script: Script, slot: int = -1) -> None:
        self.script = script
        self.slot = slot


class Part:
    """A request's hits of one group."""

    __slots__ = ("group", "hits", "names", "rest", "waiting")

    def __init__(self, waiting: Waiting, hits: Sequence[Hit], group: Group, names: Sequence[str] | None = None) -> None:
        self.waiting = waiting
        self.hits = hits
        self.group = group
        self.names = names
        """Of the hits' counters, if they are made already: in a Cluster the slot is that of the name which is sent."""
        self.rest: Iterator[Part] | tuple[()] = ()
        """Those of the same request that are to be sent after it, and after what has come meanwhile."""


class Order:
    """One command under way, and whose hits are in it."""

    __slots__ = ("arguments", "asking", "denied", "group", "parts", "runs", "sent", "tries")

    def __init__(self, group: Group, parts: Sequence[Part]) -> None:
        self.group = group
        self.parts = parts
        names = None if parts[0].names is None else [part.names or () for part in parts]
        keys, arguments, self.runs = group.script.encode([part.hits for part in parts], names)
        self.arguments = (len(keys), *keys, *arguments)
        self.tries = 0
        self.sent = 0.0
        """When it was sent last, in seconds of the monotonic clock."""
        self.asking = False
        """It goes to a node of a Cluster that does not have its slot yet, and each time has to say so before."""

        self.denied: Exception | None = None
        """Why that was refused."""

    def asked(self, reply: Any) -> None:
        """What the node has answered to that."""
        if isinstance(reply, Exception):
            self.denied = reply

    def waited_for(self) -> "Order | None":
        """What is left without the requests that are answered by now, which must not be charged; None if all are."""
        parts = [part for part in self.parts if not part.waiting.answered]
        if len(parts) == len(self.parts):
            return self
        if not parts:
            return None
        order = Order(self.group, parts)
        order.tries, order.asking = self.tries, self.asking
        return order

    def by_name(self) -> tuple[str | int, ...]:
        """The command, for a server that has the script."""
        return ("EVALSHA", self.group.script.sha, *self.arguments)

    def in_full(self) -> tuple[str | int, ...]:
        """The command, for one that has not."""
        return ("EVAL", self.group.script.text, *self.arguments)

    def decode(self, reply: Any) -> Sequence[Hit]:
        """Write the decisions on the hits; says which are refused, or have given back."""
        return self.group.script.decode(reply, self.runs)


def largest_bundle(hits: Sequence[Hit]) -> int:
    """Of how many hits it is."""
    return max((len(list(members)) for together, members in groupby(hits, _together) if together), default=0)


def cut(hits: Sequence[Hit], most: int = MOST_IN_PART) -> Iterator[Sequence[Hit]]:
    """The hits in order, in pieces of at most so many; a bundle of more is a piece of its own."""
    piece: list[Hit] = []
    for together, members in groupby(hits, _together):
        for unit in [list(members)] if together else [[hit] for hit in members]:
            if piece and len(piece) + len(unit) > most:
                yield piece
                piece = []
            piece += unit
    if piece:
        yield piece


_together = attrgetter("together")


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
