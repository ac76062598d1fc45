"""Who gets which connection, and what becomes of it when a worker hangs or dies."""

import os
import resource
import signal
from contextlib import ExitStack
from pathlib import Path

from tests.workers.pool import ASK, Caller, Load, callers, start_pool


def test_each_connection_goes_to_the_worker_with_the_fewest(tmp_path: Path) -> None:
    with start_pool(tmp_path, 3) as pool, callers(pool.service.grpc_port, 8) as eight:
        pool.wait_for_loads(2, 3, 3)
        for caller in eight[:5]:
            caller.close()
        pool.service.wait_until(lambda: sum(pool.loads) == 3, "five are gone")
        with callers(pool.service.grpc_port, 6):
            pool.wait_for_loads(3, 3, 3)


def test_the_most_connections_there_may_be_are_those_of_all_workers_together(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2, {"GRPC_MAX_CONNECTIONS": "4"}) as pool, callers(pool.service.grpc_port, 4):
        with callers(pool.service.grpc_port, 2):  # each of them has asked, and was answered
            pool.wait_for_loads(2, 2)

        assert pool.metric('ratelimit_grpc_connections_ended_total{reason="evicted"}') == 2


def test_a_killed_worker_takes_its_own_connections_with_it_and_nothing_else(tmp_path: Path) -> None:
    with start_pool(tmp_path, 3) as pool, ExitStack() as stack:
        six, worker_of = [], []
        for _ in range(6):
            fewer = pool.connections
            six += stack.enter_context(callers(pool.service.grpc_port, 1))
            worker_of += [number for number, count in pool.connections.items() if count > fewer[number]]
        before, totals = pool.pids, []
        with Load(six) as load:
            load.wait_for(50)
            os.kill(before[2], signal.SIGKILL)
            pool.service.wait_until(lambda: "worker 2 with pid" in pool.service.log, "the death is told")
            for _ in range(10):
                load.wait_for(20)
                totals.append(pool.metric("ratelimit_service_total_requests"))
            pool.wait_for_another(2, before[2])
            load.wait_for(50)

        after = pool.pids
        assert sorted(worker_of) == [1, 1, 2, 2, 3, 3]
        # A caller of the killed worker has no error either, if it had no call in flight at that moment.
        others = [index for index, number in enumerate(worker_of) if number != 2]
        assert [load.errors[index] for index in others] == [[]] * 4
        assert totals == sorted(totals)
        # What the killed worker had not yet reported is lost, a second's worth at the most; of the others, nothing.
        total = "ratelimit_service_total_requests"
        reported = sum(load.answers[index] for index in others)
        pool.service.wait_until(lambda: pool.metric(total) >= reported, "all of the others is reported")
        assert pool.metric(total) <= sum(load.answers) + 6 + load.failed
        assert (after[1], after[3]) == (before[1], before[3])
        assert after[2] != before[2]
        assert pool.service.log.count("was killed by SIGKILL; its 2 connections are lost") == 1
        assert pool.metric("ratelimit_worker_deaths_total") == 1


def test_a_new_worker_gets_its_share_of_the_connections_and_no_call_is_lost_by_it(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool, callers(pool.service.grpc_port, 4) as four:
        pool.wait_for_loads(2, 2)
        with Load(four) as load:
            os.kill(pool.pids[1], signal.SIGKILL)
            pool.wait_for_loads(4)
            pool.wait_for_loads(2, 2)
            load.wait_for(20)

        assert load.failed <= 2, load.errors


def test_a_worker_that_hangs_gets_no_connections_until_it_goes_on(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool:
        stopped = pool.pids[1]
        pool.stop(stopped)
        with callers(pool.service.grpc_port, 6):  # each has had its answer
            pool.wait_for_loads(0, 6)
            pool.service.wait_until(lambda: "no message from worker 1" in pool.service.log, "it is told")
            os.kill(stopped, signal.SIGCONT)
            pool.service.wait_until(lambda: "worker 1 answers again" in pool.service.log, "it goes on")
            with callers(pool.service.grpc_port, 6):
                pool.wait_for_loads(6, 6)

        assert pool.pids[1] == stopped


def test_json_is_answered_by_the_worker_that_spoke_last(tmp_path: Path) -> None:
    """Of those that have no such call; so nobody waits for one that hangs, long before that is certain."""
    with start_pool(tmp_path, 2) as pool:
        answers = []
        for pid in pool.pids.values():
            pool.stop(pid)
            assert len(pool.pids) == 2, "the other one has told its counts"
            answers += [pool.post(ASK).status for _ in range(3)]
            os.kill(pid, signal.SIGCONT)

        assert answers == [200] * 6
        assert "no message from" not in pool.service.log


def test_while_all_workers_hang_connections_wait(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool:
        pids = pool.pids.values()
        for pid in pids:
            pool.stop(pid)
        caller = Caller(pool.service.grpc_port)
        with Load([caller]) as load:
            # One of them dies with the connection at its door; it is none of its own, and is not lost.
            os.kill(pool.pids[1], signal.SIGKILL)
            load.wait_for(5)
        for pid in pids:
            if pid in pool.pids.values():
                os.kill(pid, signal.SIGCONT)
        caller.close()

        assert load.errors == [[]]


def test_a_unix_socket_is_shared_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    with start_pool(tmp_path, 2, {"GRPC_UDS": str(path)}) as pool:
        with callers(f"unix:{path}", 4):
            pool.wait_for_loads(2, 2)
        assert pool.service.stop() == 0
        assert not path.exists()


def test_json_is_answered_by_a_worker(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool, callers(pool.service.grpc_port, 1) as (caller,):
        http = [pool.post(ASK).status for _ in range(3)]
        left = caller.ask().statuses[0].limit_remaining

        assert http == [200] * 3
        assert left == 1_000_000 - 5
        assert pool.post("{}").status == 400


def test_a_worker_that_may_open_no_more_files_loses_no_connection(tmp_path: Path) -> None:
    """It has the fewest, so it would be given all that come; they go to the other."""
    with start_pool(tmp_path, 2) as pool:
        pid = pool.pids[1]
        old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        highest = max(int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1, old[1]))
        with callers(pool.service.grpc_port, 30) as thirty, Load(thirty) as load:  # each has had its answer
            pool.service.wait_until(lambda: sum(pool.loads) == 30, "all are there")
            loads = pool.loads
            resource.prlimit(pid, resource.RLIMIT_NOFILE, old)
            with callers(pool.service.grpc_port, 30):
                pool.service.wait_until(lambda: pool.loads[0] > loads[0], "it is given some again")
            load.wait_for(20)

        assert loads[0] < loads[1]
        assert load.errors == [[]] * 30
        assert "worker 1: cannot accept connections, which go to other workers" in pool.service.log
        assert "worker 1: accepting connections again" in pool.service.log
