"""Requests that are small to send and dear to read: what one message may cost."""

import asyncio
import gzip
import random
from collections.abc import Callable
from itertools import count

from attack.attacker import Attacker
from attack.catalogue import Need, attack
from attack.frames import calls, data, descriptor, field, headers, message, packed, request, user
from attack.proc import children
from attack.wire import Wire
from ratelimit_service.commands.load.connection import frame

GZIP = (b"grpc-encoding", b"gzip")
OWN_LIMIT = field(1, 1) + field(2, 1)
"""One a second, as the request says it (RateLimitDescriptor.limit)."""
OWN = field(2, field(2, OWN_LIMIT))
"""A descriptor of six bytes that has one, and no entry."""


async def again(attacker: Attacker, wire: Wire, body: bytes, *more: tuple[bytes, bytes]) -> None:
    """The same call, each when the one before was answered."""
    block = attacker.block(*more)
    while True:
        await wire.call(block, body)


async def fresh(attacker: Attacker, wire: Wire, make: Callable[[], bytes]) -> None:
    """Calls one after another, each with a message of its own."""
    block = attacker.block()
    while True:
        await wire.call(block, message(make()))


def new_users(attacker: Attacker) -> bytes:
    """A request of 256 descriptors that never came before."""
    start = b"%x" % attacker.random.getrandbits(64)
    return request(*(user(start + b"%d" % at) for at in range(256)))


@attack(Need.RATE_LIMITS)
async def gzip_value(attacker: Attacker) -> None:
    """One connection, one request of 4 KB at a time: a value of 4.1 million characters, packed."""
    bomb = packed(request(user(b"|" * 4_100_000)))
    await attacker.each(1, lambda wire: again(attacker, wire, bomb, GZIP))


@attack(Need.RATE_LIMITS)
async def gzip_value_20(attacker: Attacker) -> None:
    """The same on 20 connections."""
    bomb = packed(request(user(b"|" * 4_100_000)))
    await attacker.each(20, lambda wire: again(attacker, wire, bomb, GZIP))


@attack(Need.RATE_LIMITS)
async def big_value(attacker: Attacker) -> None:
    """Four connections, one request at a time: a value of 60 KB that has to be escaped, as a header through Envoy."""
    body = message(request(user(b"=" * 60_000)))
    await attacker.each(4, lambda wire: again(attacker, wire, body))


@attack(Need.RATE_LIMITS)
async def long_values(attacker: Attacker) -> None:
    """20 connections, one request at a time: two new values of 60 KB, not ASCII."""

    def make() -> bytes:
        start = b"%d" % attacker.random.getrandbits(64)
        return request(*(user(start + b"%d" % at + "é".encode() * 29_000) for at in range(2)))

    await attacker.each(20, lambda wire: fresh(attacker, wire, make))


async def patterns(attacker: Attacker, key: bytes, *starts: bytes) -> None:
    """One connection, one request at a time: values that begin so, and never came before, for `servers.PATTERNS`."""
    values = (start + b"%d" % at for at in count() for start in starts)
    await attacker.each(
        1, lambda wire: fresh(attacker, wire, lambda: request(descriptor((key, next(values))), domain=b"patterns"))
    )


@attack(Need.OURS)
async def regex_long_value(attacker: Attacker) -> None:
    """One connection, one request at a time, for a slow regex: values of 60 KB, and the longest that it is tried on."""
    await patterns(attacker, b"slow", b"select" * 10_000, b"select" * 340)


@attack(Need.OURS)
async def regex_100(attacker: Attacker) -> None:
    """The same for a hundred regexes: values of 60 KB, and of 8 KB."""
    await patterns(attacker, b"expression", b"evil1" * 12_000, b"evil1" * 1_635)


@attack(Need.OURS)
async def wildcards_middle(attacker: Attacker) -> None:
    """The same for 2,000 values with a `*` at both ends: values of 60 KB, of 16 KB, and with parts of all of them."""
    parts = b"".join(b"ot%dx" % at for at in range(1000, 2000))
    await patterns(attacker, b"agent", b"bot1" * 15_000, b"bot1" * 4_000, parts)


@attack(Need.RATE_LIMITS)
async def gzip_overrides(attacker: Attacker) -> None:
    """Four connections, one request of 63 bytes at a time: 1,000 descriptors with a limit of their own, packed."""
    bomb = packed(request(OWN * 1000))
    await attacker.each(4, lambda wire: again(attacker, wire, bomb, GZIP))


