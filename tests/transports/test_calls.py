"""Unary calls: what every transport does with a method that answers once."""

import asyncio
import logging
import sys
from asyncio.subprocess import create_subprocess_exec
from urllib.parse import quote

import grpc
import pytest

from ratelimit_service.system.address import Tcp
from ratelimit_service.system.clock import SECOND
from ratelimit_service.transports.options import GrpcOptions
from tests.loops import run
from tests.transports.http2.talk import PREFACE, block, data, frame, headers, message
from tests.transports.methods import WAIT_SECONDS, Break, Echo, Grow, Later, Left, Refuse
from tests.transports.servers import OpenTransport, ask, connect, failure, serving

ASK_A_HUNDRED = """
import sys, grpc
later = grpc.insecure_channel(sys.argv[1]).unary_unary("/tests.Methods/Later", None, None)
calls = [later.future(b"") for _ in range(100)]
calls[0].result()
sys.stdin.read()
"""


def test_an_answer_comes_back_byte_for_byte(transport: OpenTransport) -> None:
    async def story() -> list[bytes]:
        async with serving(transport, [Echo()]) as (_, address), connect(address) as channel:
            return [await ask(channel, Echo(), body) for body in (b"", b"\x00\xff", b"x" * 100_000)]

    assert run(story()) == [b"", b"\x00\xff", b"x" * 100_000]


def test_an_error_arrives_with_its_status_and_its_message_in_unicode(transport: OpenTransport) -> None:
    async def story() -> tuple[grpc.StatusCode, str | None]:
        async with serving(transport, [Refuse()]) as (_, address), connect(address) as channel:
            return await failure(channel, Refuse(), b"")

    assert run(story()) == (grpc.StatusCode.INVALID_ARGUMENT, "größer als 100 %: ✗\n")


@pytest.mark.parametrize("text", ["€" * 1_000, "ab" * 50_000, "a" * 3_000 + "\n€" * 3_000, "\U0001f600" * 2_000])
def test_an_error_with_a_long_message_arrives_with_its_status_and_the_beginning_of_it(
    transport: OpenTransport, text: str
) -> None:
    """Clients refuse trailers of more than 8 KiB, percent-encoded, and report that in place of the status."""

    async def story() -> tuple[grpc.StatusCode, str | None]:
        async with serving(transport, [Refuse(text)]) as (_, address), connect(address) as channel:
            return await failure(channel, Refuse(), b"")

    code, message = run(story())

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message
    assert text.startswith(message)
    assert 1_000 < len(quote(message, " ")) <= 4_096


def test_an_unknown_path_is_unimplemented(transport: OpenTransport) -> None:
    async def story() -> list[grpc.StatusCode]:
        async with serving(transport, [Echo()]) as (_, address), connect(address) as channel:
            paths = ["/tests.Methods/Nothing", "/tests.Methods/Echo/", "/tests.methods/echo", "/"]
            return [(await failure(channel, path, b""))[0] for path in paths]

    assert run(story()) == [grpc.StatusCode.UNIMPLEMENTED] * 4


def test_a_question_that_is_too_large_is_refused_and_the_connection_goes_on(transport: OpenTransport) -> None:
    async def story() -> tuple[grpc.StatusCode, bytes]:
        options = GrpcOptions(max_message_size=1000)
        async with serving(transport, [Echo()], options=options) as (_, address), connect(address) as channel:
            code, _ = await failure(channel, Echo(), b"x" * 1001)
            return code, await ask(channel, Echo(), b"x" * 1000)

    assert run(story()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, b"x" * 1000)


def test_an_answer_that_is_too_large_is_refused_with_its_size(transport: OpenTransport) -> None:
    async def story() -> tuple[tuple[grpc.StatusCode, str | None], int]:
        options = GrpcOptions(max_response_size=1000)
        async with serving(transport, [Grow()], options=options) as (_, address), connect(address) as channel:
            return await failure(channel, Grow(), b"1001"), len(await ask(channel, Grow(), b"1000"))

    expected = (grpc.StatusCode.RESOURCE_EXHAUSTED, "the answer has 1001 bytes, the maximum is 1000")
    assert run(story()) == (expected, 1000)


