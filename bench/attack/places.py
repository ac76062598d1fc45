"""Places and memory that a client takes and does not give back: connections, streams, buffers, time."""

import asyncio

from attack.attacker import Attacker
from attack.catalogue import Need, attack
from attack.frames import (
    CHECK,
    NARROW,
    REFLECTION,
    WATCH,
    calls,
    data,
    descriptor,
    field,
    headers,
    message,
    request,
    settings,
    window,
)
from attack.http1 import CLOSE, fetch, json_request
from attack.messages import fresh, new_users
from attack.wire import Wire
from ratelimit_service.commands.load.connection import HEADERS, PING, PREFACE, frame

WAITING = 60
"""Of one counter of the rule `queue`."""

EVERY_CONNECTION = 5_200
"""Of each of two attackers: together a few more than GRPC_MAX_CONNECTIONS."""


async def _again(wire: Wire, count: int, block: bytes, body: bytes) -> None:
    """Send a batch of calls whenever all of the batch before are answered."""
    while True:
        await wire.exchange(calls(wire.numbers(count), block, body), count)


@attack(seconds=4)
async def unread_reflection(attacker: Attacker) -> None:
    """30 connections without a window ask reflection 210 times 16 questions of 44 bytes, each answered with 4.5 KB."""
    asked = message(field(4, b"envoy.service.ratelimit.v3.RateLimitService"))
    block = attacker.block(path=REFLECTION)

    async def client(wire: Wire) -> None:
        for number in wire.numbers(210):
            await wire.spend(headers(number, block) + data(number, asked * 16, end=False), 16 * len(asked))
        await wire.until_closed()

    await attacker.each(30, client, lambda: attacker.open(NARROW))


@attack(seconds=4)
async def unfinished_questions(attacker: Attacker) -> None:
    """20 connections send all of many messages but the last byte."""
    block = attacker.block()
    part = b"\0\0\1\xf0\0" + bytes(16_000)

    async def client(wire: Wire) -> None:
        for number in wire.numbers(900):
            await wire.spend(headers(number, block) + data(number, part, end=False), len(part))
        await wire.until_closed()

    await attacker.each(20, client)


@attack()
async def zero_windows(attacker: Attacker) -> None:
    """20 connections ask as many calls as they may, and give the answers no window."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        for _ in range(9):
            await wire.send(calls(wire.numbers(100), block, attacker.message))
        await wire.until_closed()

    await attacker.each(20, client, lambda: attacker.open(NARROW))


@attack()
async def tiny_windows(attacker: Attacker) -> None:
    """20 connections take their answers byte by byte."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        await wire.send(settings((4, 1)))
        while True:
            numbers = wire.numbers(50)
            expected = wire.streams_ended + 50
            await wire.send(calls(numbers, block, attacker.message))
            while wire.streams_ended < expected:
                await wire.send(b"".join(window(number, 1) for number in numbers))
                await wire.wait()

    await attacker.each(20, client, lambda: attacker.open(NARROW))


@attack()
async def unread_answers(attacker: Attacker) -> None:
    """Four connections ask and ping, and never read."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        wire.stop_reading()
        while True:
            await wire.send(calls(wire.numbers(100), block, attacker.message) + frame(PING, 0, 0, b"12345678") * 20)

    await attacker.each(4, client)


@attack()
async def all_streams(attacker: Attacker) -> None:
    """20 connections open every stream they may, and more, and finish none."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        await wire.send(b"".join(headers(number, block) for number in wire.numbers(1500)))
        await wire.until_closed()

    await attacker.each(20, client)


@attack(seconds=4)
async def slow_headers(attacker: Attacker) -> None:
    """Slowloris: 300 connections send their preface and headers byte by byte."""
    whole = PREFACE + settings() + frame(HEADERS, 0, 1, attacker.block())

    async def client(wire: Wire) -> None:
        for at in range(len(whole)):
            await wire.send(whole[at : at + 1])
            await asyncio.sleep(0.3)
        await wire.until_closed()

    await attacker.each(300, client, lambda: attacker.open(b""))


@attack(seconds=4)
async def silent_connections(attacker: Attacker) -> None:
    """1,000 connections that never say anything."""
    await attacker.each(1000, lambda wire: wire.until_closed(), lambda: attacker.open_raw(attacker.target.port))


@attack(seconds=12, processes=2)
async def connection_slots(attacker: Attacker) -> None:
    """10,400 connections that only greet: more than GRPC_MAX_CONNECTIONS."""
    await attacker.each(EVERY_CONNECTION, lambda wire: wire.until_closed())


