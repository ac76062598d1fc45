"""Reads replies of Redis. One that has not the shape it should have is a Fault, whatever it is. Pure.

A proxy, or a program that only resembles Redis, may answer a command with anything. Replies belong to commands by their
order alone, so after one that does not fit no other reply of its connection is believed either: `protocol` is a fault
that closes it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ratelimit_service.stores.redis.faults import Fault
from ratelimit_service.system.clock import SECOND

MISFIT: Final = (TypeError, ValueError, LookupError, AttributeError, OverflowError)
"""The exceptions of Python when a value is read as another kind than it is."""


def misfit(command: str) -> Fault:
    """The fault of a reply to this command."""
    return Fault("protocol", f"its reply to {command} has an unexpected form")


@contextmanager
def fitting(command: str) -> Iterator[None]:
    """Reads a reply to this command: raises Fault when what is done with it cannot be done."""
    try:
        yield
    except MISFIT as error:
        raise misfit(command) from error


def integers(reply: Any, count: int) -> Iterator[int]:
    """The integers of a list of so many; raises one of MISFIT if it is something else."""
    # The sum is another number, or none, where one of them is: in a twentieth of the time of a loop.
    if type(reply) is not list or len(reply) != count or type(sum(reply)) is not int:
        raise ValueError(count)
    return iter(reply)


def text(reply: Any) -> bytes:
    """A reply that is a text; TypeError if not."""
    if not isinstance(reply, bytes):
        raise TypeError(type(reply))
    return reply


@fitting("TIME")
def read_time(reply: Any) -> int:
    """The reply to TIME in microseconds. Raises Fault."""
    seconds, microseconds = reply
    return int(seconds) * SECOND + int(microseconds)
