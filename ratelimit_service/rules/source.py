"""A rules file as it was read: its path, for messages, and its bytes."""

from typing import NamedTuple


class Source(NamedTuple):
    """One rules file; nothing is known yet about what is in it."""

    path: str
    text: bytes