@attack(seconds=4)
async def watch_slots(attacker: Attacker) -> None:
    """11 connections with 999 Health/Watch each; another client asks for one."""
    block, body = attacker.block(path=WATCH), message(b"")

    async def client(wire: Wire) -> None:
        for _ in range(9):
            await wire.send(calls(wire.numbers(111), block, body))
        await wire.until_closed()

    async def honest(wire: Wire) -> None:
        # The answer to a Watch comes at once, and the call stays open: one that ends is refused.
        await asyncio.sleep(attacker.left / 2)
        before = attacker.counts.answers["RESOURCE_EXHAUSTED"]
        await wire.call(block, body)
        if attacker.counts.answers["RESOURCE_EXHAUSTED"] > before:
            attacker.harm("another client's Watch ends RESOURCE_EXHAUSTED")
        await wire.until_closed()

    await asyncio.gather(attacker.each(11, client), attacker.each(1, honest))


@attack()
async def connection_churn(attacker: Attacker) -> None:
    """Connections that greet and vanish, 50 at a time."""

    async def client(wire: Wire) -> None:
        await wire.wait()

    await attacker.each(50, client)


@attack()
async def vanishing_clients(attacker: Attacker) -> None:
    """50 clients that reset their connection with 100 calls under way."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        await wire.send(calls(wire.numbers(100), block, attacker.message))

    await attacker.each(50, client)


@attack()
async def deadlines(attacker: Attacker) -> None:
    """50 connections with 900 unfinished calls each, whose deadlines pass one after another."""

    async def client(wire: Wire) -> None:
        out = []
        for at, number in enumerate(wire.numbers(900)):
            out.append(headers(number, attacker.block((b"grpc-timeout", b"%dm" % (500 + 10 * at)))))
        await wire.send(b"".join(out))
        while True:
            ended = wire.streams_ended
            await wire.wait()
            for number in wire.numbers(wire.streams_ended - ended):
                await wire.send(headers(number, attacker.block((b"grpc-timeout", b"9S"))))

    await attacker.each(50, client)


@attack()
async def no_time(attacker: Attacker) -> None:
    """Calls whose deadline is over before they are sent."""
    block = attacker.block((b"grpc-timeout", b"1n"))
    await attacker.each(4, lambda wire: _again(wire, 50, block, attacker.message))


@attack()
async def control(attacker: Attacker) -> None:
    """No attack, to compare with: four clients that send plain calls as fast as they are answered."""
    block = attacker.block()
    await attacker.each(4, lambda wire: _again(wire, 100, block, attacker.message))


@attack()
async def crowd(attacker: Attacker) -> None:
    """200 connections of one host with 30 plain calls each."""
    block = attacker.block()
    await attacker.each(200, lambda wire: _again(wire, 30, block, attacker.message))


@attack()
async def health_checks(attacker: Attacker) -> None:
    """Health/Check as fast as it is answered, of unknown names."""
    block = attacker.block(path=CHECK)
    await attacker.each(4, lambda wire: _again(wire, 50, block, message(field(1, b"unknown"))))


@attack()
async def reflection_flood(attacker: Attacker) -> None:
    """Reflection as fast as it is answered: every file of every service."""
    block = attacker.block(path=REFLECTION)
    asked = message(field(4, b"envoy.service.ratelimit.v3.RateLimitService")) * 16

    async def client(wire: Wire) -> None:
        while True:
            await wire.call(block, asked)

    await attacker.each(4, client)


@attack(Need.RATE_LIMITS, memory=500)
async def new_counters(attacker: Attacker) -> None:
    """Four connections: 256 counters that never were, in each call, as fast as they are answered."""
    await attacker.each(4, lambda wire: fresh(attacker, wire, lambda: new_users(attacker)))


@attack(Need.RATE_LIMITS, Need.HTTP, Need.OURS, seconds=6)
async def queue_memory(attacker: Attacker) -> None:
    """62 connections have as many requests wait in queues as they can: others must find room to wait, too."""
    block = attacker.block()

    async def fill(wire: Wire) -> None:
        for _ in range(15):
            body = message(request(descriptor((b"queue", b"%x" % attacker.random.getrandbits(64)))))
            await wire.send(calls(wire.numbers(WAITING), block, body))
            await asyncio.sleep(0.1)
        await wire.until_closed()

    async def honest() -> None:
        while True:
            await asyncio.sleep(0.5)
            asked = json_request("queue", f"{attacker.random.random()}", CLOSE)
            statuses = [await fetch(attacker, asked) for _ in range(2)]  # the second one waits for half a second
            if [status for status, _ in statuses] != [200, 200]:
                attacker.harm("another one finds no room to wait")

    await asyncio.gather(attacker.each(62, fill), honest())
