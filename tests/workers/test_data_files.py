"""Data files with several workers: all have those of the last good load."""

import os
import signal
from pathlib import Path

from tests.processes import Service
from tests.workers.pool import Caller, callers, start_pool

RULES = """\
domain: shop
lookup: {from: users.csv, key: user, as: tier, else: free}
descriptors:
  - {key: tier, value: pro, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: tier, value: free, rate_limit: {unit: year, requests_per_unit: 5}}
"""
MANY = "".join(f"user-{number},free\n" for number in range(10_000))
"""More than one message to a worker has."""


def put(service: Service, text: str) -> None:
    (service.rules / "new").write_text(text)
    (service.rules / "new").rename(service.rules / "users.csv")


def limits(asked: list[Caller]) -> set[int]:
    return {caller.ask().statuses[0].current_limit.requests_per_unit for caller in asked}


def test_all_workers_look_up_in_the_newest_list_and_one_that_is_replaced_in_the_last_good_one(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "shop.yaml").write_text(RULES)
    (rules / "users.csv").write_text(MANY)
    with start_pool(tmp_path, 2, rules=rules) as pool:
        with callers(pool.service.grpc_port, 4) as four:
            pool.wait_for_loads(2, 2)
            assert limits(four) == {5}
            put(pool.service, f"{MANY}ada,pro\n")
            pool.service.wait_until(lambda: limits(four) == {1000}, "all have the new list")
            (rules / "users.csv").unlink()
            pool.service.wait_until(lambda: "the old rules stay" in pool.service.log, "it is refused")
            assert limits(four) == {1000}
        old = pool.pids[1]
        os.kill(old, signal.SIGKILL)
        pool.wait_for_another(1, old)
        with callers(pool.service.grpc_port, 4) as four:
            pool.wait_for_loads(2, 2)

            assert limits(four) == {1000}


def test_an_empty_list_reaches_all_workers(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "shop.yaml").write_text(RULES)
    (rules / "users.csv").write_text("")
    with start_pool(tmp_path, 2, rules=rules) as pool, callers(pool.service.grpc_port, 4) as four:
        pool.wait_for_loads(2, 2)

        assert limits(four) == {5}
