"""From the bytes of a case to steps: what a client sends, and what its methods and the server do meanwhile.

So that the fuzzer need not find out how frames are made: a byte says which kind of step comes, the next ones what kind
of that.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tests.fuzz.client import MOST
from tests.transports.http2.talk import block, data, frame, headers, message, settings, window

METHODS: Final[Mapping[str, bool]] = {"/t/U": False, "/t/S": True}

_INCREMENTS: Final = (0, 1, 5, 100, 16_384, 65_535, 2**24, MOST)
_BLOCKS: Final = (
    block(),
    block("/t/S"),
    block("/no"),
    block("/t/U", (b"grpc-timeout", b"1S")),
    block("/t/S", (b"grpc-timeout", b"1S")),
    block("/t/U", (b"grpc-encoding", b"gzip")),
    block("/t/U", (b"content-length", b"10")),
    block("/t/U", (b"x-id", b"1")),
    block("/t/U", (b"Upper", b"x")),
    b"\x20\x82\x84\x86",
    b"\x20" + block()[1:],
    block("/t/U", (b"x", b"v" * 100)),
    b"\x40\1x\1y" + block()[1:],
)


class Act(NamedTuple):
    """Something that happens between two reads."""

    name: str
    number: int = 0
    size: int = 0


Step = bytes | Act


def steps(case: bytes) -> Iterator[Step]:
    """In order; bytes that follow bytes are one read."""
    together = b""
    for step in _steps(case):
        if isinstance(step, bytes):
            together += step
        else:
            yield together
            together = b""
            yield step
    yield together


def _steps(case: bytes) -> Iterator[Step]:  # noqa: PLR0912 - a table
    source = _Source(case)
    last = -1
    while source.rest:
        kind = source.byte()
        flag = bool(kind & 16)
        wide = 8 if flag else 0
        match kind & 15:
            case 0:
                yield source.bytes(source.byte())
            case 1:
                yield frame(source.byte(), source.byte(), source.number(), source.bytes(source.byte()))
            case 2:
                last += 2
                yield headers(last, _BLOCKS[0]) + data(last, message(b"?" * source.byte()))
            case 3:
                last += 2
                yield headers(last, _BLOCKS[source.byte() % len(_BLOCKS)], end=flag)
            case 4:
                whole = message(b"!" * (source.byte() << (6 if kind & 32 else 0)))
                yield data(source.number(), whole[: source.byte()] if kind & 64 else whole, end=flag)
            case 5:
                yield window(source.number(), _INCREMENTS[source.byte() & 7])
            case 6:
                yield settings((1 if kind & 32 else 5 if flag else 4, _INCREMENTS[source.byte() & 7]))
            case 7:
                yield frame(3, 0, source.number(), b"\0\0\0\x08")
            case 8:
                yield Act("reply", 0, source.byte() << wide)
            case 9:
                yield Act("send", source.number(), source.byte() << wide)
            case 10:
                yield Act("refuse" if flag else "finish", source.number())
            case 11:
                yield Act("congest" if flag else "decongest")
            case 12:
                yield Act("leave" if flag else "drain")
            case 13:
                yield Act("expire", source.number())
            case 14:
                yield Act("ping" if flag else "refill")
            case _:
                yield frame(9, 4 if flag else 0, max(last, 1), source.bytes(3))


class _Source:
    """A case, byte by byte; when it is over, zeros."""

    def __init__(self, case: bytes) -> None:
        self.rest = case

    def bytes(self, size: int) -> bytes:
        """The next so many, if there are."""
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def byte(self) -> int:
        """The next."""
        return (self.bytes(1) or b"\0")[0]

    def number(self) -> int:
        """Of a stream that a short case may have, or 0."""
        index = self.byte() & 15
        return 2 * index - 1 if index else 0
