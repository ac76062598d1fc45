"""The way of a call through the code: `python bench/trace.py [--steps]`.

For five calls of a running service: the functions that are entered, in how many files, and how often the way changes
from one file to another. Constructors that a dataclass writes have nothing to read and are not counted. Each call is
alone; of several tries the shortest counts, since timers may fall between.
`--steps` prints the functions in their order.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import redirect_stdout
from itertools import groupby
from pathlib import Path
from socket import create_connection
from tempfile import TemporaryDirectory
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded

import ratelimit_service
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.rules.leasing import lease_options
from ratelimit_service.server.engine import Engine
from ratelimit_service.settings import load_settings
from ratelimit_service.system.address import Tcp
from tests.books import book
from tests.redis import start_redis

PACKAGE = str(Path(ratelimit_service.__file__).parent) + "/"
RULES = "{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 1000}}]}"
REQUEST = bytes.fromhex("0a0164 1208 0a06 0a016b 120176")
"""Domain d, a descriptor k: v."""
TRIES = 20


class Recorder:
    """The functions of the package that this thread enters, as file and name."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _arg: object) -> None:
        """As sys.setprofile calls it."""
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.steps.append((frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_qualname))

    @property
    def files(self) -> Sequence[str]:
        """In order; one after the other they differ."""
        return [file for file, _ in groupby(file for file, _ in self.steps)]


class Client:
    """A connection to the service, used from another thread; whole requests, as Envoy sends them."""

    def __init__(self, port: int) -> None:
        self._socket = create_connection(("127.0.0.1", port))
        self._h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._h2.update_settings({})

    def call(self, request: bytes = REQUEST) -> None:
        """Send a request, and wait for the end of the response."""
        number = self._h2.get_next_available_stream_id()
        names = {":method": "POST", ":scheme": "http", ":path": ShouldRateLimit.path, ":authority": "ratelimit"}
        self._h2.send_headers(number, [*names.items(), ("te", "trailers"), ("content-type", "application/grpc")])
        self._h2.send_data(number, len(request).to_bytes(5, "big") + request, end_stream=True)
        while True:
            self._socket.sendall(self._h2.data_to_send())
            if any(isinstance(event, StreamEnded) for event in self._h2.receive_data(self._socket.recv(65_536))):
                return

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


async def record(call: Callable[[], Awaitable[object]]) -> Recorder:
    """What happens until the response is there."""
    recorder = Recorder()
    sys.setprofile(recorder)
    await call()
    sys.setprofile(None)
    return recorder


async def trace(environ: dict[str, str], *, first: bool = False, unseen: bool = False) -> Recorder:
    """The shortest way of a call: the first of its connection, one of unseen bytes, or one that came before."""
    settings = load_settings(environ)[0]
    engine = Engine(settings)
    engine.publish(book(RULES, leases=lease_options(settings)))
    await engine.listen([Tcp("127.0.0.1", 0)])
    await engine.begin()
    (address,) = engine.addresses
    assert isinstance(address, Tcp)
    tries, clients = list[Recorder](), [Client(address.port)]

    def call() -> None:
        if first:
            clients.append(Client(address.port))
        clients[-1].call(REQUEST[:-1] + b"%c" % (ord("a") + len(tries)) if unseen else REQUEST)

    for _ in range(TRIES):
        tries += [await record(lambda: asyncio.to_thread(call))]
    for client in clients:
        client.close()
    await engine.stop()
    await engine.close()
    return min(tries[TRIES // 2 :], key=lambda recorder: len(recorder.steps))


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", action="store_true")
    with_steps = options.parse_args().steps
    found: dict[str, Recorder] = {}
    with TemporaryDirectory() as folder, redirect_stdout(None), start_redis(Path(folder)) as redis:
        with_redis = {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{redis.port}", "STORE_DEADLINE": "10s"}
        found["warm, counters in memory"] = uvloop.run(trace({}))
        found["warm, counters in Redis"] = uvloop.run(trace(with_redis))
        found["leased, counters in Redis"] = uvloop.run(trace(with_redis | {"LEASES": "auto"}))
        found["first of a connection, in memory"] = uvloop.run(trace({}, first=True))
        found["unseen bytes, in memory"] = uvloop.run(trace({}, unseen=True))
    print(f"{'a call':36}{'functions':>10}{'files':>7}{'changes':>9}")
    for name, recorder in found.items():
        files = recorder.files
        print(f"{name:36}{len(recorder.steps):10}{len(set(files)):7}{len(files) - 1:9}")
        if with_steps:
            print("".join(f"    {file:44}{function}\n" for file, function in recorder.steps))


if __name__ == "__main__":
    main()
