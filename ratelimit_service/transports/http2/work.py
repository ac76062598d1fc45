"""How long what a client sends keeps us busy, in microseconds as measured, so that others have their turn. Hot path.

In the 256 KiB of one read there is room for 25,000 frames, for 60,000 fields that nobody has seen, for 30,000 questions
on streams, or for requests with 25,000 descriptors; and each change of a window may move the answers of 1,000 streams.
"""

from typing import Final

MOST: Final = 4_000
"""For one client at once; what is left comes in the next turn of the loop."""

MOST_BYTES: Final = 16 * 1024
"""Of whole questions that are read before it is reckoned how long they take."""

OF_FRAME: Final = 2
"""Any but those of a whole question."""
OF_CALL: Final = 4
"""To make a stream for one that does not come whole."""

_USUAL_BYTES: Final = 128
"""Of a question: longer ones have many descriptors."""


def of_questions(count: int, size: int) -> int:
    """To answer so many, of so many bytes together."""
    return 4 * count + max(0, size - count * _USUAL_BYTES) // 2


def of_message(size: int) -> int:
    """To answer one on a stream."""
    return 10 + size // 2


def of_block(fields: int, size: int) -> int:
    """To decode headers, of so many bytes; strings in Huffman's code take most."""
    return 8 + 5 * fields + size // 4


def of_streams(count: int) -> int:
    """To change the windows of so many."""
    return count // 16


def of_blocked(count: int) -> int:
    """To look through so many whose answers wait for those that may leave."""
    return count // 3
