"""Hits as they travel: requests cut into parts, and parts put into orders, one command each. Pure. Hot path."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ratelimit_service.stores.redis.waiting import Waiting
from ratelimit_service.verdict import Hit

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
        """The name of its counter."""

    def encode(self, requests: Sequence[Sequence[Hit]]) -> Encoded:
        """Keys and arguments for the hits of these requests."""

    def decode(self, reply: Any, runs: Sequence[Run]) -> Sequence[Hit]:
        """Write the decisions on the hits; says which are refused, or have given back."""


class Group:
    """What may travel in one command: there is one object for each script, in a Cluster for each script and slot."""

    __slots__ = ("script", "slot")

    def __init__(self, script: Script, slot: int = -1) -> None:
        self.script = script
        self.slot = slot


class Part(NamedTuple):
    """A request's hits of one group."""

    waiting: Waiting
    hits: Sequence[Hit]
    group: Group


class Order:
    """One command under way, and whose hits are in it."""

    __slots__ = ("arguments", "asking", "group", "parts", "runs", "tries")

    def __init__(self, group: Group, parts: Sequence[Part]) -> None:
        self.group = group
        self.parts = parts
        keys, arguments, self.runs = group.script.encode([part.hits for part in parts])
        self.arguments = (len(keys), *keys, *arguments)
        self.tries = 0
        self.asking = False
        """It goes to a node of a Cluster that does not have its slot yet, and each time has to say so before."""

    def by_name(self) -> tuple[str | int, ...]:
        """The command, for a server that has the script."""
        return ("EVALSHA", self.group.script.sha, *self.arguments)

    def in_full(self) -> tuple[str | int, ...]:
        """The command, for one that has not."""
        return ("EVAL", self.group.script.text, *self.arguments)

    def decode(self, reply: Any) -> Sequence[Hit]:
        """Write the decisions on the hits; says which are refused, or have given back."""
        return self.group.script.decode(reply, self.runs)
