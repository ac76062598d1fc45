"""The benchmarks run, and what they count is true: what they time is for people to read."""

import json
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT


def bench(program: str, *options: str) -> str:
    """What it prints."""
    command = [sys.executable, str(ROOT / "bench" / program), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_services_are_compared_while_one_thing_varies(tmp_path: Path) -> None:
    results, picture = tmp_path / "results.json", tmp_path / "picture.svg"

    told = bench(
        "service.py",
        *("--vary=keys=1,50", "--calls=200", "--rounds=1", "--pages=1"),
        *(f"--json={results}", f"--picture={picture}"),
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


def test_a_look_of_the_page_has_a_cost_and_a_size() -> None:
    told = bench("page.py", "--rules=20", "--looks=1", "--seconds=0.1")

    rows = [line.split() for line in told.splitlines() if "/" in line]
    texts = ["/status/rules", "/status/now", "/status/recent", "/metrics"]
    assert [(asked, text) for _, asked, text, *_ in rows] == [
        (each, text) for each in ("idle", "asked") for text in texts
    ]
    assert all(float(ms) > 0 and float(size) > float(packed) for *_, ms, size, packed in rows)


def test_the_outflow_of_a_queue_is_that_of_its_limit_by_either_timer() -> None:
    told = bench("outflow.py", "--rates=100", "--seconds=1.5", "--processes=2", "--delay=100")

    rows = [line.split("|")[1:-1] for line in told.splitlines() if line.startswith("| 100/s")]
    assert [row[2].strip() for row in rows] == ["event loop", "timerfd"]
    assert all(float(row[3].strip().removesuffix("/s")) > 0 for row in rows)
