"""What a client's bytes cost, in nanoseconds: so that a step of a connection ends in time. Hot path.

In the 256 KiB of one read there is room for 25,000 frames, for 60,000 fields that nobody has seen, for 30,000 questions
on streams, or for requests with 25,000 descriptors; and each change of a window may move the answers of 1,000 streams.

This is reckoned before the work is done, by what as many bytes may ask for; shares go by the clock (`shares`).
`bench/work.py` compares both: no step may take more than 1.5 times as long as reckoned.
"""

from typing import Final

STEP: Final = 1_000_000
"""Of one connection, before it is asked whose turn it is."""

MOST_BYTES: Final = 4 * 1024
"""Of whole questions that are read before it is reckoned how long they take."""

OF_FRAME: Final = 700
"""Any but those of a whole question."""
OF_SETTINGS: Final = 600
"""More for a frame that changes them."""
OF_PART: Final = 800
"""More for a piece of a message."""
OF_CALL: Final = 4_000
"""To make a stream for one that does not come whole."""
OF_ERROR: Final = 3_000
"""To write why a call failed."""
_OF_MESSAGE: Final = 3_000
"""More for a question that does not come whole, to take it out of its pieces, and to answer it."""
_OF_GZIP: Final = 4_000
"""To unpack one."""

_OF_QUESTION: Final = 7_000
_USUAL_BYTES: Final = 64
"""Of a question: longer ones may have many descriptors."""
_MOST_BYTES: Final = 3_000
"""Of those that may be descriptors: of so many there may be a hundred, with a limit each."""


def of_questions(count: int, size: int) -> int:
    """To answer so many, of so many bytes together."""
    return _OF_QUESTION * count + 900 * min(max(0, size - count * _USUAL_BYTES), _MOST_BYTES * count)


def of_message(size: int, *, gzip: bool) -> int:
    """To answer one that did not come whole."""
    return _OF_MESSAGE + of_questions(1, size) + (_OF_GZIP if gzip else 0)


def of_block(fields: int, size: int) -> int:
    """To decode headers, of so many bytes; strings in Huffman's code take most."""
    return 2_000 + 2_500 * fields + 150 * size


def of_fields(count: int) -> int:
    """To look up so many."""
    return 500 * count


def of_streams(count: int) -> int:
    """To change the windows of so many."""
    return 60 * count


def of_blocked(count: int) -> int:
    """To look through so many whose answers wait for those that may leave."""
    return 330 * count
