"""What happened lately in all workers together, and what the page says of each of them."""

import json
import os
import signal
from pathlib import Path

from tests.browser import opened
from tests.processes import ask
from tests.workers.pool import ASK, WorkerPool, callers, start_pool


def allowed(pool: WorkerPool) -> int:
    return sum(pool.status["history"]["domains"].get("shop", {}).get("allowed", []))


def allowed_by_rule(pool: WorkerPool) -> int:
    reply = ask(pool.service.debug_port, "/status/history?domain=shop&rule=user")
    return sum(json.loads(reply.body)["columns"].get("allowed", [])) if reply.status == 200 else -1


def test_history_is_the_sum_of_all_workers_and_outlives_each(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool:
        with callers(pool.service.grpc_port, 4) as four:
            pool.wait_for_loads(2, 2)
            for caller in four * 3:
                caller.ask()
            pool.service.wait_until(lambda: allowed(pool) == 16, "both workers have reported")
            pool.service.wait_until(lambda: allowed_by_rule(pool) == 16, "rules are the sum of all workers")
        killed = pool.pids[2]
        os.kill(killed, signal.SIGKILL)
        pool.wait_for_another(2, killed)
        pool.post(ASK)
        pool.service.wait_until(lambda: allowed(pool) == 17, "nothing is lost with a worker")
        pool.service.wait_until(lambda: allowed_by_rule(pool) == 17, "nor of a rule")
        status = pool.status
        with opened(f"http://127.0.0.1:{pool.service.debug_port}/") as page:
            page.wait_until("document.getElementById('processes').textContent.includes('worker 2')")
            rows = page.evaluate(
                "[...document.querySelectorAll('#processes tr')].filter(row => row.textContent.startsWith('worker'))"
                ".map(row => [0, 1, 7].map(at => row.cells[at].textContent))"
            )

            assert page.problems == []

    first, second = status["workers"]
    assert [first["restarts"], second["restarts"]] == [0, 1]
    assert first["age_seconds"] > second["age_seconds"] > 0
    assert first["cpu_seconds"] > 0
    assert status["process"]["pid"] == pool.service.pid
    assert status["last_minute"]["store"]["requests"] >= 17
    assert status["last_minute"]["loop_lag"]["timers"] > 0
    assert rows == [["worker 1", str(first["pid"]), "0"], ["worker 2", str(second["pid"]), "1"]]
