"""Streaming calls: what every transport does with a method that may send and receive more than once."""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc
import pytest

from ratelimit_service.api.method import Sender
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.transports.options import GrpcOptions
from tests.loops import run
from tests.transports.methods import WAIT_SECONDS, Echo, Talk, nothing
from tests.transports.servers import OpenTransport, ask, connect, serving, talk

OPEN_A_STREAM = """
import sys, grpc
channel = grpc.insecure_channel(sys.argv[1])
for answer in channel.stream_stream("/tests.Methods/Talk", None, None)(iter([b"hello"])):
    print("answered", flush=True)
"""


def test_messages_go_both_ways_in_order_until_the_client_half_closes(transport: OpenTransport) -> None:
    async def story() -> tuple[list[bytes], grpc.StatusCode, list[bytes | str]]:
        method = Talk()
        async with serving(transport, [], [method]) as (_, address), connect(address) as channel:
            call = talk(channel, method)
            answers = []
            for message in (b"one", b"", b"three"):
                await call.write(message)
                answers.append(await call.read())
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined] # grpc-stubs forgot it
            return answers, await call.code(), await (await method.opened()).ended()

    events = [b"one", b"", b"three", "half close", "closed"]
    assert run(story()) == ([b"one", b"", b"three"], grpc.StatusCode.OK, events)


def test_a_method_may_answer_before_it_is_asked_and_many_times(transport: OpenTransport) -> None:
    async def story() -> list[bytes]:
        method = Talk(nothing)
        async with serving(transport, [], [method]) as (_, address), connect(address) as channel:
            call = talk(channel, method)
            conversation = await method.opened()
            for message in (b"one", b"two", b"three"):
                conversation.stream.send(message)
            conversation.stream.finish()
            conversation.stream.send(b"too late")
            return [answer async for answer in call]

    assert run(story()) == [b"one", b"two", b"three"]


def test_answers_sent_before_an_error_arrive_before_it(transport: OpenTransport) -> None:
    def refuse(stream: Sender, message: bytes | None) -> None:
        stream.send(message or b"")
        stream.finish(RpcError(Status.NOT_FOUND, "gibt es nicht ✗"))
        stream.finish(RpcError(Status.UNKNOWN, "only the first end counts"))

    async def story() -> tuple[bytes, grpc.StatusCode, str, list[bytes | str]]:
        method = Talk(refuse)
        async with serving(transport, [], [method]) as (_, address), connect(address) as channel:
            call = talk(channel, method)
            await call.write(b"first")
            answer = await call.read()
            return answer, await call.code(), await call.details(), await (await method.opened()).ended()

    assert run(story()) == (b"first", grpc.StatusCode.NOT_FOUND, "gibt es nicht ✗", [b"first", "closed"])


def test_a_client_that_half_closes_may_stay_and_listen(transport: OpenTransport) -> None:
    """Health's Watch is such a call: one question, then answers for as long as it lasts."""

    async def story() -> tuple[bytes, bytes]:
        method = Talk(nothing)
        async with serving(transport, [], [method]) as (_, address), connect(address) as channel:
            call = talk(channel, method)
            await call.write(b"question")
            await call.done_writing()
            stream = (await method.opened()).stream
            stream.send(b"one")
            first = await call.read()
            stream.send(b"two")
            return first, await call.read()

    assert run(story()) == (b"one", b"two")


def test_a_client_that_cancels_closes_the_receiver_once(transport: OpenTransport) -> None:
    async def story() -> list[bytes | str]:
        method = Talk(lambda stream, message: stream.send(message or b""))
        async with serving(transport, [Echo()], [method]) as (_, address), connect(address) as channel:
            call = talk(channel, method)
            await call.write(b"hello")
            await call.read()
            conversation = await method.opened()
            call.cancel()
            await conversation.ended()
            conversation.stream.send(b"nobody hears this")
            conversation.stream.finish()
            await ask(channel, Echo(), b"")
        return [event for event in conversation.events if event != "half close"]

    assert run(story()) == [b"hello", "closed"]


