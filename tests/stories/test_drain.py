"""SIGTERM in the midst of load on many connections: no call is lost, and none is answered or charged twice.

Redis outlives the instances: what it has counted is what they have charged.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import peers
from tests.processes import ROOT, Service, ask, eventually, start_service
from tests.redis import Redis, start_redis
from tests.sampled import sampled
from tests.stories.drain_caller import PATH, question

pytestmark = pytest.mark.usefixtures("transport")

LIMIT = 4_000_000_000
RULES = f"domain: shop\ndescriptors: [{{key: user, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}]\n"
LOOK = """
{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}], "hitsAddend": "0"}]}
"""


class Counting:
    """A Redis where all instances count, and an instance that stays and looks."""

    def __init__(self, redis: Redis, watching: Service) -> None:
        self.environ = environ(redis)
        self._watching = watching

    @property
    def charged(self) -> int:
        """How many calls."""
        looked = json.loads(ask(self._watching.http_port, "/json", method="POST", body=LOOK).body)
        return LIMIT - int(looked["statuses"][0]["limitRemaining"])

    def goes_on(self) -> None:
        """Until calls are answered now."""
        enough = self.charged + 200
        eventually(lambda: self.charged > enough, "calls go on")


def environ(redis: Redis) -> dict[str, str]:
    """Of all instances."""
    return {"REDIS_URL": f"127.0.0.1:{redis.port}", "STORE_DEADLINE": "10s"}


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Counting]:
    """Nothing is charged yet."""
    with (
        start_redis(tmp_path / "redis") as redis,
        start_service(tmp_path / "watching", RULES, environ(redis)) as watching,
    ):
        yield Counting(redis, watching)


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A program to talk to, which does not outlive the test."""
    with subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def h2load(port: int, folder: Path) -> list[str]:
    """nghttp2's load generator."""
    body = question()
    asked = folder / "question"
    asked.write_bytes(b"\0" + len(body).to_bytes(4, "big") + body)
    of_grpc = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", str(asked)]
    return [str(peers.h2load()), "-n", "1000000", "-c", "8", "-m", "10", *of_grpc, f"http://127.0.0.1:{port}{PATH}"]


def ghz(port: int, _folder: Path) -> list[str]:
    """grpc-go's client; it learns the messages by reflection."""
    data = '{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}'
    load = ["-n", "20000", "-c", "16", "--connections", "4", "--insecure", "-O", "json", "-d", data]
    return [str(peers.ghz()), *load, "--max-duration", "60s", "--call", PATH[1:], f"127.0.0.1:{port}"]


def succeeded(said: str) -> int:
    """What h2load counts as such."""
    found = re.search(r"(\d+) succeeded", said)
    assert found, said
    return int(found[1])


def well(said: str) -> int:
    """What ghz counts as such."""
    count: int = json.loads(said)["statusCodeDistribution"]["OK"]
    return count


@pytest.mark.parametrize(("loads", "answered"), [(h2load, succeeded), (ghz, well)], ids=["h2load", "ghz"])
def test_every_call_that_was_charged_is_answered_when_the_service_stops(
    counting: Counting,
    tmp_path: Path,
    transport: str,
    loads: Callable[[int, Path], list[str]],
    answered: Callable[[str], int],
) -> None:
    with (
        start_service(tmp_path / "service", RULES, counting.environ) as service,
        started(loads(service.grpc_port, tmp_path)) as load,
    ):
        counting.goes_on()
        code = service.stop()
        if loads is ghz:
            load.send_signal(signal.SIGINT)  # it would call on, and nobody is there
        said, _ = load.communicate(timeout=120)

    assert code == 0
    if transport == "grpcio" and loads is h2load:
        # It answers calls that it has read and not begun with CANCELLED, which is a 200 to h2load.
        assert answered(said) >= counting.charged, said
    else:
        assert answered(said) == counting.charged, said


@pytest.mark.parametrize("client", sampled(["sync", "aio"], 2))
def test_a_rolling_restart_fails_no_call_of_grpcio(
    counting: Counting, tmp_path: Path, transport: str, client: str
) -> None:
    """Each of two instances goes and comes back on its port; the callers are on both."""
    caller = str(Path(__file__).with_name("drain_caller.py"))
    with (
        start_service(tmp_path / "a", RULES, counting.environ) as one,
        start_service(tmp_path / "b", RULES, counting.environ) as other,
        started([sys.executable, caller, client, f"{one.grpc_port},{other.grpc_port}"]) as calling,
    ):
        assert calling.stdout is not None
        assert calling.stdout.readline() == "ready\n"
        counting.goes_on()
        codes = [one.stop()]
        with start_service(tmp_path / "c", RULES, counting.environ | {"GRPC_PORT": str(one.grpc_port)}):
            counting.goes_on()
            codes.append(other.stop())
            counting.goes_on()
            said, _ = calling.communicate("\n", timeout=120)

    assert codes == [0, 0]
    ended = json.loads(said)
    assert ended.pop("OK") == counting.charged
    # As above; with DRAIN_SECONDS, in which clients go elsewhere, grpc.aio has nothing to cancel.
    assert not ended or transport == "grpcio", ended
