"""A worker that computes for long is left alone; one that does not move is replaced. Others notice neither."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tests import hanging
from tests.processes import ROOT
from tests.transports.certificates import Issued, authority, issue
from tests.workers.pool import RULES, SECONDS, Caller, Load, callers, start_pool

FAULTS = Path(__file__).with_name("faults")


@pytest.mark.slow
def test_a_busy_worker_is_not_killed_and_one_that_waits_for_ever_is(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": f"{FAULTS}:{ROOT}"}
    with start_pool(tmp_path, 3, environ) as pool, ExitStack() as stack:
        of: dict[int, list[Caller]] = {1: [], 2: [], 3: []}
        for _ in range(6):
            fewer = pool.connections
            (caller,) = stack.enter_context(callers(pool.service.grpc_port, 1))
            of[next(number for number, count in pool.connections.items() if count > fewer[number])].append(caller)
        before = pool.pids
        busy, waiting = before[1], before[2]
        threads = stack.enter_context(ThreadPoolExecutor())
        with Load(of[3]) as load:
            os.kill(busy, signal.SIGUSR1)
            os.kill(waiting, signal.SIGUSR2)
            asked = [threads.submit(caller.ask, 10 * SECONDS) for caller in of[1]]
            killed = "killing worker 2: it sent no message and used no CPU for 30 s"
            pool.service.wait_until(lambda: killed in pool.service.log, "it is killed", 2 * SECONDS)
            pool.wait_for_another(2, waiting)
            left_alone = "no message from worker 1 for 30 s, it is busy: its calls wait"
            pool.service.wait_until(lambda: left_alone in pool.service.log, "it is told", 2 * SECONDS)
            (tmp_path / "service" / "GO_ON").touch()
            answers = [future.result(SECONDS) for future in asked]
            load.wait_for(10)
            pool.service.wait_until(lambda: len(pool.pids) == 3, "all are ready")

        assert [len(answer.statuses) for answer in answers] == [1, 1]
        assert (pool.pids[1], pool.pids[3]) == (busy, before[3])
        assert load.errors == [[], []]
        assert pool.metric("ratelimit_worker_deaths_total") == 1


@pytest.mark.skipif(not hanging.can_hang(), reason="a process may not mount what it serves itself")
def test_a_file_system_that_hangs_stops_neither_the_parent_nor_the_workers(tmp_path: Path) -> None:
    """The parent reads the rules there, and the workers their certificate: a link leads to the one file that it has."""
    ca = authority(tmp_path)
    own = issue(ca, "server", "IP:127.0.0.1")
    rules, mount = tmp_path / "rules", tmp_path / "mount"
    rules.mkdir()
    mount.mkdir()
    (rules / "shop.yaml").write_text(RULES)
    (rules / "mounted").symlink_to(mount)
    prefix = hanging.command(mount, own.cert, tmp_path / "pid")
    credentials = grpc.ssl_channel_credentials(ca.cert.read_bytes())
    environ = Issued(mount / own.cert.name, own.key).environ
    with start_pool(tmp_path, 2, environ, rules, prefix=prefix) as pool:
        pids = pool.pids
        with callers(pool.service.grpc_port, 2, credentials) as two, Load(two) as load:
            hanging.Server(tmp_path / "pid").hang()
            with callers(pool.service.grpc_port, 4, credentials):  # each has had its answer
                pool.wait_for_metric("ratelimit_reload_last_attempt_successful", 0)
                pool.wait_for_metric("ratelimit_tls_reload_last_attempt_successful", 0)
            load.wait_for(10)

        assert load.errors == [[], []]
        assert pool.pids == pids
        assert pool.service.stop() == 0
