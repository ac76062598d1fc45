"""A service of several workers on a real Redis, and clients of grpcio's, each with a connection of its own."""

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import grpc

from ratelimit_service.api.generated.envoy.service.ratelimit.v3 import rls_pb2
from tests.processes import Reply, Service, ask, eventually, start_service
from tests.redis import Redis, start_redis

RULES: Final = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n"
PATH: Final = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
QUESTION: Final = rls_pb2.RateLimitRequest(domain="shop")
QUESTION.descriptors.add().entries.add(key="user", value="ada")

ASK: Final = '{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}'

SECONDS: Final = 60
PAUSE_SECONDS: Final = 0.01
"""Between two calls of a caller under load, in which the machine does what the test is about."""


class WorkerPool(NamedTuple):
    """A service with several workers, and its Redis."""

    service: Service
    redis: Redis
    stopped: set[int]
    """Processes that are stopped: they cannot notice that the others have ended."""

    def stop(self, pid: int) -> None:
        """Stop the process, so that it hangs."""
        self.stopped.add(pid)
        os.kill(pid, signal.SIGSTOP)

    @property
    def status(self) -> Any:
        """What the page shows."""
        return json.loads(ask(self.service.debug_port, "/status").body)

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the workers that are ready, by their numbers."""
        return {worker["number"]: worker["pid"] for worker in self.status["workers"] if worker["ready"]}

    @property
    def connections(self) -> dict[int, int]:
        """How many each worker has, by the workers' numbers."""
        return {worker["number"]: worker["connections"] for worker in self.status["workers"]}

    def wait_for_another(self, number: int, pid: int) -> int:
        """Wait until another process is ready in its place; returns its process id."""
        self.service.wait_until(lambda: self.pids.get(number, pid) != pid, f"worker {number} is replaced")
        return self.pids[number]

    @property
    def loads(self) -> list[int]:
        """The workers' connections, the fewest first."""
        return sorted(self.connections.values())

    def post(self, body: str) -> Reply:
        """Ask over HTTP."""
        return ask(self.service.http_port, "/json", method="POST", body=body)

    def wait_for_loads(self, *loads: int) -> None:
        """Wait until the workers have these numbers of connections."""
        self.service.wait_until(lambda: self.loads == sorted(loads), f"connections are {sorted(loads)}")

    def wait_for_metric(self, line: str, value: float) -> None:
        """Wait until the series has this value: what a scrape shows of a busy worker may be half a second old."""
        self.service.wait_until(lambda: self.metric(line) == value, f"{line} is {value}")

    def metric(self, line: str) -> float:
        """The value of the series whose line begins like this."""
        values = [text.rpartition(" ")[2] for text in self.service.metrics().splitlines() if text.startswith(line)]
        assert len(values) == 1, (line, values)
        return float(values[0])


@contextmanager
def start_pool(
    folder: Path,
    workers: int,
    environ: Mapping[str, str] | None = None,
    rules: str | Path = RULES,
    *,
    prefix: Sequence[str] = (),
) -> Iterator[WorkerPool]:
    """A Redis, and a service with this number of workers that count in it."""
    with start_redis(folder / "redis") as redis:
        own = {
            "WORKERS": str(workers),
            "TRANSPORT": "http2",
            "REDIS_URL": f"127.0.0.1:{redis.port}",
            "STORE_DEADLINE": "10s",
        }
        with start_service(folder / "service", rules, own | dict(environ or {}), prefix=prefix) as service:
            stopped: set[int] = set()
            try:
                yield WorkerPool(service, redis, stopped)
            finally:
                for pid in stopped:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)


class Caller:
    """One connection, and calls on it."""

    def __init__(self, target: int | str, credentials: grpc.ChannelCredentials | None = None) -> None:
        address = f"127.0.0.1:{target}" if isinstance(target, int) else target
        # Without the pool that all channels of a process share each has a connection of its own.
        options = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        self._ask = self._channel.unary_unary(
            PATH,
            request_serializer=rls_pb2.RateLimitRequest.SerializeToString,
            response_deserializer=rls_pb2.RateLimitResponse.FromString,
        )

    def ask(self, seconds: float = SECONDS, question: rls_pb2.RateLimitRequest = QUESTION) -> rls_pb2.RateLimitResponse:
        """One call."""
        answer: rls_pb2.RateLimitResponse = self._ask(question, timeout=seconds)
        return answer

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


@contextmanager
def callers(
    target: int | str, count: int, credentials: grpc.ChannelCredentials | None = None
) -> Iterator[list[Caller]]:
    """This number of callers, each of which has had a response."""
    made = [Caller(target, credentials) for _ in range(count)]
    try:
        for caller in made:
            caller.ask()
        yield made
    finally:
        for caller in made:
            caller.close()


class Load:
    """Calls one after the other by each of the callers, in threads, while it is entered."""

    def __init__(self, made: Sequence[Caller]) -> None:
        self.answers = [0] * len(made)
        """By each caller."""
        self.errors: list[list[str]] = [[] for _ in made]
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=each, daemon=True) for each in enumerate(made)]

    @property
    def failed(self) -> int:
        """Callers that had an error."""
        return sum(1 for errors in self.errors if errors)

    def wait_for(self, more: int) -> None:
        """Until each caller has had so many more answers."""
        enough = [answers + more for answers in self.answers]

        def done() -> bool:
            return all(now >= then for now, then in zip(self.answers, enough, strict=True))

        eventually(done, f"{more} more answers for each: {self.answers} of {enough}, {self.errors}")

    def _call(self, index: int, caller: Caller) -> None:
        while not self._over.wait(PAUSE_SECONDS):
            try:
                caller.ask()
            except grpc.RpcError as error:
                self.errors[index].append(str(error))
            else:
                self.answers[index] += 1

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def gone(pid: int) -> bool:
    """There is no such process, or only what its parent has not yet looked at."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
