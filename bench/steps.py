"""How long the steps of a connection take, however a client fills a read: `python bench/steps.py [--rounds 5]`.

A step ends when it has taken a millisecond (transports/http2/scheduling.py), after the frame, or the few requests, at
hand. For each way to fill a read of 256 KiB: how many steps it takes; of the round that took least, the mean and the
longest step in microseconds, by processor time; and the ratio of that time to the time that the connection's host was
charged with. Then what a call of an honest client takes, by how many come in one read: to compare two versions of the
transport, which the whole service (bench/service.py) shows only within some percent. With the real methods and counters
in memory.
"""

import argparse
import asyncio
import gzip
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop
from hot_path import method, rules

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit
from ratelimit_service.api.generated.grpc.reflection.v1.reflection_pb2 import ServerReflectionRequest
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.reflection import reflection
from ratelimit_service.system.clock import steady_clock
from ratelimit_service.transports.http2.limits import MAX_IDLE_FRAMES
from ratelimit_service.transports.http2.scheduling import SHARE
from ratelimit_service.transports.http2.server import Server
from ratelimit_service.transports.http2.shared import Shared
from ratelimit_service.transports.http2.wire import Wire
from ratelimit_service.transports.options import GrpcOptions
from tests.transports.http2.talk import HELLO, block, data, frame, headers, literal, message, settings, window

READ = 256 * 1024
PATH = ShouldRateLimit.path
Entry = RateLimitDescriptor.Entry


class Read(NamedTuple):
    """One way to fill a read."""

    name: str
    part: Callable[[int], bytes] | bytes
    """What fills it; perhaps by the number of a stream."""
    before: bytes = b""


def request(*values: str, own: bool = False) -> bytes:
    """A descriptor for each value, with a limit of its own."""
    found = RateLimitRequest(domain="bench")
    for value in values:
        descriptor = found.descriptors.add(entries=[Entry(key="key0", value=value)])
        if own:
            descriptor.limit.requests_per_unit, descriptor.limit.unit = 1_000_000, RateLimitUnit.MINUTE
    return found.SerializeToString()


