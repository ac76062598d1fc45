"""The process from its start to its end, as an operator sees it: signals, exit codes, one clear line for a fault."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from h2.connection import H2Connection
from h2.events import PingAckReceived

from tests.processes import ROOT, Process, ask, start_service

pytestmark = pytest.mark.usefixtures("transport")

FAULTS = ROOT / "tests" / "workers" / "faults"
RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 100}}]\n"
ASK = '{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}'


def test_sigterm_drains_and_the_exit_code_is_zero(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES, {"DRAIN_SECONDS": "5"}) as service:
        service.send(signal.SIGTERM)
        service.wait_until(lambda: not service.healthy, "health says no while the ports are open")
        answer = ask(service.http_port, "/json", method="POST", body=ASK)

        assert answer.status == 200
        assert service.wait() == 0
        assert "draining" in service.log
        assert service.log.rstrip().endswith("stopped")


def test_sigint_ends_the_service_like_sigterm(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        service.send(signal.SIGINT)

        assert service.wait() == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    with start_service(tmp_path, RULES, {"DRAIN_SECONDS": "3600", "GRPC_UDS": str(path)}) as service:
        service.send(signal.SIGTERM)
        service.wait_until(lambda: "draining" in service.log, "it drains")
        service.send(signal.SIGINT)

        assert service.wait() == 128 + signal.SIGINT
        assert not path.exists()


def test_a_second_signal_leaves_the_socket_file_of_the_next_instance(tmp_path: Path) -> None:
    """A service that drains listens no more: another one may have made a file of that name."""
    path = tmp_path / "grpc.sock"
    with (
        start_service(tmp_path, RULES, {"DRAIN_SECONDS": "0", "DRAIN_TIMEOUT": "1h", "GRPC_UDS": str(path)}) as service,
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.connect(str(path))
        begin_a_call(client)
        service.send(signal.SIGTERM)
        service.wait_until(lambda: not path.exists(), "it listens no more, and waits for the call")
        path.touch()
        service.send(signal.SIGINT)

        assert service.wait() == 128 + signal.SIGINT
        assert path.exists()


@pytest.mark.slow
def test_sigterm_ends_it_though_its_event_loop_stands_still(tmp_path: Path) -> None:
    environ = {"DRAIN_SECONDS": "10", "DRAIN_TIMEOUT": "1s", "PYTHONPATH": f"{FAULTS}:{ROOT}"}
    with start_service(tmp_path, RULES, environ) as service:
        service.send(signal.SIGTERM)
        service.wait_until(lambda: "draining" in service.log, "it drains")
        service.send(signal.SIGUSR2)

        assert service.wait() == 1
        assert service.log.rstrip().endswith("shutdown timed out after 31 s: exiting")


def test_sighup_loads_the_rules_though_nothing_changed(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES, {"RULES_POLL_INTERVAL": "1h"}) as service:
        service.send(signal.SIGHUP)

        service.wait_until(lambda: service.log.count("rules loaded") == 2, "the rules are loaded again")


def test_sighup_while_it_starts_does_not_end_it(tmp_path: Path) -> None:
    """As a service manager sends it that is told to start and, at once, to reload."""
    (tmp_path / "rules.yaml").write_text(RULES)
    hosts = dict.fromkeys(("HOST", "DEBUG_HOST", "GRPC_HOST"), "127.0.0.1")
    ports = dict.fromkeys(("PORT", "DEBUG_PORT", "GRPC_PORT"), "0")
    environ = {**hosts, **ports, "PYTHONPATH": str(ROOT), "DRAIN_SECONDS": "0"}
    command = [sys.executable, "-m", "ratelimit_service", "serve", "--rules", str(tmp_path)]
    with Process(command, tmp_path, environ) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        process.wait_until(lambda: "pydantic_core" in maps.read_text(), "it loads what it is made of")
        process.send(signal.SIGHUP)
        process.wait_until(lambda: "listening for gRPC" in process.log, "it listens")

        assert process.stop() == 0


def test_bad_rules_at_the_start_are_told_and_it_serves_once_they_are_mended(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES.replace("day", "fortnight"), wait_until_healthy=False) as service:
        service.wait_until(lambda: "fortnight" in service.log, "the fault is told")
        assert ask(service.http_port, "/healthcheck").status == 500
        refused = ask(service.http_port, "/json", method="POST", body=ASK)
        assert (refused.status, "no rate limit configuration loaded" in refused.body) == (503, True)

        service.write_rules(RULES)

        service.wait_until(lambda: service.healthy, "it serves")
        assert ask(service.http_port, "/json", method="POST", body=ASK).status == 200


def test_rules_that_limit_nothing_are_rules(tmp_path: Path) -> None:
    with start_service(tmp_path, "domain: shop") as service:
        assert ask(service.http_port, "/json", method="POST", body=ASK).status == 200


def test_a_folder_that_comes_later_is_waited_for_when_that_is_asked(tmp_path: Path) -> None:
    environ = {"FORCE_START_WITHOUT_INITIAL_CONFIG": "true"}
    with start_service(tmp_path, tmp_path / "later", environ, wait_until_healthy=False) as service:
        service.rules.mkdir()
        service.write_rules(RULES)

        service.wait_until(lambda: service.healthy, "it serves")


def run(folder: Path, environ: Mapping[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    """A start that is to fail."""
    quiet = {"PYTHONPATH": str(ROOT), "PORT": "0", "DEBUG_PORT": "0", "GRPC_PORT": "0", "LOG_LEVEL": "error"}
    quiet["TRANSPORT"] = os.environ.get("TRANSPORT", "http2")  # as the fixture `transport` has it
    return subprocess.run(
        [sys.executable, "-m", "ratelimit_service", "serve", *flags],
        cwd=folder,
        env={**quiet, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "shop.yaml").write_text(RULES)
    return folder


@pytest.mark.parametrize("variable", ["PORT", "DEBUG_PORT", "GRPC_PORT"])
def test_a_port_in_use_is_one_line_and_exit_code_1(tmp_path: Path, rules: Path, variable: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        hosts = dict.fromkeys(("HOST", "DEBUG_HOST", "GRPC_HOST"), "127.0.0.1")
        ended = run(tmp_path, {**hosts, variable: str(port)}, "--rules", str(rules))

    names = f"{variable.replace('PORT', 'HOST')}, {variable}"
    assert (ended.returncode, ended.stderr) == (
        1,
        f"ratelimit: cannot listen on 127.0.0.1:{port}: address already in use ({names})\n",
    )


def test_a_port_that_two_settings_ask_for_is_told_with_both(tmp_path: Path, rules: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    hosts = dict.fromkeys(("HOST", "DEBUG_HOST", "GRPC_HOST"), "127.0.0.1")
    ended = run(tmp_path, {**hosts, "PORT": port, "GRPC_PORT": port}, "--rules", str(rules))

    assert ended.stderr == (
        f"ratelimit: cannot listen on 127.0.0.1:{port}: address already in use (HOST, PORT, GRPC_HOST, GRPC_PORT)\n"
    )


def test_a_missing_rules_folder_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    ended = run(tmp_path, {}, "--rules", "nowhere")

    assert (ended.returncode, ended.stderr) == (
        1,
        "ratelimit: there are no rules: nowhere does not exist; say where they are with --rules or RULES_PATH\n",
    )


def test_an_unreadable_certificate_is_one_line_and_exit_code_1(tmp_path: Path, rules: Path) -> None:
    environ = {"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": "cert.pem", "GRPC_SERVER_TLS_KEY": "key.pem"}
    ended = run(tmp_path, environ, "--rules", str(rules))

    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "cert.pem" in ended.stderr


def test_everything_wrong_with_the_settings_is_told_at_once_with_exit_code_2(tmp_path: Path) -> None:
    ended = run(tmp_path, {"PORT": "eighty", "GRPC_MAX_CONNECTION_AGE": "soon", "SHADOW_MODE": "maybe"})

    assert ended.returncode == 2
    assert [line.split(": ")[1] for line in ended.stderr.splitlines()] == [
        "PORT",
        "GRPC_MAX_CONNECTION_AGE",
        "SHADOW_MODE",
    ]


def test_a_variable_of_envoyproxy_without_meaning_here_is_named_in_a_warning(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES, {"REDIS_POOL_SIZE": "10", "LOG_FORMAT": "json"}) as service:
        assert any('"level": "warning"' in line and "REDIS_POOL_SIZE" in line for line in service.log.splitlines())


def test_an_env_file_in_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("LOG_FORMAT=json\n")

    with start_service(tmp_path, RULES) as service:
        assert all(line.startswith('{"@timestamp": ') for line in service.log.splitlines())


def begin_a_call(client: socket.socket) -> None:
    """Send the headers of a call, of which the message is yet to come; the service has read them."""
    h2 = H2Connection()
    h2.initiate_connection()
    path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    h2.send_headers(1, [*headers, ("content-type", "application/grpc"), ("te", "trailers")])
    h2.ping(b"has read")
    client.sendall(h2.data_to_send())
    while not any(isinstance(event, PingAckReceived) for event in h2.receive_data(client.recv(65_536))):
        pass