def test_an_answer_may_come_later_and_in_another_order(transport: OpenTransport) -> None:
    async def story() -> list[bytes]:
        later = Later()
        async with serving(transport, [later]) as (_, address), connect(address) as channel:
            first = asyncio.create_task(ask(channel, later, b"1"))
            reply_first = await later.asked()
            second = asyncio.create_task(ask(channel, later, b"2"))
            reply_second = await later.asked()
            reply_second(b"second")
            answers = [await second]
            reply_first(b"first")
            return [*answers, await first]

    assert run(story()) == [b"second", b"first"]


def test_only_the_first_reply_counts(transport: OpenTransport) -> None:
    async def story() -> bytes:
        later = Later()
        async with serving(transport, [later]) as (_, address), connect(address) as channel:
            call = asyncio.create_task(ask(channel, later, b""))
            reply = await later.asked()
            reply(b"first")
            reply(b"second")
            return await call

    assert run(story()) == b"first"


def test_a_reply_to_a_cancelled_call_is_dropped(transport: OpenTransport, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> bytes:
        later = Later()
        async with serving(transport, [later, Echo()]) as (_, address), connect(address) as channel:
            call = asyncio.create_task(ask(channel, later, b""))
            reply = await later.asked()
            call.cancel()
            await ask(channel, Echo(), b"")  # on the same connection: the server has seen the cancellation
            reply(b"too late")
            reply(b"and again")
            return await ask(channel, Echo(), b"well")

    assert run(story()) == b"well"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("why", ["it is cancelled", "its deadline"])
@pytest.mark.parametrize("taken", [True, False])
def test_a_call_that_ends_before_its_answer_is_taken_back_once(transport: OpenTransport, why: str, taken: bool) -> None:
    asked = []

    def cancel() -> bool:
        asked.append(taken)
        return taken

    async def story() -> bytes:
        later = Later(cancel)
        async with serving(transport, [later, Echo()]) as (_, address), connect(address) as channel:
            await ask(channel, Echo(), b"")  # it is connected, so that the next call arrives before its deadline
            call = asyncio.create_task(ask(channel, later, b"", seconds=1 if why == "its deadline" else WAIT_SECONDS))
            reply = await later.asked()
            if why == "its deadline":
                await asyncio.wait([call])
                assert isinstance(call.exception(), grpc.aio.AioRpcError)
            else:
                call.cancel()
            async with asyncio.timeout(WAIT_SECONDS):
                while not asked:  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0.005)
            if not taken:
                reply(b"too late")
            call = asyncio.create_task(ask(channel, later, b""))
            (await later.asked())(b"in time")
            assert await call == b"in time"
        return b"well"

    assert run(story()) == b"well"
    assert asked == [taken]