@attack(Need.RATE_LIMITS)
async def gzip_descriptors(attacker: Attacker) -> None:
    """One request of 4 KB at a time: two million empty descriptors, packed."""
    bomb = packed(request(field(2, b"") * 2_000_000))
    await attacker.each(1, lambda wire: again(attacker, wire, bomb, GZIP))


@attack(Need.RATE_LIMITS)
async def gzip_unknown(attacker: Attacker) -> None:
    """Four connections, one request of 4 KB at a time: two million unknown fields, packed."""
    bomb = packed(request(user(b"x")) + field(15, 1) * 2_000_000)
    await attacker.each(4, lambda wire: again(attacker, wire, bomb, GZIP))


@attack(Need.RATE_LIMITS)
async def gzip_broken(attacker: Attacker) -> None:
    """Four connections: gzip that is cut, false, double, of no bytes, of many members, or not there at all."""
    whole = gzip.compress(request(user(b"x")))
    bodies = [
        *(whole[:-1], whole[:-9] + bytes(9), whole + whole, whole + b"more", b"", b"\x1f\x8b", bytes(200)),
        *(gzip.compress(b"") * 2000, gzip.compress(bytes(20_000_000)), request(user(b"x"))),
    ]
    block = attacker.block(GZIP)

    async def client(wire: Wire) -> None:
        while True:
            for body in bodies:
                await wire.call(block, message(body, compressed=True))

    await attacker.each(4, client)


@attack(Need.RATE_LIMITS)
async def many_descriptors(attacker: Attacker) -> None:
    """Four connections, one request at a time: 256 new descriptors of six entries."""

    def make() -> bytes:
        start = b"%x" % attacker.random.getrandbits(64)
        entries = [(b"other%d" % at, b"x") for at in range(5)]
        return request(*(descriptor((b"user", start + b"%d" % at), *entries) for at in range(256)))

    await attacker.each(4, lambda wire: fresh(attacker, wire, make))


@attack(Need.RATE_LIMITS)
async def own_limits(attacker: Attacker) -> None:
    """Four connections, one request at a time: 256 new descriptors with other limits each, and 100 KB of values."""

    def make() -> bytes:
        start = attacker.random.getrandbits(32)
        entries = [(b"other%d" % at, b"=" * 60) for at in range(5)]
        return request(
            *(
                descriptor((b"user", b"%x.%d" % (start, at)), *entries, limit=field(1, start + at) + field(2, 4))
                for at in range(256)
            )
        )

    await attacker.each(4, lambda wire: fresh(attacker, wire, make))


@attack(Need.RATE_LIMITS)
async def many_entries(attacker: Attacker) -> None:
    """Four connections, one request at a time: a descriptor of 10,000 entries."""
    body = message(request(descriptor(*((b"user", b"x"),) * 10_000)))
    await attacker.each(4, lambda wire: again(attacker, wire, body))


@attack(Need.RATE_LIMITS)
async def plan_cache(attacker: Attacker) -> None:
    """Eight connections: requests of 83 descriptors with limits of their own, each sent twice, all to be remembered."""
    costs = iter(range(1, 2**31))
    block = attacker.block()

    async def client(wire: Wire) -> None:
        while True:
            body = message(request(OWN * 83, cost=next(costs)))
            for _ in range(2):
                await wire.ask(block, body)
            await wire.until_ended(wire.streams_ended + 1)

    await attacker.each(8, client)


