"""Every line of a service with LOG_FORMAT=json is an object with the fields of docs/logs.md."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from subprocess import run
from typing import Any, Final

import pytest

from tests.processes import ROOT, Service, ask, start_service
from tests.workers.pool import start_pool

RULES: Final = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 100}}]\n"
BAN: Final = (
    '{"domain": "shop", "entries": [{"key": "user", "value": "a\\u2028b"}], "for": "1h", "why": "no", "who": "me"}'
)

FAULT: Final = """\
import asyncio, signal
def fail(*_):
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
signal.signal(signal.SIGUSR1, fail)
"""
"""A module that Python imports as it starts: SIGUSR1 then raises an exception in a callback of the event loop."""


def lines_of(service: Service) -> list[dict[str, Any]]:
    """Each line of the log, of which every one must be an object with the fields that all have."""
    lines = [json.loads(line) for line in service.log.removesuffix("\n").split("\n")]
    for line in lines:
        assert list(line)[:4] == ["@timestamp", "level", "@message", "logger"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["@timestamp"])
        assert line.keys() <= DOCUMENTED
    return lines


DOCUMENTED: Final = set(re.findall(r"`(@?[a-z_]+)`", (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")))


def environ(folder: Path) -> dict[str, str]:
    """The settings of a service that fails at SIGUSR1."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(FAULT, encoding="utf-8")
    return {"LOG_FORMAT": "json", "LOG_LEVEL": "debug", "PYTHONPATH": f"{folder}:{ROOT}"}


def act(service: Service, failing: int) -> list[dict[str, Any]]:
    """Do what is logged: a ban, a load that fails, one that does not, an exception; and a stop."""
    assert ask(service.debug_port, "/bans", {"Content-Type": "application/json"}, method="POST", body=BAN).status < 300
    service.write_rules("domain: shop\ndescriptors: [{key: user, unti: 1}]\n")
    service.wait_until(lambda: "rules_refused" in service.log, "wrong rules are refused")
    service.write_rules(RULES + "# changed\n")
    service.wait_until(lambda: service.log.count("rules_loaded") == 2, "rules are loaded again")
    os.kill(failing, signal.SIGUSR1)
    service.wait_until(lambda: "ZeroDivisionError" in service.log, "an exception is logged")
    assert service.stop() == 0
    return lines_of(service)


@pytest.mark.usefixtures("transport")
def test_each_line_of_one_process_is_an_object(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES, environ(tmp_path / "fault")) as service:
        lines = act(service, service.pid)

    by_event = {line["event"]: line for line in lines if "event" in line}
    path = str(tmp_path / "service" / "rules")
    assert by_event["rules_loaded"] == by_event["rules_loaded"] | {"path": path, "rules": 1, "files": 1}
    (problem,) = by_event["rules_refused"]["problems"]
    assert problem.startswith(f"{path}/rules.yaml:2:27: ")
    assert problem in by_event["rules_refused"]["@message"]
    assert by_event["banned"]["entries"] == ["user=a\u2028b"]
    assert by_event["banned"]["why"] == "no"
    (failed,) = [line for line in lines if "exception" in line]
    assert failed["level"] == "error"
    assert failed["exception"].splitlines()[0] == "Traceback (most recent call last):"
    assert failed["exception"].splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "Traceback" not in failed["@message"]
    assert not any("worker" in line for line in lines)


def test_each_line_of_two_workers_is_an_object(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2, environ(tmp_path / "fault")) as pool:
        lines = act(pool.service, pool.pids[2])

    assert [line["worker"] for line in lines if "exception" in line] == [2]
    assert sum(line.get("event") == "rules_refused" for line in lines) == 1


def test_an_exception_that_ends_the_process_is_one_object_too() -> None:
    code = 'from ratelimit_service.telemetry.logs import start_logging; start_logging("info", "json"); 1 / 0'
    ended = run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)

    line = json.loads(ended.stderr)
    assert ended.returncode == 1
    assert (line["level"], line["exception"].splitlines()[-1]) == ("critical", "ZeroDivisionError: division by zero")
