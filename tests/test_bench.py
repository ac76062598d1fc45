"""The benchmarks run, and what they count is true: what they time is for people to read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.extended


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


def test_many_instances_that_lease_are_exact_and_touch_redis_as_often_as_the_model_says() -> None:
    algorithms = ("--algorithms", "fixed_window", "sub_windows", "token_bucket")
    told = bench(
        "leases.py", "--requests=10000", "--seconds=1", "--loads", "0.8", "--instances", "4", "64", *algorithms
    )

    rows = [[float(cell) for cell in line.split("|")[2:-1]] for line in told.splitlines()[2:]]
    assert [row[1] for row in rows] == [4, 64] * 3
    for _, _, admitted, calls, model, *_, lost, worst in rows:
        assert 0.99 <= admitted <= 1
        assert model / 1.5 <= calls <= model * 1.5
        assert (lost, worst) == (0, 0)


def test_a_flood_on_many_instances_never_passes_the_limit() -> None:
    told = bench("leases.py", "--requests=2000", "--seconds=2", "--loads", "3", "--instances", "16", "200")

    rows = [[float(cell) for cell in line.split("|")[2:-1]] for line in told.splitlines()[2:]]
    assert len(rows) == 8
    assert all(row[-1] == 0 for row in rows)


def test_the_page_on_scale_has_what_the_model_says() -> None:
    page = (ROOT / "bench" / "scale" / "RESULTS.md").read_text(encoding="utf-8")

    tables = bench("scale").strip().split("\n\n")

    assert len(tables) == page.count(":begin -->") == 8
    assert [table for table in tables if f"\n{table}\n" not in page] == []


def test_what_is_reserved_is_never_more_than_the_budget_and_what_is_looked_at_is() -> None:
    told = bench("budgets.py", "--callers=16", "--seconds=2", "--services=2")

    _, *used = [cell.split()[0] for cell in told.splitlines()[2].strip("| ").split("|")]
    looked, most, bucket, _ = [int(each.replace(",", "")) for each in used]
    assert looked > 100_000
    assert most <= 100_000
    assert bucket <= 100_100  # with what comes back meanwhile
