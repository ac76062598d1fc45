"""The operator's port as a unix socket: the modes of its file say who may look and act."""

import http.client
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.commands.test_https import RULES, VERBS
from tests.processes import start_service


def run(verb: str, at: str) -> Result:
    return CliRunner().invoke(main, [word.format(at) for word in VERBS[verb]])


def test_every_verb_asks_by_the_socket_and_needs_no_token() -> None:
    with TemporaryDirectory() as folder:  # whose path is short enough for a socket
        path = Path(folder, "debug.sock")
        with start_service(Path(folder, "service"), RULES, {"DEBUG_UDS": str(path)}) as service:
            results = {verb: run(verb, f"unix:{path}") for verb in VERBS}
            by_settings = CliRunner().invoke(main, ["status"], env={"DEBUG_UDS": str(path)})
            body = json.dumps({"domain": "shop", "entries": [{"key": "user", "value": "ada"}]})
            statuses = []
            for headers in ({}, {"Origin": "http://evil.example"}):
                # One each: a refusal does not read the body, and ends the connection where that had not come yet.
                connection = http.client.HTTPConnection("localhost")
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.connect(str(path))
                connection.request("POST", "/counters/reset", body, headers)
                statuses.append(connection.getresponse().status)
                connection.close()
            log = service.log
            service.stop()

            assert not path.exists()

    assert {verb: result.exit_code for verb, result in results.items()} == dict.fromkeys(VERBS, 0)
    assert by_settings.stdout.startswith(f"unix:{path}: version ")
    assert statuses == [200, 403]
    assert f"listening for debug HTTP on unix:{path}" in log
    assert log.count("listening for debug HTTP") == 1
    assert "reset by the unix socket: 0 counters of user=ada in domain shop" in log


@pytest.mark.parametrize("verb", ["status", "bans"])
def test_a_socket_that_is_not_there_is_one_line(tmp_path: Path, verb: str) -> None:
    result = run(verb, f"unix:{tmp_path}/none.sock")

    assert result.exit_code in {1, 3}
    assert result.stderr == f"ratelimit: unix:{tmp_path}/none.sock: nothing listens there\n"


def test_a_socket_that_is_taken_is_told_with_its_variable() -> None:
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as other:
        path = Path(folder, "debug.sock")
        other.bind(str(path))
        other.listen()
        environ = dict.fromkeys(("PORT", "GRPC_PORT"), "0") | {"RULES_PATH": "config", "DEBUG_UDS": str(path)}
        # In a process of its own: it sets up the log of its process.
        command = [sys.executable, "-m", "ratelimit_service", "serve"]
        ended = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=False)

        assert path.exists()
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last == f"ratelimit: cannot listen on unix:{path}: address already in use (DEBUG_UDS)"
