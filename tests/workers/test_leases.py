"""What several workers hold of one counter, as explanations say it."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from ratelimit_service.cli import main
from tests.admin.test_page_acts import try_request
from tests.browser import opened
from tests.processes import ask
from tests.workers.pool import ASK, Load, WorkerPool, callers, start_pool

RULES = """
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 4000000000, algorithm: sub_windows, lease: auto}}
"""


COLUMNS = "[...document.querySelectorAll('#heads th')].map(head => head.textContent)"
CELL = "document.querySelector('#rows td[data-head=\"{}\"]').textContent"
RESULT = "document.getElementById('try-result').textContent"


def explained(pool: WorkerPool) -> dict[str, Any]:
    """The state of the counter of ada; nothing if a worker that hangs was asked."""
    reply = ask(pool.service.debug_port, "/explain", method="POST", body=ASK)
    return json.loads(reply.body)["descriptors"][0]["rules"][0]["state"] if reply.status == 200 else {}


def units(pool: WorkerPool) -> dict[int, int | None]:
    """What each process holds, by its id."""
    state = explained(pool)
    found = {holder["pid"]: holder["units"] for holder in state.get("holders", ())}
    assert state.get("held", 0) == sum(each or 0 for each in found.values())
    return found


def test_an_explanation_says_what_each_worker_holds_and_which_does_not_answer(tmp_path: Path) -> None:
    with (
        start_pool(tmp_path, 2, rules=RULES) as pool,
        callers(pool.service.grpc_port, 2) as made,
        Load(made),
    ):
        pids = pool.pids
        pool.service.wait_until(lambda: units(pool).keys() == set(pids.values()), "both hold some")

        def shown() -> str:
            return (
                CliRunner()
                .invoke(main, ["explain", "shop", "user=ada", "--at", f"127.0.0.1:{pool.service.debug_port}"])
                .stdout
            )

        both = rf"[\d,]+ leased to worker 1 \(pid {pids[1]}: [\d,]+\) and worker 2 \(pid {pids[2]}: [\d,]+\)"
        pool.service.wait_until(lambda: re.search(both, shown()) is not None, "the command says so")
        with opened(f"http://127.0.0.1:{pool.service.debug_port}/") as page:
            page.wait_until(f"{COLUMNS}.includes('Leased')")
            page.wait_until(f"{CELL.format('Leased')} === '2' && {CELL.format('Held')} !== '0'")
            columns = page.evaluate(COLUMNS)
            try_request(page, "user=ada")
            again = "document.querySelector('#try button').click()"
            page.wait_until(f"({again}, /leased to worker 1 .pid {pids[1]}: [0-9,]+/.test({RESULT}))")
            problems = page.problems
        series = r'^ratelimit_rule_leases_held{domain="shop",key1="user"} 2$'
        pool.service.wait_until(
            lambda: re.search(series, pool.service.metrics(), re.MULTILINE) is not None, "as metrics"
        )
        pool.stop(pids[2])
        pool.service.metrics()  # now the other one has spoken last, so it explains
        one = rf"worker 2 \(pid {pids[2]}: not known\)"
        pool.service.wait_until(lambda: re.search(one, shown()) is not None, "it is not known what one holds")
        os.kill(pids[2], signal.SIGCONT)  # or its caller waits

    assert columns[columns.index("Leased") :][:3] == ["Leased", "Held", "Hits"]
    assert problems == []
