"""Ask a rate-limit service as much as it can take: `python bench/load.py HOST:PORT`.

Each connection keeps so many calls in flight, or with --rate the calls begin when they are due, whether or not others
have been answered, and wait in their latency. Every answer is read: its gRPC status and its overall code.
"""

import argparse
import asyncio
import dataclasses
import json
import random
import sys
import time
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import uvloop
from google.protobuf.message import DecodeError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from connection import Connection

from ratelimit_service.api.generated.envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse

T = TypeVar("T")

MOST_MADE = 10_000
"""Messages that are made once, and kept."""

ALLOWED = b"\x08\x01"
"""How an answer of OK begins, from any server that writes fields in the order of their numbers."""

PLACE = "0000000"
"""Where a key goes in a request."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What is asked, and how much of it."""

    calls: int = 100_000
    connections: int = 4
    in_flight: int = 25
    keys: int = 1000
    descriptors: int = 1
    entries: int = 1
    rate: int = 0


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of it; milliseconds."""

    calls: int
    refused: int
    failures: dict[str, int]
    seconds: float
    p50: float
    p99: float
    longest: float

    @property
    def a_second(self) -> float:
        """Calls."""
        return self.calls / self.seconds


def request(load: Load) -> list[bytes]:
    """The pieces of a request's bytes, between which the key goes."""
    descriptors = []
    for descriptor in range(load.descriptors):
        entries = [RateLimitDescriptor.Entry(key=f"user{descriptor}", value=PLACE)]
        entries += [RateLimitDescriptor.Entry(key=f"also{number}", value="so") for number in range(1, load.entries)]
        descriptors.append(RateLimitDescriptor(entries=entries))
    whole = RateLimitRequest(domain="bench", descriptors=descriptors).SerializeToString()
    return whole.split(PLACE.encode())


class Run:
    """What all connections share: which call is next, and what came of those before."""

    def __init__(self, load: Load) -> None:
        self.left = load.calls
        self.answered = self.refused = 0
        self.failures: dict[str, int] = {}
        self.took = array("d")
        self._pieces = request(load)
        self._keys = load.keys
        self._random = random.Random(1).random
        self._messages: dict[int, bytes] = {}

    def next(self) -> bytes:
        """A message, with gRPC's prefix."""
        self.left -= 1
        key = int(self._random() * self._keys)
        message = self._messages.get(key)
        if message is None:
            body = (b"%07d" % key).join(self._pieces)
            message = b"\0" + len(body).to_bytes(4, "big") + body
            if key < MOST_MADE:
                self._messages[key] = message
        return message

    def answer(self, seconds: float, status: str, message: bytes) -> None:
        """One call is over."""
        self.answered += 1
        self.took.append(seconds)
        if status != "0":
            return self.fail(f"status {status}")
        if message[5:7] == ALLOWED:
            return None
        try:
            code = RateLimitResponse.FromString(message[5:]).overall_code
        except DecodeError:
            return self.fail("no answer in it")
        if code == RateLimitResponse.OVER_LIMIT:
            self.refused += 1
        elif code != RateLimitResponse.OK:
            self.fail(f"code {code}")
        return None

    def fail(self, what: str, count: int = 1) -> None:
        """Something that should not be."""
        self.failures[what] = self.failures.get(what, 0) + count


async def run_load(host: str, port: int, load: Load) -> Result:
    """All calls, and what came of them."""
    run = Run(load)
    started = time.perf_counter()
    connect = partial(Connection, run, load.in_flight, f"{host}:{port}", closed_loop=not load.rate)
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(connect, host, port))[1] for _ in range(load.connections)]
    if load.rate:
        await _keep_pace(load, connections)
    await asyncio.gather(*(connection.over for connection in connections))
    seconds = time.perf_counter() - started
    took = sorted(run.took) or [0.0]
    p50, p99, longest = (took[min(len(took) - 1, int(part * len(took)))] * 1e3 for part in (0.5, 0.99, 1))
    return Result(run.answered, run.refused, run.failures, seconds, p50, p99, longest)


async def _keep_pace(load: Load, connections: Sequence[Connection]) -> None:
    """Calls of each millisecond begin together: a timer knows nothing finer."""
    started, begun = time.perf_counter(), 0
    while begun < load.calls:
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        due = min(load.calls, int((now - started) * load.rate))
        for number in range(begun, due):
            connections[number % load.connections].call_at(now)
        begun = due
    for connection in connections:
        connection.finish()


def add_options(parser: argparse.ArgumentParser, fields: type) -> None:
    """An option for each number of a dataclass."""
    for field in dataclasses.fields(fields):
        if not isinstance(field.default, int):
            continue
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=int, default=field.default, metavar="N", help="default: %(default)s")


def options_of(chosen: argparse.Namespace, fields: type[T]) -> T:
    """What was chosen of them."""
    names = [field.name for field in dataclasses.fields(fields) if hasattr(chosen, field.name)]  # type: ignore[arg-type]
    return fields(**{name: getattr(chosen, name) for name in names})


def main() -> None:
    """Prints a line, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--json", action="store_true")
    add_options(parser, Load)
    chosen = parser.parse_args()
    host, _, port = chosen.address.rpartition(":")
    result = uvloop.run(run_load(host, int(port), options_of(chosen, Load)))
    if chosen.json:
        print(json.dumps(dataclasses.asdict(result)))
    else:
        print(f"{result.calls} calls, {result.refused} refused, {result.failures or 'no failures'}; ", end="")
        print(f"{result.a_second:,.0f} a second, ", end="")
        print(f"p50 {result.p50:.2f} ms, p99 {result.p99:.2f} ms, longest {result.longest:.1f} ms")


if __name__ == "__main__":
    main()
