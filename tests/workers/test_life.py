"""The processes from their start to their end: signals, exit codes, what is told, and who replaces whom."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from ratelimit_service.settings import SETTINGS
from tests import peers
from tests.envoy.load import load as envoy_load
from tests.envoy.proxy import HEALTH_CHECK, bootstrap, by, route, start_envoy
from tests.processes import ask, eventually, start_service
from tests.redis import start_redis
from tests.stories.test_life import run
from tests.transports.certificates import Issued, authority, expired, issue
from tests.workers.pool import ASK, RULES, SECONDS, Load, callers, gone, start_pool


def test_each_worker_that_dies_soon_is_replaced_later_than_the_last(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool:
        pid = pool.pids[2]
        os.kill(pid, signal.SIGKILL)
        for _ in range(2):
            pid = pool.wait_for_another(2, pid)
            os.kill(pid, signal.SIGKILL)
        pool.service.wait_until(lambda: pool.service.log.count("worker 2 with pid") == 3, "three deaths are told")

        assert re.findall(r"worker 2 .* replaced in ([\d.]+) s", pool.service.log) == ["0.1", "0.2", "0.4"]


@pytest.mark.slow
def test_a_worker_that_hangs_for_good_is_replaced_and_after_as_long_a_life_pauses_begin_anew(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool:
        for _ in range(2):
            pid = pool.pids[2]
            os.kill(pid, signal.SIGKILL)
            pool.wait_for_another(2, pid)
        hanging, living = pool.pids[1], pool.pids[2]
        pool.stop(hanging)
        told = "killing worker 1: it sent no message and used no CPU for 30 s"
        pool.service.wait_until(lambda: told in pool.service.log, "it is killed", 2 * SECONDS)
        pool.wait_for_another(1, hanging)
        os.kill(living, signal.SIGKILL)
        pool.wait_for_another(2, living)

        pauses = re.findall(r"worker (\d) .* replaced in ([\d.]+) s", pool.service.log)

    assert pauses == [("2", "0.1"), ("2", "0.2"), ("1", "0.1"), ("2", "0.1")]


@pytest.mark.slow
def test_a_worker_that_is_about_to_be_replaced_is_not_when_the_service_stops(tmp_path: Path) -> None:
    """A worker that starts says that the certificate has expired: so its starts can be counted."""
    own = issue(authority(tmp_path), "server", "IP:127.0.0.1")
    cert = expired(Issued(tmp_path / "ca.pem", tmp_path / "ca.key"), own)
    with start_pool(tmp_path, 2, Issued(cert, own.key).environ) as pool:
        pid = pool.pids[2]
        os.kill(pid, signal.SIGKILL)
        for _ in range(5):
            pid = pool.wait_for_another(2, pid)
            os.kill(pid, signal.SIGKILL)
        pool.service.wait_until(lambda: "replaced in 3.2 s" in pool.service.log, "there is time before the next")
        code = pool.service.stop()

        assert code == 0
        assert pool.service.log.count("it has expired") == 2 + 5


def test_when_the_parent_is_killed_the_workers_finish_and_go(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool, callers(pool.service.grpc_port, 2) as two:
        pids = pool.pids.values()
        with Load(two):
            pool.service.kill()
            eventually(lambda: all(map(gone, pids)), "the workers are gone")

        assert pool.service.log.count("the parent process exited") == 2


def test_sigterm_to_every_process_drains_as_sigterm_to_the_parent(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2, {"DRAIN_SECONDS": "5"}) as pool:
        pids = pool.pids.values()
        for pid in (*pids, pool.service.pid):
            os.kill(pid, signal.SIGTERM)
        pool.service.wait_until(lambda: not pool.service.healthy, "health says no while the ports are open")
        with callers(pool.service.grpc_port, 2):
            assert pool.post(ASK).status == 200

        assert pool.service.wait() == 0
        assert all(map(gone, pids))
        assert pool.service.log.rstrip().endswith("stopped")


def test_all_workers_say_that_they_drain(tmp_path: Path) -> None:
    client = Path(__file__).parents[1] / "api" / "health_client.py"
    with start_pool(tmp_path, 2, {"DRAIN_SECONDS": "3600"}) as pool, ExitStack() as stack:
        outputs = []
        for _ in range(2):
            command = [sys.executable, str(client), f"127.0.0.1:{pool.service.grpc_port}", "watch", ""]
            environ = {"PYTHONPATH": str(peers.grpc_peers())}
            watching = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
            stack.enter_context(watching)
            stack.callback(watching.kill)
            assert watching.stdout is not None
            outputs.append(watching.stdout)
        before = [output.readline() for output in outputs]
        loads = pool.loads
        pool.service.send(signal.SIGTERM)
        after = [output.readline() for output in outputs]

    assert loads == [1, 1]
    assert (before, after) == (["SERVING\n"] * 2, ["NOT_SERVING\n"] * 2)


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    with start_pool(tmp_path, 2, {"DRAIN_SECONDS": "3600", "GRPC_UDS": str(path)}) as pool:
        pids = pool.pids.values()
        pool.service.send(signal.SIGTERM)
        pool.service.wait_until(lambda: "draining" in pool.service.log, "it drains")
        pool.service.send(signal.SIGINT)

        assert pool.service.wait() == 128 + signal.SIGINT
        assert not path.exists()
        eventually(lambda: all(map(gone, pids)), "the workers are gone")


@pytest.mark.slow
def test_a_worker_that_hangs_for_good_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2, {"DRAIN_TIMEOUT": "1h"}) as pool:
        pool.stop(pool.pids[1])
        pool.service.send(signal.SIGTERM)

        assert pool.service.wait(2 * SECONDS) == 0
        assert "killing worker 1: it sent no message and used no CPU for 30 s" in pool.service.log


def test_no_setting_and_no_secret_stands_in_a_worker_s_environment(tmp_path: Path) -> None:
    password = "hunter2"
    with start_redis(tmp_path / "redis") as redis:
        redis.cli("ACL", "SETUSER", "service", "on", f">{password}", "~*", "+@all")
        environ = {
            "WORKERS": "2",
            "TRANSPORT": "http2",
            "REDIS_URL": f"127.0.0.1:{redis.port}",
            "REDIS_AUTH": f"service:{password}",
            "STORE_DEADLINE": "10s",
            "LANG": "C.UTF-8",
        }
        with start_service(tmp_path / "service", RULES, environ) as service:
            answer = ask(service.http_port, "/json", method="POST", body=ASK)
            workers = json.loads(ask(service.debug_port, "/status").body)["workers"]
            told = [Path(f"/proc/{worker['pid']}/environ").read_text().split("\0") for worker in workers]

    assert answer.status == 200
    assert len(told) == 2
    for variables in told:
        assert "LANG=C.UTF-8" in variables
        assert not {variable.partition("=")[0] for variable in variables} & {setting.variable for setting in SETTINGS}
        assert password not in "".join(variables)


def test_sighup_has_all_workers_load_the_rules(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2, {"RULES_POLL_INTERVAL": "1h"}) as pool, callers(pool.service.grpc_port, 4) as four:
        pool.wait_for_loads(2, 2)
        pool.service.write_rules(RULES.replace("1000000", "5000"))
        pool.service.send(signal.SIGHUP)

        def limits() -> set[int]:
            return {caller.ask().statuses[0].current_limit.requests_per_unit for caller in four}

        pool.service.wait_until(lambda: limits() == {5000}, "all have the new rules")

        assert pool.service.log.count("rules loaded") == 2


def test_a_worker_that_is_replaced_while_wrong_rules_lie_there_has_the_last_good_ones(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool:
        pool.service.write_rules(RULES.replace("year", "fortnight"))
        pool.service.wait_until(lambda: "the old rules stay" in pool.service.log, "they are refused")
        old = pool.pids[1]
        os.kill(old, signal.SIGKILL)
        pool.wait_for_another(1, old)
        with callers(pool.service.grpc_port, 4) as four:
            pool.wait_for_loads(2, 2)

            assert [caller.ask().statuses[0].current_limit.requests_per_unit for caller in four] == [1_000_000] * 4


def test_bad_rules_at_the_start_are_told_once_and_all_serve_once_they_are_mended(tmp_path: Path) -> None:
    with start_redis(tmp_path / "redis") as redis:
        environ = {"WORKERS": "2", "TRANSPORT": "http2", "REDIS_URL": f"127.0.0.1:{redis.port}"}
        bad = RULES.replace("year", "fortnight")
        with start_service(tmp_path / "service", bad, environ, wait_until_healthy=False) as service:
            assert service.log.count("fortnight") == 1
            assert ask(service.http_port, "/healthcheck").status == 500
            assert "no rate limit configuration" in ask(service.http_port, "/json", method="POST", body=ASK).body

            service.write_rules(RULES)

            service.wait_until(lambda: service.healthy, "it serves")


def test_start_faults_are_told_as_by_one_process_and_once(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "shop.yaml").write_text(RULES)
    shared = {"WORKERS": "3", "TRANSPORT": "http2", "REDIS_URL": "127.0.0.1:1"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        hosts = dict.fromkeys(("HOST", "DEBUG_HOST", "GRPC_HOST"), "127.0.0.1")
        port = str(taken.getsockname()[1])
        ended = [
            run(tmp_path, {**shared, **hosts, name: port}, "--rules", str(rules))
            for name in ("PORT", "DEBUG_PORT", "GRPC_PORT")
        ]
    tls = {"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": "cert.pem", "GRPC_SERVER_TLS_KEY": "key.pem"}
    certificate = run(tmp_path, {**shared, **tls}, "--rules", str(rules))
    folder = run(tmp_path, shared, "--rules", "nowhere")

    in_use = f"ratelimit: cannot listen on 127.0.0.1:{port}: address already in use"
    assert [(each.returncode, each.stderr) for each in ended] == [
        (1, f"{in_use} (HOST, PORT)\n"),
        (1, f"{in_use} (DEBUG_HOST, DEBUG_PORT)\n"),
        (1, f"{in_use} (GRPC_HOST, GRPC_PORT)\n"),
    ]
    assert (certificate.returncode, certificate.stderr) == (
        1,
        "ratelimit: cannot read the certificate cert.pem: no such file or directory\n",
    )
    assert (folder.returncode, folder.stderr) == (
        1,
        "ratelimit: there are no rules: nowhere does not exist; say where they are with --rules or RULES_PATH\n",
    )


@pytest.mark.parametrize("workers", ["2", "auto"])
def test_workers_that_cannot_share_are_refused_with_what_to_do(tmp_path: Path, workers: str) -> None:
    memory = run(tmp_path, {"WORKERS": workers, "TRANSPORT": "http2"}, "--rules", ".")
    grpcio = run(tmp_path, {"WORKERS": workers, "TRANSPORT": "grpcio", "REDIS_URL": "127.0.0.1:1"}, "--rules", ".")

    counters = "needs counters that all workers share, and BACKEND_TYPE is memory: say where Redis is with REDIS_URL"
    connections = "needs TRANSPORT=http2: with grpcio no worker can take over a connection"
    assert (memory.returncode, memory.stderr) == (2, f'ratelimit: WORKERS: "{workers}" {counters}, or WORKERS=1\n')
    assert (grpcio.returncode, grpcio.stderr) == (2, f'ratelimit: WORKERS: "{workers}" {connections}, or WORKERS=1\n')


def test_a_line_of_a_worker_says_which_and_start_up_is_told_once(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2, {"LOG_FORMAT": "json"}) as pool:
        pool.redis.kill()
        pool.service.wait_until(lambda: pool.service.log.count("store lost") == 2, "both have lost it")
        lines = [json.loads(line) for line in pool.service.log.splitlines()]

    assert sorted(line["worker"] for line in lines if "store lost" in line["@message"]) == [1, 2]
    assert not any("worker" in line for line in lines if "store lost" not in line["@message"])
    assert [line["@message"].split()[0] for line in lines].count("starting") == 1


def test_envoy_notices_neither_a_killed_worker_of_others_nor_a_drain(tmp_path: Path) -> None:
    """Of two instances one has workers; it is told to stop while requests go on, and none may fail."""
    environ = {"DRAIN_SECONDS": "8"}
    with start_pool(tmp_path / "leaving", 2, environ) as leaving, start_pool(tmp_path / "staying", 2) as staying:
        ports = {leaving.service.grpc_port, staying.service.grpc_port}
        configuration = bootstrap(
            sorted(ports),
            [route("/", by(("user", "=ada")))],
            filter_options={"failure_mode_deny": True},
            health_checks=[HEALTH_CHECK],
        )
        with start_envoy(tmp_path / "envoy", configuration) as envoy:
            envoy.wait_until(lambda: envoy.healthy_ports() == ports, "both are healthy")
            with envoy_load(envoy.port, "/") as running:
                running.wait_for(500)
                left = {staying.service.grpc_port}
                leaving.service.send(signal.SIGTERM)
                envoy.wait_until(lambda: envoy.healthy_ports() == left, "Envoy has heard of the drain")
                code = leaving.service.wait()
                running.wait_for(200)

            assert code == 0
            assert set(running.statuses) == {200}, running
            assert envoy.stat("cluster.echo.ratelimit.error") == 0
