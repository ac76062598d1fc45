"""Counters that are reset by HTTP while workers remember whom they refused."""

import json
from pathlib import Path

from tests.processes import ask
from tests.workers.pool import callers, start_pool

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1, algorithm: sub_windows, count_refused: false, block_for: 2 years}
"""


def test_every_worker_forgets_whom_it_refused(tmp_path: Path) -> None:
    body = {"domain": "shop", "entries": [{"key": "user", "value": "ada"}], "who": "me"}
    with start_pool(tmp_path, 2, rules=RULES) as pool, callers(pool.service.grpc_port, 2) as made:
        assert min(pool.connections.values()) == 1
        for caller in made:
            caller.ask()
        before = [[caller.ask().overall_code for caller in made] for _ in range(2)]
        for caller in made:
            reply = ask(pool.service.debug_port, "/counters/reset", method="POST", body=json.dumps(body))
            assert (reply.status, json.loads(reply.body)["store"]) == (200, "redis")
            pool.service.wait_until(lambda one=caller: one.ask().overall_code == 1, "it is allowed")  # type: ignore[misc]

        assert before == [[2, 2], [2, 2]]
        assert pool.service.log.count("reset by me from 127.0.0.1: 1 counter of user=ada in domain shop") == 2
