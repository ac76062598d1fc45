"""What commands print has colours on a terminal, on either output, and none with NO_COLOR."""

import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, start_service
from tests.terminal import start_on_terminal

LIMITED = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1}}, {key: idle}]\n"
RED, GREEN, YELLOW = "\x1b[31m", "\x1b[32m", "\x1b[33m"


def on_terminal(folder: Path, *command: str, **environ: str) -> str:
    """All that the command writes there."""
    words = [sys.executable, "-m", "ratelimit_service", *command]
    with start_on_terminal(words, folder, {"PYTHONPATH": str(ROOT), **environ}) as terminal:
        terminal.wait()
        return terminal.written


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(LIMITED)
    (tmp_path / "bad.yaml").write_text("domain: [\n")
    return tmp_path


def test_errors_of_check_are_red_warnings_yellow_and_good_rules_green(checked: Path) -> None:
    warned, bad = on_terminal(checked, "check", "good.yaml"), on_terminal(checked, "check", "bad.yaml")

    assert f"{YELLOW}good.yaml:2:" in warned
    assert f"{GREEN}1 rule in 1 domain are good" in warned
    assert f"{RED}bad.yaml:2:1: " in bad


def test_a_call_that_passes_is_green_and_one_that_is_refused_red(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", LIMITED) as service:
        command = ("call", f"127.0.0.1:{service.grpc_port}", "shop", "user=ada")
        allowed, refused = on_terminal(tmp_path, *command), on_terminal(tmp_path, *command)

    assert allowed.startswith(f"{GREEN}OK\x1b[0m")
    assert refused.startswith(f"{RED}OVER_LIMIT\x1b[0m")


def test_no_color_is_respected_where_errors_go_too(checked: Path) -> None:
    assert "\x1b[" not in on_terminal(checked, "check", "good.yaml", "bad.yaml", NO_COLOR="1")
