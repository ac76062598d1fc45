"""The benchmarks run, and what they count is true: what they time is for people to read."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT, start_service

RULES = "domain: bench\ndescriptors: [{key: user0, rate_limit: {unit: year, requests_per_unit: 5}}]\n"
ANSWERED = r'total_hits\{[^}]*"user0"\} [1-9]'


def bench(program: str, *options: str) -> str:
    """What it prints."""
    command = [sys.executable, str(ROOT / "bench" / program), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("transport", ["grpcio", "http2"])
@pytest.mark.parametrize("pace", [[], ["--rate=2000"]], ids=["as_fast_as_it_can", "at_a_rate"])
def test_a_load_makes_so_many_calls_and_reads_every_answer(tmp_path: Path, transport: str, pace: list[str]) -> None:
    with start_service(tmp_path, RULES, {"TRANSPORT": transport}) as service:
        told = bench("load.py", f"127.0.0.1:{service.grpc_port}", "--json", "--calls=1000", "--keys=7", *pace)
        tallied = service.metrics()

    result: dict[str, Any] = json.loads(told)
    assert (result["calls"], result["refused"], result["failures"]) == (1000, 1000 - 7 * 5, {})
    assert 0 < result["p50"] <= result["p99"] <= result["longest"]
    assert f'rate_limit_over_limit{{domain="bench",key1="user0"}} {result["refused"]}\n' in tallied


def test_a_load_tells_of_calls_that_fail(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        told = bench("load.py", f"127.0.0.1:{service.grpc_port}", "--json", "--calls=100", "--descriptors=0")

    assert json.loads(told)["failures"] == {"status 3": 100}


def test_a_load_at_a_rate_tells_of_every_call_whose_connection_is_lost(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        command = [sys.executable, str(ROOT / "bench" / "load.py"), f"127.0.0.1:{service.grpc_port}", "--json"]
        with subprocess.Popen([*command, "--rate=500", "--calls=2000"], stdout=subprocess.PIPE, text=True) as load:
            service.wait_until(lambda: re.search(ANSWERED, service.metrics()) is not None, "calls have come")
            service.kill()
            told, _ = load.communicate(timeout=120)

    result = json.loads(told)
    assert 0 < result["calls"] < 2000
    assert result["calls"] + sum(result["failures"].values()) == 2000


def test_services_are_compared_while_one_thing_varies(tmp_path: Path) -> None:
    results, picture = tmp_path / "results.json", tmp_path / "picture.svg"

    told = bench(
        "service.py", "--vary=keys=1,50", "--calls=200", "--rounds=1", f"--json={results}", f"--picture={picture}"
    )

    assert [line.split()[0] for line in told.splitlines() if line.split()[0] in {"keys", "memory", "redis"}] == [
        *("keys", "memory", "redis"),
        *("keys", "memory", "redis"),
    ]
    rounds = json.loads(results.read_text())["rounds"]
    assert [(row["varied"], row["service"], row["failed"]) for row in rounds] == [
        (value, service, 0) for value in ("1", "50") for service in ("memory", "redis")
    ]
    assert picture.read_text().count("<polyline") == 2
