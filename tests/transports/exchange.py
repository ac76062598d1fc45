"""Bytes to a service by hand, and what became of them: as a peer sees it that reads frames and knows no library."""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

from hpack import Decoder

from ratelimit_service.system.address import Address, Tcp
from tests.transports.http2.talk import block, data, headers, message
from tests.transports.methods import WAIT_SECONDS, Echo

_MARKS = (1001, 1003)


@dataclass
class Answer:
    """What came back on a stream."""

    status: str = ""
    """Of HTTP and of gRPC; or how it was reset."""
    body: bytes = b""
    explained: bool = False
    """It has a message for people."""
    ended: bool = False


@dataclass
class Outcome:
    """What became of a connection."""

    alive: bool = False
    """A call after all the rest was answered."""
    code: int | None = None
    """Of the GOAWAY that came, if one did."""
    answers: dict[int, Answer] = field(default_factory=dict)


async def exchange(address: Address, sent: bytes, awaited: Collection[int] = (), seconds: float = 0.0) -> Outcome:
    """Sends them, and two calls after one another to see that all before them was taken; then goes.

    An answer may still be on its way then: those awaited have so many seconds more.
    """
    assert isinstance(address, Tcp)
    outcome = Outcome()
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                writer.write(sent)
                decoder = Decoder()
                for mark in _MARKS:
                    writer.write(headers(mark, block(Echo.path)) + data(mark, message(b"mark")))
                    while not outcome.answers.get(mark, Answer()).ended:
                        await _next(reader, decoder, outcome)
                outcome.alive = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        while not all(outcome.answers.get(number, Answer()).ended for number in awaited):
                            await _next(reader, decoder, outcome)
    finally:
        writer.transport.abort()
    for mark in _MARKS:
        outcome.answers.pop(mark, None)
    return outcome


async def _next(reader: asyncio.StreamReader, decoder: Decoder, outcome: Outcome) -> None:
    head = await reader.readexactly(9)
    payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    kind, flags, number = head[3], head[4], int.from_bytes(head[5:], "big")
    answer = outcome.answers.setdefault(number, Answer()) if number else Answer()
    match kind:
        case 0:
            answer.body += payload
        case 1:
            fields = dict(decoder.decode(payload, raw=True))
            for name in b":status", b"grpc-status":
                answer.status = (answer.status + " " + fields.get(name, b"").decode()).strip()
            answer.explained = answer.explained or bool(fields.get(b"grpc-message"))
        case 3 if not answer.ended:
            answer.status, answer.ended = f"reset {int.from_bytes(payload, 'big')}", True
        case 7:
            outcome.code = int.from_bytes(payload[4:8], "big")
    if kind in {0, 1} and flags & 1:
        answer.ended = True
