"""Deadlines of the calls of all connections that are not answered at once. Hot path.

A timer wheel: calls wait in buckets of 10 ms, by when they are to be looked at, and time takes one bucket after the
other. Almost all calls are answered before; their entries stay where they are until then, so that an answer costs one
entry of a dict and nothing else. A deadline that is further away than HORIZON is looked at once in that time: no entry
of a call that is answered stays longer, whatever its deadline was.
"""

from collections.abc import Iterator
from typing import Final, Protocol

from ratelimit_service.system.clock import SECOND

GRAIN: Final = SECOND // 100
"""Microseconds: a call may end so much later than its deadline."""

HORIZON: Final = SECOND


class Timed(Protocol):
    """Calls of one connection."""

    @property
    def timed(self) -> dict[int, int]:
        """When each call is over that has a deadline and is not answered."""

    def expire(self, number: int) -> None:
        """The deadline of this call is over."""


class Deadlines:
    """By connection and stream; times are microseconds of any clock that does not go back."""

    __slots__ = ("_bucket", "_buckets", "_when")

    def __init__(self) -> None:
        self._buckets: dict[int, list[tuple[Timed, int]]] = {}
        self._when = -1
        """The deadline that was added last: calls of one read share it, almost always."""
        self._bucket: list[tuple[Timed, int]] = []
        """Where that is."""

    def __bool__(self) -> bool:
        """Whether any may come to be over."""
        return bool(self._buckets)

    def add(self, calls: Timed, number: int, when: int, now: int) -> None:
        """A call, once."""
        calls.timed[number] = when
        if when != self._when:
            self._when, self._bucket = when, self._bucket_of(when, now)
        self._bucket.append((calls, number))

    def _bucket_of(self, when: int, now: int) -> list[tuple[Timed, int]]:
        return self._buckets.setdefault(-(-min(when, now + HORIZON) // GRAIN), [])

    def over(self, now: int) -> Iterator[tuple[Timed, int]]:
        """Those whose time has come, each once. Others may be added meanwhile."""
        for bucket in sorted(each for each in self._buckets if each <= now // GRAIN):
            self._when = -1
            for calls, number in self._buckets.pop(bucket):
                when = calls.timed.get(number)
                if when is None:
                    continue
                if when > now:
                    self._bucket_of(when, now).append((calls, number))
                else:
                    del calls.timed[number]
                    yield calls, number