@attack(Need.RATE_LIMITS)
async def new_requests(attacker: Attacker) -> None:
    """Four connections: 20 calls at once, of values that never came before."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        while True:
            out = b"".join(
                calls([number], block, message(request(user(b"%x" % attacker.random.getrandbits(64)))))
                for number in wire.numbers(20)
            )
            await wire.exchange(out, 20)

    await attacker.each(4, client)


@attack(Need.RATE_LIMITS)
async def addends(attacker: Attacker) -> None:
    """Costs of 0, of 2^32-1 and below 0, of the request and of descriptors, on one counter."""
    block = attacker.block()
    costs = (0, 1, 2**31, 2**32 - 1, 2**64 - 1)
    bodies = [message(request(user(b"cost"), cost=cost)) for cost in costs]
    entry = field(1, field(1, b"user") + field(2, b"cost"))
    bodies += [message(request(field(2, entry + field(3, field(1, cost))))) for cost in costs]

    async def client(wire: Wire) -> None:
        while True:
            for body in bodies:
                await wire.call(block, body)

    await attacker.each(4, client)


@attack(Need.RATE_LIMITS)
async def mutated_requests(attacker: Attacker) -> None:
    """Four connections: requests with bytes changed, cut, doubled and put in at random."""
    block, chance = attacker.block(), attacker.random
    plain = request(user(b"someone"), descriptor((b"a", b"b"), (b"c", b"d"), limit=OWN_LIMIT), cost=3)

    async def client(wire: Wire) -> None:
        while True:
            bodies = (message(mutated(plain, chance)) for _ in range(20))
            await wire.exchange(b"".join(calls([wire.number()], block, body) for body in bodies), 20)

    await attacker.each(4, client)


def mutated(whole: bytes, chance: random.Random) -> bytes:
    """It with a few changes."""
    out = bytearray(whole)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(4):
            case 0 if at < len(out):
                out[at] = chance.randrange(256)
            case 1:
                out[at:at] = chance.randbytes(chance.randrange(1, 4))
            case 2:
                del out[at : at + chance.randrange(1, 9)]
            case _:
                out[at:at] = out[at : at + 20]
    return bytes(out)


@attack()
async def odd_messages(attacker: Attacker) -> None:
    """Four connections: lengths that are not so, two messages in a call, none, flags that are no flags."""
    block = attacker.block()
    bodies = [
        *(b"", b"\0", b"\0\0\0\0", message(b"x")[:5], b"\0\xff\xff\xff\xff", b"\0\0\0\0\x02x", attacker.message * 2),
        *(
            b"\x02" + attacker.message[1:],
            b"\xff" * 9,
            attacker.message + b"\0",
            bytes(5),
            b"\1" + attacker.message[1:],
        ),
    ]

    async def client(wire: Wire) -> None:
        while True:
            for body in bodies:
                number = wire.number()
                # A server may leave the call open, waiting for the rest of what was ended.
                await wire.send(headers(number, block) + frame(0, 1, number, body))
            await wire.send(frame(6, 0, 0, b"12345678"))
            await wire.wait()

    await attacker.each(4, client)


@attack()
async def tiny_data(attacker: Attacker) -> None:
    """Four connections: a message of 100 KB in frames of one byte."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        while True:
            number = wire.number()
            await wire.send(headers(number, block) + frame(0, 0, number, b"\0\0\1\x86\xa0"))
            for _ in range(100):
                await wire.spend(frame(0, 0, number, b"x") * 1000, 1000)

    await attacker.each(4, client)


@attack()
async def texts_of_calls(attacker: Attacker) -> None:
    """Two connections: paths, timeouts and encodings of every wrong kind."""
    wrong = [
        *(attacker.block(path=path) for path in ("", "/", "*", "//", "/x", "/" + "x" * 9000, "/a/b?c=d")),
        *(
            attacker.block((b"grpc-timeout", value))
            for value in (b"", b"1", b"0n", b"-1S", b"1s", b"9" * 20 + b"H", b"1e3S")
        ),
        *(attacker.block((b"grpc-encoding", value)) for value in (b"", b"br", b"identity", b"GZIP", b"x" * 5000)),
        *(attacker.block((b"content-length", value)) for value in (b"0", b"-1", b"9" * 30, b"1,1")),
        *(
            attacker.block((name, b"x"))
            for name in (b":path", b":method", b":new", b"connection", b"X-Upper", b"a b", b"")
        ),
    ]

    async def client(wire: Wire) -> None:
        while True:
            for block in wrong:
                number = wire.number()
                await wire.send(headers(number, block) + frame(0, 1, number, attacker.message))
            await wire.wait()

    await attacker.each(2, client)


@attack(Need.RATE_LIMITS, Need.WORKERS, seconds=40)
async def workers_killed(attacker: Attacker) -> None:
    """60 connections with three gzip bombs each, 786 KB in all: no busy worker may be killed for it."""
    bomb = packed(request(user(b"|" * 4_100_000)))
    block = attacker.block(GZIP)
    before = children(attacker.target.pid)

    async def client(wire: Wire) -> None:
        for number in wire.numbers(3):
            await wire.send(headers(number, block) + data(number, bomb))
        await wire.until_closed()

    async def look() -> None:
        while True:
            await asyncio.sleep(0.5)
            if children(attacker.target.pid) != before:
                attacker.harm("a worker was killed")

    await asyncio.gather(attacker.each(60, client), look())
