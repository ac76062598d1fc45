"""The hottest descriptors of all workers together, by each way to be refused that Redis has."""

import json
from pathlib import Path
from typing import Any

from tests.processes import ask
from tests.workers.pool import WorkerPool, callers, start_pool

RULES = """\
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: soft, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: login, rate_limit: {unit: year, requests_per_unit: 1, block_for: 1 day}}
  - {key: known, rate_limit: {unit: year, requests_per_unit: 1, algorithm: token_bucket}}
  - {key: secret, hash_values: true, rate_limit: {unit: year, requests_per_unit: 1}}
"""


def post(pool: WorkerPool, key: str, cost: int = 1) -> int:
    body = {"domain": "shop", "descriptors": [{"entries": [{"key": key, "value": "x"}]}], "hitsAddend": cost}
    return pool.post(json.dumps(body)).status


def hot(pool: WorkerPool) -> dict[tuple[str, str], tuple[int, int]]:
    found: Any = json.loads(ask(pool.service.debug_port, "/status/now").body)["hot"]
    return {
        (rule["rule"][0], rule["entries"][0][1]): (rule["hits"], rule["refused"])
        for rule in (*found["most_hits"], *found["most_refused"])
    }


def test_the_hottest_of_all_workers_are_added_up(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2, {"HASH_KEY": "0123456789abcdef" * 2}, RULES) as pool:
        with callers(pool.service.grpc_port, 4) as four:
            pool.wait_for_loads(2, 2)
            for caller in four * 5:
                caller.ask()
        for key in ("soft", "login", "known", "secret"):
            for _ in range(8 if key == "known" else 4):
                post(pool, key)
        post(pool, "user", 7)
        pool.service.wait_until(lambda: ("user", "ada") in hot(pool) and len(hot(pool)) == 6, "both have reported")
        wanted = {
            ("user", "x"): (1, 1),
            ("soft", "x"): (4, 0),
            ("login", "x"): (4, 3),
            ("known", "x"): (8, 7),
        }
        pool.service.wait_until(lambda: wanted.items() <= hot(pool).items(), "all are counted")
        found = hot(pool)
        # Redis denied once for each worker, at most twice then; all others were remembered refusals.
        remembered = pool.metric('ratelimit_service_rate_limit_over_limit_with_local_cache{domain="shop",key1="known"}')

    assert remembered >= 4
    hits, refused = found["user", "ada"]
    assert (hits, refused) == (24, 21)
    (digest,) = [value for rule, value in found if rule == "secret"]
    assert digest.startswith("h-")
    assert found["secret", digest] == (4, 3)