def test_a_client_that_vanishes_closes_the_receiver_once(
    transport: OpenTransport, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> list[bytes | str]:
        method = Talk(lambda stream, message: stream.send(message or b""))
        async with serving(transport, [], [method]) as (_, address):
            client = await create_subprocess_exec(sys.executable, "-c", OPEN_A_STREAM, str(address), stdout=PIPE)
            conversation = await method.opened()
            assert client.stdout is not None
            await client.stdout.readline()
            client.kill()
            await client.wait()
            await conversation.ended()
        return [event for event in conversation.events if event in {b"hello", "closed"}]

    assert run(story()) == [b"hello", "closed"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_stream_ends_at_its_deadline(transport: OpenTransport) -> None:
    async def story() -> tuple[grpc.StatusCode, bool]:
        method = Talk(nothing)
        async with serving(transport, [Echo()], [method]) as (_, address), connect(address) as channel:
            await ask(channel, Echo(), b"")  # it is connected, so that the stream is opened before its deadline
            call = talk(channel, method, seconds=1)
            conversation = await method.opened()
            code = await call.code()
            return code, "closed" in await conversation.ended()

    assert run(story()) == (grpc.StatusCode.DEADLINE_EXCEEDED, True)


def test_a_message_that_is_too_large_ends_the_stream(transport: OpenTransport) -> None:
    async def story() -> tuple[grpc.StatusCode, bool]:
        method = Talk()
        options = GrpcOptions(max_message_size=1000)
        async with serving(transport, [], [method], options=options) as (_, address), connect(address) as channel:
            call = talk(channel, method)
            await call.write(b"x" * 1001)
            code = await call.code()
            return code, "closed" in await (await method.opened()).ended()

    assert run(story()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)


def test_an_answer_that_is_too_large_ends_the_stream_with_its_size(transport: OpenTransport) -> None:
    async def story() -> tuple[grpc.StatusCode, str]:
        method = Talk(nothing)
        options = GrpcOptions(max_response_size=1000)
        async with serving(transport, [], [method], options=options) as (_, address), connect(address) as channel:
            call = talk(channel, method)
            (await method.opened()).stream.send(b"x" * 1001)
            return await call.code(), await call.details()

    expected = (grpc.StatusCode.RESOURCE_EXHAUSTED, "the answer has 1001 bytes, the maximum is 1000")
    assert run(story()) == expected


def test_a_client_that_asks_much_before_it_reads_gets_every_answer(transport: OpenTransport) -> None:
    """It is slowed down, not cut: what it asks is not read while too many of its answers are unread."""

    async def story() -> int:
        method = Talk()
        async with serving(transport, [], [method]) as (_, address), connect(address) as channel:
            call = talk(channel, method)

            async def write() -> None:
                for _ in range(800):  # 40 MB: the flow windows of grpcio may grow to 16 each way
                    await call.write(b"x" * 50_000)
                await call.done_writing()

            writing = asyncio.create_task(write())
            await asyncio.wait([writing], timeout=0.5)  # by now it is held back
            assert not writing.done()
            async with asyncio.timeout(WAIT_SECONDS):
                answers = [answer async for answer in call]
                await writing
            return len(answers)

    assert run(story()) == 800


def test_a_client_that_never_reads_loses_its_call(transport: OpenTransport) -> None:
    """Answers nobody reads must not fill the memory."""

    async def story() -> tuple[grpc.StatusCode, bool]:
        method = Talk(nothing)
        async with serving(transport, [], [method]) as (_, address), connect(address) as channel:
            call = talk(channel, method)
            stream = (await method.opened()).stream
            for _ in range(100):
                stream.send(b"x" * 100_000)
            answers = [len(answer) async for answer in _until_it_fails(call)]
            return await call.code(), len(answers) < 100

    assert run(story()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)


@pytest.mark.parametrize("broken", ["open", "receive", "half_close", "closed"])
def test_an_unexpected_exception_ends_a_stream_with_internal(
    transport: OpenTransport, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    class Broken:
        path = "/tests.Methods/Broken"

        def __init__(self, stream: Sender | None = None) -> None:
            self.stream = stream

        def open(self, stream: Sender) -> "Broken":
            self.step("open")
            return Broken(stream)

        def receive(self, _message: bytes) -> None:
            self.step("receive")

        def half_close(self) -> None:
            self.step("half_close")
            assert self.stream is not None
            self.stream.finish()

        def closed(self) -> None:
            self.step("closed")

        def step(self, name: str) -> None:
            if name == broken:
                raise ZeroDivisionError("a secret of the inside")

    async def story() -> tuple[grpc.StatusCode, str]:
        async with serving(transport, [], [Broken()]) as (_, address), connect(address) as channel:
            call = talk(channel, Broken())
            with suppress(grpc.aio.AioRpcError):  # it may be over before all is written
                await call.write(b"")
                await call.done_writing()
            return await call.code(), await call.details()

    code, message = run(story())

    # The call was over when `closed` broke: its own status stands.
    assert code == (grpc.StatusCode.OK if broken == "closed" else grpc.StatusCode.INTERNAL)
    assert "secret" not in message
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "/tests.Methods/Broken failed"


async def _until_it_fails(call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> AsyncIterator[bytes]:
    try:
        async for answer in call:
            yield answer
    except grpc.aio.AioRpcError:
        return
