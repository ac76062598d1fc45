"""Stopping: calls in flight finish, then streams end, and the grace is the most that it takes."""

import asyncio
import time

import grpc
import pytest

from ratelimit_service.transports.options import GrpcOptions
from tests.loops import run
from tests.transports.methods import Echo, Later, Talk, nothing
from tests.transports.servers import LOCALHOST, OpenTransport, ask, connect, deaf, failure, serving, talk


def test_a_call_in_flight_is_answered_while_new_ones_are_refused(transport: OpenTransport) -> None:
    async def story() -> tuple[bytes, grpc.StatusCode]:
        later = Later()
        async with serving(transport, [later, Echo()]) as (served, address), connect(address) as channel:
            call = asyncio.create_task(ask(channel, later, b""))
            reply = await later.asked()
            stopping = asyncio.create_task(served.stop(30))
            await deaf(address)
            async with connect(address) as newcomer:
                refused, _ = await failure(newcomer, Echo(), b"")
            assert not stopping.done()
            reply(b"still here")
            answer = await call
            await stopping
            return answer, refused

    assert run(story()) == (b"still here", grpc.StatusCode.UNAVAILABLE)


def test_a_call_that_is_never_answered_is_cut_when_the_grace_is_over(transport: OpenTransport) -> None:
    async def story() -> bool:
        later = Later()
        async with serving(transport, [later]) as (served, address), connect(address) as channel:
            call = asyncio.create_task(ask(channel, later, b""))
            reply = await later.asked()
            await served.stop(0.05)
            reply(b"too late")
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        return True

    assert run(story())


def test_an_open_stream_does_not_hold_up_a_stop(transport: OpenTransport) -> None:
    async def story() -> tuple[grpc.StatusCode, list[bytes | str], float]:
        method = Talk(nothing)
        async with serving(transport, [], [method]) as (served, address), connect(address) as channel:
            call = talk(channel, method)
            conversation = await method.opened()
            before = time.monotonic()
            await served.stop(60)
            return await call.code(), conversation.events, time.monotonic() - before

    code, events, seconds = run(story())

    assert code == grpc.StatusCode.UNAVAILABLE
    assert events == ["closed"]
    assert seconds < 30


def test_streams_outlive_the_unary_calls(transport: OpenTransport) -> None:
    """A stream ends when the last call in flight has its answer, not before."""

    async def story() -> tuple[bytes, bytes, grpc.StatusCode]:
        later, method = Later(), Talk(nothing)
        async with serving(transport, [later], [method]) as (served, address), connect(address) as channel:
            call = talk(channel, method)
            stream = (await method.opened()).stream
            asked = asyncio.create_task(ask(channel, later, b""))
            reply = await later.asked()
            stopping = asyncio.create_task(served.stop(30))
            await deaf(address)
            stream.send(b"still open")
            heard = await call.read()
            reply(b"answered")
            answer = await asked
            await stopping
            return heard, answer, await call.code()

    assert run(story()) == (b"still open", b"answered", grpc.StatusCode.UNAVAILABLE)


def test_a_stream_that_is_cut_hears_of_it_before_stop_returns(transport: OpenTransport) -> None:
    async def story() -> list[bytes | str]:
        method = Talk(nothing)
        async with serving(transport, [], [method]) as (served, address), connect(address) as channel:
            talk(channel, method)
            conversation = await method.opened()
            await served.stop(0)
            return list(conversation.events)

    assert run(story()) == ["closed"]


def test_stopping_twice_or_before_starting_does_nothing(transport: OpenTransport) -> None:
    async def story() -> bool:
        served = transport(GrpcOptions())
        await served.stop(1)
        await served.start([Echo()], [], [LOCALHOST])
        await served.stop(1)
        await served.stop(1)
        return True

    assert run(story())
