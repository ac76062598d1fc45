"""`ratelimit load` against a running service, and against ports where there is none."""

import json
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.cli import main
from ratelimit_service.commands.load.latencies import Latencies
from ratelimit_service.commands.load.requests import Requests
from tests.ports import free_port
from tests.processes import ROOT, Service, start_service
from tests.redis import start_redis
from tests.terminal import start_on_terminal
from tests.transports.certificates import authority, issue

RULES = """
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
"""
ANSWERED = r'total_hits\{[^}]*"user"\} [1-9]'


@pytest.fixture(params=["grpcio", "http2"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    with start_service(tmp_path, RULES, {"TRANSPORT": request.param}) as started:
        yield started


def load(target: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["load", target, *arguments])


def load_json(target: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(load(target, *arguments, "--json").stdout)
    return found


@pytest.mark.parametrize("pace", [[], ["--rate=2000"]], ids=["as fast as it can", "at a rate"])
def test_so_many_calls_are_made_and_every_answer_is_read(service: Service, pace: list[str]) -> None:
    told = load_json(f"127.0.0.1:{service.grpc_port}", "shop", "user=u{key}", "--calls=1000", "--keys=7", *pace)

    assert (told["calls"], told["allowed"], told["refused"], told["failures"]) == (1000, 7 * 5, 1000 - 7 * 5, {})
    assert 0 < told["latency_ms"]["p50"] <= told["latency_ms"]["p99"] <= told["latency_ms"]["longest"]
    assert f'over_limit{{domain="shop",key1="user"}} {told["refused"]}\n' in service.metrics()


def test_a_load_ends_after_its_time(service: Service) -> None:
    result = load(f"127.0.0.1:{service.grpc_port}", "shop", "user=u{key}", "--for=200ms")

    calls = re.match(r"([0-9,]+) calls in ", result.stdout)
    assert calls is not None
    assert int(calls[1].replace(",", "")) > 0
    assert result.exit_code == 0


def test_calls_that_fail_are_told_with_their_status(service: Service) -> None:
    result = load(f"127.0.0.1:{service.grpc_port}", "", "user=u{key}", "--calls=100")

    assert "  failed             100  100.0 %\n                     100  INVALID_ARGUMENT\n" in result.stdout
    assert result.exit_code == 1


def test_every_call_counts_although_the_service_is_killed(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        options = ["--rate=500", "--calls=2000", "--json"]
        command = [sys.executable, "-m", "ratelimit_service", "load", f"127.0.0.1:{service.grpc_port}", *options]
        with subprocess.Popen([*command, "shop", "user=a"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as loading:
            service.wait_until(lambda: re.search(ANSWERED, service.metrics()) is not None, "calls have come")
            service.kill()
            told = json.loads(loading.communicate(timeout=120)[0])

    assert 0 < told["allowed"] + told["refused"] < 2000
    assert told["calls"] == 2000
    assert loading.returncode == 1


def test_a_load_goes_on_when_the_service_is_back(tmp_path: Path) -> None:
    with start_service(tmp_path / "first", RULES) as service:
        command = [sys.executable, "-m", "ratelimit_service", "load", f"127.0.0.1:{service.grpc_port}", "--for=1h"]
        with subprocess.Popen(
            [*command, "--rate=200", "--json", "shop", "user=a"], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as loading:
            service.wait_until(lambda: re.search(ANSWERED, service.metrics()) is not None, "calls have come")
            service.stop()
            with start_service(tmp_path / "second", RULES, {"GRPC_PORT": str(service.grpc_port)}) as again:
                again.wait_until(lambda: re.search(ANSWERED, again.metrics()) is not None, "calls have come again")
                loading.send_signal(signal.SIGINT)
                told = json.loads(loading.communicate(timeout=120)[0])

    assert told["allowed"] == 10


def test_calls_begin_on_time_while_none_is_answered_and_the_stall_counts_for_each(tmp_path: Path) -> None:
    """300 are due within a second, and all are under way before Redis goes on: half of them waited half a second."""
    with start_redis(tmp_path / "redis") as redis:
        settings = {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{redis.port}"}
        with start_service(tmp_path / "service", RULES, settings) as service:
            target = f"127.0.0.1:{service.grpc_port}"
            assert load_json(target, "shop", "user=a", "--calls=1")["failed"] == 0
            redis.send(signal.SIGSTOP)
            command = [sys.executable, "-m", "ratelimit_service", "load", target, "shop", "user=a", "--json"]
            options = ["--rate=300", "--calls=300", "--timeout=60s"]
            with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, cwd=ROOT) as loading:
                service.wait_until(lambda: "\nratelimit_grpc_streams 300\n" in service.metrics(), "all have begun")
                redis.send(signal.SIGCONT)
                told = json.loads(loading.communicate(timeout=120)[0])

    assert (told["calls"], told["failures"]) == (300, {})
    assert told["latency_ms"]["p50"] >= 490


def test_a_terminal_sees_how_it_goes(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES) as service:
        command = ["-m", "ratelimit_service", "load", f"127.0.0.1:{service.grpc_port}", "shop", "user=a", "--for=1h"]
        with start_on_terminal([sys.executable, *command], tmp_path, {"PYTHONPATH": str(ROOT)}) as terminal:
            terminal.wait_until(
                lambda: re.search(r"a second, .*% refused, p50 .* ms, p99 ", terminal.text) is not None, "it is shown"
            )
            terminal.press("\x03")
            terminal.wait()

            assert re.search(r"[0-9,]+ calls in [0-9.]+ s, ", terminal.text) is not None


def test_requests_come_from_a_file(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "requests.txt"
    file.write_text("# two kinds\nshop user=a\n\nshop user=b + 'user=c d'\n")

    told = load_json(f"127.0.0.1:{service.grpc_port}", "--requests", str(file), "--calls=100")

    assert (told["allowed"], told["refused"], told["failed"]) == (10, 90, 0)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("shop", "a descriptor is empty: it needs a KEY=VALUE"),
        ("shop user", "'user' is not KEY=VALUE"),
        ("shop =a", "'=a' is not KEY=VALUE"),
        ("user=a", "a line begins with the domain, not with 'user=a'"),
        ("shop user=a +", "a descriptor is empty: it needs a KEY=VALUE"),
        ("shop 'user=a", "No closing quotation"),
    ],
)
def test_a_wrong_line_of_a_file_is_told(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "requests.txt"
    file.write_text(f"shop user=a\n{line}\n")

    result = load("127.0.0.1:1", "--requests", str(file))

    assert f"Error: {file}:2: {problem}\n" in result.stderr
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["localhost", "shop", "user=a"], "localhost has no port; the service's own is localhost:8081"),
        (["localhost:1"], "nothing to ask: write DOMAIN KEY=VALUE..., or --requests FILE"),
        (["localhost:1", "shop"], "nothing to ask: write DOMAIN KEY=VALUE..., or --requests FILE"),
        (
            ["localhost:1", "shop", "user=a", "--for=soon"],
            "'soon' is not a duration such as 10s, 1h30m, 15 minutes or 200ms",
        ),
        (["localhost:1", "shop", "user=a", "--for=0"], "'0' is not longer than 0"),
        (["localhost:1", "shop", "user=u{kee}"], "user=u{kee}: there is no field {kee}, only {key}"),
        (["localhost:1", "shop", "user=u{key"], "user=u{key: expected '}' before end of string; a brace itself is {{"),
        (
            ["localhost:1", "shop", "--requests", "file"],
            "the requests are in --requests: leave DOMAIN and KEY=VALUE out",
        ),
        (["localhost:1", "--requests", "/nowhere/at/all"], "/nowhere/at/all cannot be read: No such file or directory"),
    ],
)
def test_wrong_arguments_are_told(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(main, ["load", *arguments])

    assert problem in result.stderr
    assert result.exit_code == 2


def test_a_port_without_a_service_is_told() -> None:
    result = load(f"127.0.0.1:{free_port()}", "shop", "user=a")

    assert result.stderr.endswith(": nothing listens there\n")
    assert result.exit_code == 3


def test_the_port_of_pages_is_told(service: Service) -> None:
    result = load(f"127.0.0.1:{service.http_port}", "shop", "user=a", "--calls=1")

    assert "it speaks HTTP, not gRPC; gRPC is on port 8081 unless GRPC_PORT says otherwise" in result.stderr
    assert result.exit_code == 3


def test_a_load_over_tls(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    with start_service(tmp_path / "service", RULES, issue(ca, "server", "IP:127.0.0.1").environ) as service:
        target = f"127.0.0.1:{service.grpc_port}"
        told = load_json(target, "shop", "user=a", "--calls=100", "--ca", str(ca.cert))
        plain = load(target, "shop", "user=a", "--calls=100")

    assert (told["allowed"], told["refused"], told["failed"]) == (5, 95, 0)
    assert "it speaks TLS: add --tls, or --ca with the file of its CA" in plain.stderr
    assert plain.exit_code == 3


def test_the_picture_of_the_latencies_is_svg(service: Service, tmp_path: Path) -> None:
    picture = tmp_path / "latencies.svg"

    load(f"127.0.0.1:{service.grpc_port}", "shop", "user=a", "--calls=2000", "--picture", str(picture))

    root = ET.fromstring(picture.read_text())  # noqa: S314 - our own
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text and text.endswith(" %")] == ["0 %", "90 %", "99 %", "99.9 %"]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 1


def entries_of(message: bytes) -> list[tuple[str, str]]:
    """What gRPC's message asks."""
    assert message[:5] == b"\0" + (len(message) - 5).to_bytes(4, "big")
    request = RateLimitRequest.FromString(message[5:])
    return [(entry.key, entry.value) for descriptor in request.descriptors for entry in descriptor.entries]


def test_a_key_has_as_many_digits_as_the_last_one() -> None:
    requests = Requests([("shop", [(("user", "u{key}-{key}"), ("0", "1"))])], keys=11)

    seen = {tuple(entries_of(requests.next())) for _ in range(500)}

    assert seen == {(("user", f"u{key:02}-{key:02}"), ("0", "1")) for key in range(11)}


def test_a_brace_itself_is_two() -> None:
    requests = Requests([("shop", [(("path", "/users/{{id}}/{key}"),)])], keys=1)

    assert b"/users/{id}/0" in requests.next()


def test_zipf_makes_the_nth_key_as_likely_as_one_nth() -> None:
    requests = Requests([("shop", [(("user", "{key}"),)])], keys=1000, zipf=1)

    seen = Counter(entries_of(requests.next())[0][1] for _ in range(20_000))

    whole = sum(1 / number for number in range(1, 1001))
    for number in (1, 2, 10):
        assert seen[f"{number - 1:03}"] == pytest.approx(20_000 / number / whole, rel=0.15)


def test_percentiles_are_at_most_a_128th_too_high() -> None:
    draw = random.Random(7)  # noqa: S311 - no secret
    took = sorted(int(draw.lognormvariate(13, 2)) for _ in range(20_000))
    latencies = Latencies()
    for nanoseconds in took:
        latencies.observe(nanoseconds)

    for percent in (0.01, 10, 50, 90, 99, 99.9, 100):
        exact = took[max(0, ceil(len(took) * percent / 100) - 1)]
        assert exact <= latencies.percentile(percent) <= exact * (1 + 1 / 128)
    assert (latencies.calls, latencies.longest) == (20_000, took[-1])


def test_the_curve_ends_with_the_longest() -> None:
    latencies, other = Latencies(), Latencies()
    for nanoseconds in (5, 5, 100):
        latencies.observe(nanoseconds)
    other.observe(10**9)
    latencies.add(other)

    assert [(share, upper) for share, upper in latencies.curve()] == [(0.0, 5), (0.5, 100), (0.75, 10**9)]
