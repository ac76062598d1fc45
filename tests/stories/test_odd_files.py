"""What is no regular file where a file should be: refused in one line, and nothing waits for it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.processes import ROOT, ask, start_service
from tests.stories.test_life import run

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 100}}]\n"
ASK = '{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}'
LOADED = "\nratelimit_reload_last_attempt_successful 1\n"
NOT_LOADED = "\nratelimit_reload_last_attempt_successful 0\n"
PIPE = "it is a pipe, and only regular files are read: put one in its place, or remove it"
FOLDER = "it is a folder, and only regular files are read: put one in its place, or remove it"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "shop.yaml").write_text(RULES)
    return folder


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def ratelimit(folder: Path, *arguments: str | Path) -> tuple[int, str]:
    """A verb in a process of its own: the exit code, and its last line."""
    command = [sys.executable, "-m", "ratelimit_service", *map(str, arguments)]
    environ = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.rstrip().rpartition("\n")[2]


def test_a_pipe_among_the_rules_is_told_and_the_old_rules_stay(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        odd = service.rules / "pipe.yaml"
        os.mkfifo(odd)
        service.wait_until(lambda: NOT_LOADED in service.metrics(), "it is refused")
        answer = ask(service.http_port, "/json", method="POST", body=ASK)
        odd.unlink()
        service.wait_until(lambda: LOADED in service.metrics(), "the rules are loaded again")

        assert answer.status == 200
        assert service.log.count(f"rules not loaded, the old rules stay:\n  {odd}: cannot be read: {PIPE}\n") == 1
        assert service.stop() == 0


def test_a_pipe_among_the_rules_does_not_hold_up_a_start(tmp_path: Path, rules: Path) -> None:
    os.mkfifo(rules / "pipe.yaml")
    with start_service(tmp_path / "service", rules, wait_until_healthy=False) as service:
        assert f"there are none yet, calls are refused:\n  {rules}/pipe.yaml: cannot be read: {PIPE}\n" in service.log
        (rules / "pipe.yaml").unlink()
        service.wait_until(lambda: service.healthy, "it serves")


@pytest.mark.parametrize("variable", ["GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT"])
def test_a_certificate_that_is_a_pipe_is_one_line(tmp_path: Path, rules: Path, pipe: Path, variable: str) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    tls = dict.fromkeys(("GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT"), str(empty))
    ended = run(tmp_path, {"GRPC_SERVER_USE_TLS": "true", **tls, variable: str(pipe)}, "--rules", str(rules))

    assert ended.returncode == 1
    assert ended.stderr.startswith("ratelimit: cannot read the ")
    assert ended.stderr.endswith(f" {pipe}: {PIPE}\n")


def test_a_certificate_for_redis_that_is_a_pipe_is_one_line(tmp_path: Path, rules: Path, pipe: Path) -> None:
    environ = {"REDIS_URL": "rediss://127.0.0.1:1", "REDIS_TLS_CACERT": str(pipe)}
    ended = run(tmp_path, environ, "--rules", str(rules))

    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.endswith(f"REDIS_TLS_CLIENT_KEY: [Errno 22] {PIPE}: '{pipe}'\n")


@pytest.mark.parametrize("named", [True, False])
def test_an_env_file_that_is_a_pipe_is_one_line(tmp_path: Path, rules: Path, *, named: bool) -> None:
    os.mkfifo(tmp_path / ".env")
    ended = run(tmp_path, {}, "--rules", str(rules), *(["--env-file", ".env"] if named else []))

    assert (ended.returncode, ended.stderr) == (2, f"ratelimit: .env: cannot be read: {PIPE}\n")


def test_check_tells_all_that_is_no_file_and_ends(tmp_path: Path, rules: Path, pipe: Path) -> None:
    """Docker makes an empty folder where it is to mount a file that is not there."""
    (rules / "mounted.yaml").mkdir()

    assert ratelimit(tmp_path, "check", rules) == (1, f"{rules}/mounted.yaml: cannot be read: {FOLDER}")
    assert ratelimit(tmp_path, "check", pipe) == (1, f"{pipe}: cannot be read: {PIPE}")


@pytest.mark.parametrize("flags", [{"--ca": "pipe"}, {"--cert": "pipe", "--key": "pipe"}])
def test_a_certificate_of_a_caller_that_is_a_pipe_is_bad_usage(
    tmp_path: Path, pipe: Path, flags: Mapping[str, str]
) -> None:
    asked = ["call", "127.0.0.1:1", "shop", "user=ada", *(word for flag in flags.items() for word in flag)]

    assert ratelimit(tmp_path, *asked) == (2, f"Error: {pipe.name} cannot be read: {PIPE}")