def call(number: int, body: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A whole one."""
    return headers(number, block(PATH, *more)) + data(number, body)


def packed(number: int) -> bytes:
    """A whole call, compressed."""
    body = gzip.compress(request(f"v{number}"))
    return call(number, b"\1" + message(body)[1:], (b"grpc-encoding", b"gzip"))


def reads() -> Iterator[Read]:
    """All of them."""
    asked = ServerReflectionRequest(file_containing_symbol="envoy.service.ratelimit.v3.RateLimitService")
    streaming = reflection()[0].path
    fields = b"".join(literal(b"%02x" % n, b"") for n in range(256))
    long = b"\xff\x9e\x3d" + bytes(7_965)
    open_streams = b"".join(headers(n, block(streaming)) for n in range(1, 199, 2))
    wrong = block(PATH).replace(b"application/grpc", b"application/text")
    reset = headers(1) + window(1, 0)
    yield Read("requests that came before", lambda n: call(n, message(request(f"v{n % 20}"))))
    yield Read("new requests", lambda n: call(n, message(request(f"v{n}"))))
    yield Read("new requests of 10 descriptors", lambda n: call(n, message(request(*(f"v{n}-{i}" for i in range(10))))))
    yield Read(
        "new requests of 100, with limits",
        lambda n: call(n, message(request(*(f"{n}-{i}" for i in range(100)), own=True))),
    )
    yield Read("new requests of 8 KB", lambda n: call(n, message(request(f"v{n}" * 1_500))))
    yield Read("new requests, compressed", packed)
    yield Read("new requests with a timeout", lambda n: call(n, message(request(f"v{n}")), (b"grpc-timeout", b"1S")))
    yield Read(
        "requests in two frames",
        lambda n: headers(n, block(PATH)) + data(n, b"", end=False) + data(n, message(request("a"))),
    )
    yield Read("no gRPC (415)", lambda n: headers(n, wrong, end=True))
    yield Read("unknown methods", lambda n: headers(n, block("/none"), end=True))
    yield Read("new header blocks", lambda n: headers(n, block(PATH, (b"id", b"%d" % n)), end=True))
    yield Read("256 new fields", lambda n: headers(n, block(PATH) + fields + b"\0\2id\x07%07d" % n, end=True))
    yield Read("strings in Huffman's code", lambda n: headers(n, block(PATH) + b"\0\1x" + long, end=True))
    yield Read("calls that are reset", lambda n: headers(n, block(PATH)) + frame(3, 0, n, b"\0\0\0\x08"))
    yield Read("pings", frame(6, 0, 0, b"12345678"))
    yield Read("settings", settings((4, 65_535)))
    yield Read("window updates", window(0, 1))
    yield Read("priorities", lambda n: frame(2, 0, n, bytes(5)))
    yield Read("unknown frames", frame(99, 0, 0))
    yield Read(
        "DATA of a byte",
        data(1, b"?", end=False),
        headers(1, block(PATH)) + data(1, message(bytes(99_999))[:5], end=False),
    )
    yield Read("DATA on a stream that was reset", data(1, bytes(130), end=False), reset)
    yield Read("DATA of padding", frame(0, 8, 1, b"\xfe" + bytes(255)), reset)
    yield Read(
        "reflection",
        lambda n: data(2 * n % 198 + 1 if n % 2 else 1, message(asked.SerializeToString()), end=False),
        open_streams,
    )


class Sample(NamedTuple):
    """What the steps of one read cost."""

    measured: float
    """Microseconds of processor time together."""
    longest: float
    steps: int
    charged: float


async def sample(read: Read, server: Server, number: int) -> Sample:
    """Read it once, on a connection of its own; another number, other requests."""
    sent, size, number = [], 0, 20_000 * number + 1
    while size < READ:
        sent.append(read.part if isinstance(read.part, bytes) else read.part(number))
        size += len(sent[-1])
        number += 2
    async with connected(server) as (wire, client):
        wire.data_received(read.before)
        await asyncio.sleep(0.001)
        charged, spent = wire.finish_tag, time_steps(wire)
        wire.host.share_left = 0  # so that it waits for its turn
        wire.data_received(b"".join(sent))
        while wire.scheduled or wire.write_paused:
            with suppress(BlockingIOError):
                client.recv(READ)
            await asyncio.sleep(0)
        if wire.connection.error is not None:
            raise RuntimeError(f"{read.name}: {wire.connection.error}")
        charged = wire.finish_tag - charged
    return Sample(sum(spent), max(spent), len(spent), charged / 1000)


class TimedWire(Wire):
    """One whose `run_step` can be replaced: it has no slots."""


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[tuple[Wire, socket.socket]]:
    """A connection, and its client's socket."""
    own, client = socket.socketpair()
    own.setblocking(False)
    client.setblocking(False)
    with client:
        _, wire = await asyncio.get_running_loop().connect_accepted_socket(lambda: TimedWire(server.shared), own)
        wire.data_received(HELLO + window(0, 2**30))
        await asyncio.sleep(0.001)
        client.recv(READ)
        try:
            yield wire, client
        finally:
            wire.transport.abort()
            await asyncio.sleep(0)


def time_steps(wire: Wire) -> list[float]:
    """What its steps take from now on."""
    spent: list[float] = []
    run_step = wire.run_step

    def timed() -> bool:
        wire.connection.refill(MAX_IDLE_FRAMES)
        began = time.thread_time_ns()
        more = run_step()
        spent.append((time.thread_time_ns() - began) / 1000)
        return more

    wire.run_step = timed  # type: ignore[method-assign]
    return spent


async def microseconds(server: Server, together: int, rounds: int) -> float:
    """Time of a call when `together` calls come in one read; the least of all rounds."""
    best, number = float("inf"), 1
    async with connected(server) as (wire, client):
        for _ in range(rounds):
            reads = [
                b"".join(call(number + 2 * (at + n), message(request(f"v{n % 20}"))) for n in range(together))
                for at in range(0, 400, together)
            ]
            number += 800
            spent, measured = 0, True
            for read in reads:
                wire.host.share_left = SHARE
                began = time.thread_time_ns()
                wire.data_received(read)
                spent += time.thread_time_ns() - began
                while wire.scheduled:  # the machine was busy: the rest of the read was not measured
                    measured = False
                    await asyncio.sleep(0)
                client.recv(READ)
            if measured:
                best = min(best, spent / 400 / 1000)
    return best


async def measure(rounds: int) -> None:
    """Measure, and print both tables."""
    asked, _ = method(rules())
    options = GrpcOptions(max_connection_memory=2**30)
    server = Server(Shared([asked], reflection(), options, None, steady_clock, time.thread_time_ns))
    tried: list[tuple[Read, list[Sample]]] = [(read, []) for read in reads()]
    for number in range(rounds):
        for read, samples in tried:
            samples.append(await sample(read, server, number))
    print(f"{'a read of':36}{'steps':>6}{'mean':>8}{'longest':>9}{'time / charge':>15}")
    for read, samples in tried:
        best = min(samples)
        mean, ratio = best.measured / best.steps, best.measured / best.charged
        print(f"{read.name:36}{best.steps:6}{mean:8.0f}{best.longest:9.0f}{ratio:15.2f}")
    print(f"\n{'calls in a read':>36}{'each takes (µs)':>18}")
    for together in (1, 5, 25, 100):
        print(f"{together:36}{await microseconds(server, together, 50 * rounds):18.2f}")
    await server.drain(0)


def main() -> None:
    """Ask how often."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    uvloop.run(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
