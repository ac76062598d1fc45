"""Requests that are dear for the store: Redis, and counters as large as a log."""

import asyncio

from attack.attacker import Attacker
from attack.catalogue import Need, attack
from attack.frames import descriptor, message, packed, request, user
from attack.messages import GZIP, again, fresh, new_users
from attack.wire import Wire


@attack(Need.RATE_LIMITS, Need.REDIS)
async def redis_large(attacker: Attacker) -> None:
    """One connection, one request at a time: 1,000 descriptors, packed to 2 KB, for Redis."""
    bomb = packed(request(*(user(b"u%d" % at) for at in range(1000))))
    await attacker.each(1, lambda wire: again(attacker, wire, bomb, GZIP))


@attack(Need.RATE_LIMITS, Need.REDIS)
async def redis_256(attacker: Attacker) -> None:
    """Four connections, one request at a time: 256 new counters in Redis."""
    await attacker.each(4, lambda wire: fresh(attacker, wire, lambda: new_users(attacker)))


@attack(Need.RATE_LIMITS, Need.REDIS, Need.OURS)
async def redis_logs(attacker: Attacker) -> None:
    """One connection, one request at a time: 50 new logs of 65,000 moments each, in Redis."""
    await attacker.each(1, lambda wire: _logs(attacker, wire, 50))


@attack(Need.RATE_LIMITS, Need.REDIS)
async def redis_value(attacker: Attacker) -> None:
    """The gzip bomb of one long value, with counters in Redis: a busy service must not take Redis for lost."""
    bomb = packed(request(user(b"|" * 4_100_000)))
    await attacker.each(1, lambda wire: again(attacker, wire, bomb, GZIP))


@attack(Need.RATE_LIMITS, Need.OURS, memory=500)
async def store_bytes_1(attacker: Attacker) -> None:
    """One request of 855 bytes: 300 logs of 65,000 moments each."""
    body = request(*(descriptor((b"log", b"%d" % at)) for at in range(300)), cost=65_000)
    wire = await attacker.open()
    await wire.call(attacker.block(), message(body))
    await asyncio.sleep(attacker.left)


@attack(Need.RATE_LIMITS, Need.OURS, memory=500)
async def store_bytes(attacker: Attacker) -> None:
    """Requests of 60 bytes with a new log of 65,000 moments each, one after another."""
    await attacker.each(1, lambda wire: _logs(attacker, wire, 1))


async def _logs(attacker: Attacker, wire: Wire, count: int) -> None:
    """New logs, filled by one hit each."""
    block = attacker.block()
    while True:
        start = b"%x" % attacker.random.getrandbits(64)
        body = request(*(descriptor((b"log", start + b"%d" % at)) for at in range(count)), cost=65_000)
        await wire.call(block, message(body))


@attack(Need.RATE_LIMITS, Need.OURS)
async def log_of_ones(attacker: Attacker) -> None:
    """Four connections fill one log of 65,000 moments, one hit each."""
    body = message(request(descriptor((b"log", b"one"))))
    block = attacker.block()

    async def client(wire: Wire) -> None:
        while True:
            expected = wire.streams_ended + 50
            for _ in range(50):
                await wire.ask(block, body)
            await wire.until_ended(expected)

    await attacker.each(4, client)
