"""Hits as they travel: requests cut into parts, and parts put into orders, one command each. Pure. Hot path.

Law: no request keeps Redis from others. A hit takes 4 to 9 µs of Redis, whatever its cost. A part has at most
`MOST_IN_PART` of them, a call `MOST_IN_CALL`, and the next part of a request waits behind what has come meanwhile.
Only a bundle cannot be cut, because it must be one step: the store refuses one of more than `MOST_IN_CALL`.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.waiting import Waiting

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
