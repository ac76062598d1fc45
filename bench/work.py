"""What a client's bytes cost, as reckoned and as measured: `python bench/work.py [--rounds 5]`.

A step of a connection ends when it has cost so much by the reckoning of transports/http2/work.py. For each way to fill
a read of 256 KiB: microseconds a step by both, and the ratio; the least of several rounds of processor time. With the
real methods and counters in memory. A ratio above 1.5 is wrong: such steps would keep others waiting. Below 0.67 are
bytes that may ask for more than these do, such as long values, which might be a hundred descriptors; shares among hosts
go by the clock and not by this.
"""

import argparse
import gzip
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hot_path import method, rules

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit
from ratelimit_service.api.generated.grpc.reflection.v1.reflection_pb2 import ServerReflectionRequest
from ratelimit_service.api.method import Method, StreamMethod
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.api.reflection import reflection
from ratelimit_service.transports.http2.connection import Connection
from ratelimit_service.transports.http2.events import Kind
from ratelimit_service.transports.http2.limits import MOST_IDLE_FRAMES, Limits
from ratelimit_service.transports.http2.stream_call import StreamCall
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
    """What the steps of one read cost together."""

    steps: int
    reckoned: float
    measured: float


def sample(read: Read, methods: dict[str, Method], streams: dict[str, StreamMethod], number: int) -> Sample:
    """Read it once, on a connection of its own; another number, other requests."""
    kinds = dict.fromkeys(methods, False) | dict.fromkeys(streams, True)
    connection = Connection(kinds, Limits(max_connection_memory=2**30), lambda: None)
    served = Served(connection, methods, streams)
    sent, size, number = [], 0, 20_000 * number + 1
    while size < READ:
        sent.append(read.part if isinstance(read.part, bytes) else read.part(number))
        size += len(sent[-1])
        number += 2
    served.step(HELLO + read.before)
    rest, steps, reckoned, spent = b"".join(sent), 0, 0.0, 0
    while not steps or connection.more:
        connection.refill(MOST_IDLE_FRAMES)
        began = time.thread_time_ns()
        served.step(rest)
        spent += time.thread_time_ns() - began
        reckoned += connection.calls.work / 1000
        steps, rest = steps + 1, b""
    if connection.error is not None:
        raise RuntimeError(f"{read.name}: {connection.error}")
    return Sample(steps, reckoned, spent / 1000)


class Served:
    """A connection, and the methods that answer it, as wire.py has them."""

    def __init__(self, connection: Connection, methods: dict[str, Method], streams: dict[str, StreamMethod]) -> None:
        self._connection = connection
        self._methods = methods
        self._stream_methods = streams
        self._streams: dict[int, StreamCall] = {}

    def step(self, raw: bytes) -> None:
        """One step, with all that it asks for."""
        connection, calls = self._connection, self._connection.calls
        calls.expected = True
        events = connection.receive(raw)
        while events:
            for kind, number, head, body in events:
                if kind is Kind.CALL:
                    self._methods[head.path].call(body, partial(calls.reply, number), head.timeout)
                elif kind is Kind.OPEN:
                    self._streams[number] = StreamCall(calls, number, head.path)
                    self._streams[number].open(self._stream_methods[head.path])
                elif number in self._streams:
                    self._streams[number].happen(kind, body)
            events, calls.events = calls.events, []
        connection.take()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{'a read of':36}{'steps':>6}{'reckoned':>10}{'measured':>10}{'ratio':>7}")
    asked, _ = method(rules())
    streams: dict[str, StreamMethod] = {each.path: each for each in reflection()}
    tried: list[tuple[Read, list[Sample]]] = [(read, []) for read in reads()]
    for number in range(rounds):
        for read, samples in tried:
            samples.append(sample(read, {asked.path: asked}, streams, number))
    for read, samples in tried:
        best = min(samples, key=lambda each: each.measured)
        reckoned, measured = best.reckoned / best.steps, best.measured / best.steps
        print(f"{read.name:36}{best.steps:6}{reckoned:10.0f}{measured:10.0f}{measured / reckoned:7.2f}")


if __name__ == "__main__":
    main()