def test_a_client_that_vanishes_with_calls_in_flight_harms_nobody(
    transport: OpenTransport, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> bytes:
        later = Later()
        async with serving(transport, [later, Echo()]) as (_, address), connect(address) as channel:
            client = await create_subprocess_exec(sys.executable, "-c", ASK_A_HUNDRED, str(address))
            replies = [await later.asked() for _ in range(100)]
            client.kill()
            for reply in replies[:50]:
                reply(b"on its way")  # the service may not know yet
            await client.wait()
            await ask(channel, Echo(), b"")
            for reply in replies[50:]:
                reply(b"too late")
            return await ask(channel, Echo(), b"well")

    assert run(story()) == b"well"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_client_that_leaves_while_its_answer_waits_for_room_is_nothing_to_warn_of(
    transport: OpenTransport, caplog: pytest.LogCaptureFixture
) -> None:
    no_room = frame(4, 0, 0, (4).to_bytes(2, "big") + (0).to_bytes(4, "big"))

    async def story() -> bytes:
        async with serving(transport, [Echo()]) as (_, address), connect(address) as channel:
            assert isinstance(address, Tcp)
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(PREFACE + no_room + headers(1, block(Echo.path)) + data(1, message(b"?")))
            beginning_of_answer = b"\x01\x04" + (1).to_bytes(4, "big")
            async with asyncio.timeout(WAIT_SECONDS):
                await reader.readuntil(beginning_of_answer)
                writer.write_eof()
                await reader.read()
            writer.close()
            return await ask(channel, Echo(), b"well")

    assert run(story()) == b"well"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_call_ends_at_its_deadline(transport: OpenTransport) -> None:
    async def story() -> tuple[grpc.StatusCode, bytes]:
        later = Later()
        async with serving(transport, [later, Echo()]) as (_, address), connect(address) as channel:
            await ask(channel, Echo(), b"")  # it is connected, so that the next call arrives before its deadline
            try:
                await ask(channel, later, b"", seconds=1)
            except grpc.aio.AioRpcError as error:
                (await later.asked())(b"too late")
                return error.code(), await ask(channel, Echo(), b"well")
        raise AssertionError

    assert run(story()) == (grpc.StatusCode.DEADLINE_EXCEEDED, b"well")


def test_a_method_knows_how_long_its_caller_waits(transport: OpenTransport) -> None:
    async def story() -> list[bytes]:
        async with serving(transport, [Left()]) as (_, address), connect(address) as channel:
            unhurried: bytes = await channel.unary_unary(Left.path, None, None)(b"")
            return [unhurried, await ask(channel, Left(), b"", seconds=100)]

    unhurried, left = run(story())
    assert unhurried == b"None"
    assert 40 * SECOND < int(left) < 102 * SECOND  # grpc rounds up what it sends


def test_an_unexpected_exception_is_internal_and_logged_once(
    transport: OpenTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """The client learns nothing of the inside; the log has the traceback."""

    async def story() -> tuple[grpc.StatusCode, str | None]:
        async with serving(transport, [Break()]) as (_, address), connect(address) as channel:
            return await failure(channel, Break(), b"")

    code, message = run(story())

    assert code == grpc.StatusCode.INTERNAL
    assert message == "internal error; the log of the service says more"
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "/tests.Methods/Break failed"
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_many_calls_at_once_over_several_connections_each_get_their_own_answer(transport: OpenTransport) -> None:
    async def story() -> list[bytes]:
        async with serving(transport, [Echo()]) as (_, address):
            channels = [connect(address) for _ in range(5)]
            answers = await asyncio.gather(*(ask(channels[n % 5], Echo(), str(n).encode()) for n in range(1000)))
            for channel in channels:
                await channel.close(None)
            return answers

    assert run(story()) == [str(n).encode() for n in range(1000)]


def test_a_connection_is_closed_at_its_age_and_its_call_finishes(transport: OpenTransport) -> None:
    async def story() -> tuple[str, bytes]:
        later = Later()
        options = GrpcOptions(max_connection_age=SECOND // 10)
        async with serving(transport, [later], options=options) as (_, address), connect(address) as channel:
            call = asyncio.create_task(ask(channel, later, b""))
            reply = await later.asked()
            state = channel.get_state()
            while state is grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(state)
                state = channel.get_state()
            reply(b"done")
            return state.name, await call

    assert run(story()) == ("IDLE", b"done")


def test_pings_of_a_client_without_calls_are_welcome(transport: OpenTransport) -> None:
    """Envoy and grpc's clients keep connections alive; `too_many_pings` would cut them."""

    async def story() -> bool:
        async with serving(transport, [Echo()]) as (_, address):
            pinging = [
                ("grpc.keepalive_time_ms", 1000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0),
            ]
            async with grpc.aio.insecure_channel(str(address), pinging) as channel:
                await ask(channel, Echo(), b"")
                changed = asyncio.create_task(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
                done, _ = await asyncio.wait([changed], timeout=5)
                changed.cancel()
                return bool(done)

    assert not run(story())


def test_an_address_may_be_ipv6(transport: OpenTransport) -> None:
    async def story() -> tuple[str, bytes]:
        async with serving(transport, [Echo()], address=Tcp("::1", 0)) as (_, address), connect(address) as channel:
            return str(address).rpartition(":")[0], await ask(channel, Echo(), b"six")

    assert run(story()) == ("[::1]", b"six")
