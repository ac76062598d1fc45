"""A rule: one limit of the rules file, with all that is known about it when the file is read. Hot path."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple, Self

from ratelimit_service.algorithms import Algorithm, open_algorithm
from ratelimit_service.model import Limit
from ratelimit_service.tally import Path, Tallies, Tally

Entries = tuple[tuple[str, str], ...]


class Place(NamedTuple):
    """Where in the rules files something stands; line and column count from 1."""

    path: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


class Level(NamedTuple):
    """What one level of descriptors on the way to a rule contributes to its name and to its counters."""

    name: str
    """The level in metrics: `key`, `key_value` or `key_pattern`."""
    shared: str | None = None
    """With `share_threshold`, the value's pattern: all values that fit it share one counter."""
    by_value: bool = False
    """Metrics have the request's value here, not the rule's."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One limit, or its absence when `limit` is None: such a rule is unlimited."""

    domain: str
    levels: tuple[Level, ...]
    limit: Limit | None
    algorithm: Algorithm
    name: str = ""
    replaces: frozenset[str] = frozenset()
    shadow: bool = False
    quota: bool = False
    detailed: bool = False
    """With `detailed_metric`, an empty value shows in metrics too."""
    metadata: Mapping[str, Any] | None = None
    place: Place | None = None
    near: int = 0
    """How much of the limit may be used before it counts as near the limit."""
    tally: Tally = field(default_factory=Tally)
    tallies: Tallies | None = None
    """For a rule whose metrics have values of requests in their names."""
    override: bool = False
    """The limit came with the request."""

    @property
    def path(self) -> Path:
        """The rule's name in metrics and on pages: the domain, then each level."""
        return (self.domain, *(level.name for level in self.levels))

    @classmethod
    def overriding(cls, domain: str, limit: Limit, near: int, tally: Tally) -> Self:
        """The rule that a limit sent with the request makes."""
        return cls(domain, (), limit, open_algorithm("fixed_window"), near=near, tally=tally, override=True)

    def __repr__(self) -> str:
        return f"<Rule {'.'.join(self.path)} at {self.place}>"


def tally_of(rule: Rule, entries: Entries) -> Tally:
    """Where a hit of this rule by these entries is counted."""
    tallies = rule.tallies
    if tallies is None:
        return rule.tally
    return tallies.of(metric_path(rule, entries))


def metric_path(rule: Rule, entries: Entries) -> Path:
    """The name in metrics of a hit of this rule by these entries."""
    return (
        rule.domain,
        *(
            level.name if not level.by_value else f"{key}_{value}" if value or rule.detailed else key
            for level, (key, value) in zip(rule.levels, entries, strict=True)
        ),
    )


def counter_key(rule: Rule, entries: Entries) -> str:
    """The name of the counter that this rule and these entries share.

    No two rules, and no two lists of entries under one rule, ever have the same: what separates the parts is escaped
    inside them, a shared level's name (its pattern may stand twice at one level, below `a*` and `a`) is set off from a
    value by `~`, and the end tells the way of counting and the window.
    A very long name stands as its digest, so that a counter's size does not depend on what clients send.
    """
    limit = rule.limit
    assert limit is not None, "an unlimited rule has no counter"
    parts = [_escape(rule.domain)]
    if rule.override:
        parts += [f"{_escape(key)}={_escape(value)}" for key, value in entries]
        mark = "override"
    else:
        parts += [
            f"{_escape(key)}={_escape(value)}" if level.shared is None else f"{_escape(key)}~{_escape(level.name)}"
            for level, (key, value) in zip(rule.levels, entries, strict=True)
        ]
        mark = ""
    key = "|".join(parts)
    if len(key) > _LONGEST_KEY:
        key = f"{parts[0]}|%{sha256(key.encode()).hexdigest()}"
    return f"{key}|{mark}{rule.algorithm.name}/{limit.window}"


def near_threshold(requests: int, ratio: float) -> int:
    """How much of a limit may be used before it counts as near: upstream multiplies in 32-bit floats, so this does."""
    return int(_float32(_float32(requests) * _float32(ratio)))


def _float32(number: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


_LONGEST_KEY = 500
_SEPARATORS = str.maketrans({"%": "%25", "|": "%7C", "=": "%3D", "~": "%7E"})


def _escape(part: str) -> str:
    return part.translate(_SEPARATORS)
