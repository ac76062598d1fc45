"""deploy/ratelimit.service: systemd understands it, and it gives the service time and what it needs."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from ratelimit_service.cli import main
from ratelimit_service.settings import load_settings
from tests import peers
from tests.deploy.known import max_stop
from tests.processes import ROOT

UNIT: Final = ROOT / "deploy" / "ratelimit.service"


def lines(name: str) -> list[str]:
    """What the unit says under this name, in order."""
    text = UNIT.read_text(encoding="utf-8")
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{name}=")]


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """Not a word too many; the program is this machine's Python, because the installed one is not here."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        peers.refuse("systemd-analyze is not on this machine")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/ratelimit/bin/ratelimit", sys.executable))
    verified = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, check=False)

    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_unit_gives_time_to_drain() -> None:
    """With the defaults; systemd kills what is there after that."""
    settings, _ = load_settings({})

    assert max_stop(settings) < float(lines("TimeoutStopSec")[0])
    assert lines("KillSignal") == ["SIGTERM"]


def test_the_unit_runs_a_verb_that_there_is_with_flags_that_it_has() -> None:
    """And HUP, which loads the rules, is what a reload sends."""
    (start,) = lines("ExecStart")
    program, verb, *flags = start.split()
    serve = CliRunner().invoke(main, [verb, "--help"])

    assert Path(program).name == "ratelimit"
    assert serve.exit_code == 0
    assert all(flag in serve.output for flag in flags if flag.startswith("--"))
    assert lines("ExecReload") == ["/bin/kill -HUP $MAINPID"]


def test_wrong_settings_are_not_tried_again() -> None:
    """The exit code that systemd must not restart at is the one that wrong settings end with."""
    wrong = CliRunner(env={"GRPC_PORT": "many"}).invoke(main, ["serve"])

    assert lines("RestartPreventExitStatus") == [str(wrong.exit_code)]


def test_the_unit_is_nobody_and_may_do_nothing_else() -> None:
    """systemd-analyze security calls it exposed at 1.4 of 10; these are what it rests on."""
    for name, value in {
        "DynamicUser": "yes",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateDevices": "yes",
        "MemoryDenyWriteExecute": "yes",
    }.items():
        assert lines(name) == [value]
