"""HTTP work has slots: of parsing and beginning an answer, one piece in each iteration of the loop, whatever comes."""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from ratelimit_service.api.health import Health
from ratelimit_service.server.admin.connection import (
    READ_BYTES,
    AiohttpHandler,
    HttpConnection,
    HttpConnections,
    LoopSlots,
    WrongProtocol,
)
from ratelimit_service.system.address import Tcp
from ratelimit_service.telemetry.logs import ThrottledLog
from tests.admin.conftest import RULES
from tests.admin.service import START_SECONDS, Service, running
from tests.clocks import Clock

Reads = list[tuple[int, int]]
Run = Callable[[Coroutine[Any, Any, Reads]], Reads]

LAST = b"GET /healthcheck HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
CHUNKS = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 40_000


class Loop:
    """Counts the turns of the running loop."""

    def __init__(self) -> None:
        self.turn = 0
        self._loop = asyncio.get_running_loop()
        self._count()

    def _count(self) -> None:
        self.turn += 1
        self._loop.call_soon(self._count)


class Parser(asyncio.Protocol):
    """Stands where aiohttp does, and notes in which iteration of the loop it got how many bytes."""

    is_answering = False

    def __init__(self, loop: Loop, reads: Reads, lost: asyncio.Queue[None]) -> None:
        self._loop = loop
        self._reads = reads
        self._lost = lost

    def data_received(self, data: bytes) -> None:
        self._reads.append((self._loop.turn, len(data)))
        if b"unreadable" in data:
            raise KeyError(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.put_nowait(None)


async def parsed(sent: Sequence[bytes]) -> Reads:
    """The reads of a parser, each with its iteration of the loop, each of these sent on a connection of its own."""
    loop, turns, lost, reads = Loop(), LoopSlots(), asyncio.Queue[None](), Reads()
    warnings = ThrottledLog(logging.getLogger("tests"), Clock())
    connections, wrong_protocol = HttpConnections(100, warnings), WrongProtocol("HTTP", Tcp("", 8080), [], warnings)

    def connection() -> HttpConnection:
        parser = Parser(loop, reads, lost)
        return HttpConnection(connections, turns, lambda: cast(AiohttpHandler, parser), wrong_protocol)

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    async with asyncio.timeout(START_SECONDS):
        writers = [(await asyncio.open_connection(*server.sockets[0].getsockname()))[1] for _ in sent]
        for writer, data in zip(writers, sent, strict=True):
            writer.write(data)
            writer.write_eof()
        for _ in sent:
            await lost.get()
    for writer in writers:
        writer.close()
    server.close()
    return reads


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_turn_of_the_loop_parses_one_small_read_of_all_connections_together(run: Run) -> None:
    reads = run(parsed([CHUNKS] * 4))

    assert sum(size for _, size in reads) == 4 * len(CHUNKS)
    assert max(size for _, size in reads) <= READ_BYTES
    assert len({turn for turn, _ in reads}) == len(reads)


def test_bytes_at_which_the_parser_fails_are_one_line_without_them(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(parsed([b"GET /unreadable HTTP/1.1\r\n\r\n"] * 3))

    line = "a client sends bytes that are not HTTP/1.1 to the HTTP port 8080 (KeyError) (from 127.0.0.1)"
    assert [record.getMessage() for record in caplog.records] == [f"{line}; logged at most once a minute"]


class NotingHealth(Health):
    """Notes how often, and in which iterations of the loop, it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: Loop | None = None
        self.turns: list[int] = []
        self.asked = 0

    @property
    def serving(self) -> bool:
        self.asked += 1
        if self.loop is not None:
            self.turns.append(self.loop.turn)
        return super().serving


def test_a_turn_of_the_loop_begins_one_answer_of_all_connections_together(tmp_path: Path) -> None:
    health = NotingHealth()
    with running(tmp_path, RULES, health=health) as service:

        async def count_turns() -> None:
            health.loop = Loop()

        service.do(count_turns())
        clients = [socket.create_connection(service.http[0], START_SECONDS) for _ in range(8)]
        for client in clients:
            client.sendall(b"GET /healthcheck HTTP/1.1\r\nHost: here\r\n\r\n" * 29 + LAST)
        answers = [read_all(client).count(b"\r\n\r\nOK") for client in clients]

    assert answers == [30] * 8
    assert len(set(health.turns)) == len(health.turns) == 240


def test_what_follows_a_refused_upload_is_dropped_and_its_answer_is_read(service: Service) -> None:
    with socket.create_connection(service.http[0], START_SECONDS) as client:
        client.sendall(b"POST /nowhere HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n")
        answer = client.makefile("rb").read()
        with pytest.raises(ConnectionError):
            client.sendall(b"1\r\nx\r\n" * 3_000_000)

    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")


def test_an_upload_that_is_too_large_is_sent_whole_and_its_refusal_is_read(service: Service) -> None:
    reply = service.post(b"x" * 1_000_000)

    assert (reply.status, reply.text) == (413, "the body is larger than 131072 bytes (HTTP_MAX_BODY_SIZE)\n")


def read_all(client: socket.socket) -> bytes:
    """What comes until the service closes the connection."""
    with client:
        return client.makefile("rb").read()
