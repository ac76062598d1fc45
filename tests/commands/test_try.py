"""`ratelimit try llm`: it starts and ends callers, a model, the service, and Envoy, or plays what that would ask."""

import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests import peers
from tests.envoy.model import shown
from tests.processes import ROOT, Process

END = (
    r"64 callers, 101,666 tokens allowed in 1 s: look and settle used ([0-9,]+) \(\d+ %\), "
    r"reserve and settle used ([0-9,]+) \(\d+ %\)\n$"
)


def try_llm(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["try", "llm", *arguments])


@pytest.mark.parametrize("envoy", [True, False], ids=["Envoy", "played"])
def test_looks_let_more_through_than_the_limit_and_reservations_do_not(tmp_path: Path, *, envoy: bool) -> None:
    """A busy machine decides the last requests later, when the bucket has got more: here up to ten seconds."""
    picture = tmp_path / "used.svg"
    how = ["--envoy", str(peers.envoy())] if envoy else ["--no-envoy"]

    result = try_llm("--seconds", "1", *how, "--svg", str(picture))

    end = re.search(END, result.output)
    assert end is not None, result.output
    looked, reserved = (int(tokens.replace(",", "")) for tokens in end.groups())
    assert 0 < reserved <= 100_000 + 10 * 1_666 < looked
    assert "\x1b" not in result.output
    assert "failed" not in result.output
    assert ("without Envoy, whose two calls for each request are played here" in result.output) is not envoy
    assert picture.read_text().count("<polyline") == 3


def test_what_is_printed_to_be_copied_is_what_the_page_shows() -> None:
    printed = try_llm("--envoy", "false").output
    rules, manager = re.findall(r"^# reserve and settle: .*\n((?:.+\n)+)", printed, re.MULTILINE)
    filters = yaml.safe_load(manager)["http_filters"]

    assert rules == shown("domain: chat")
    assert filters[0] == yaml.safe_load(shown("http_filters:"))["http_filters"][0]
    assert filters[1]["typed_config"]["rate_limits"] == yaml.safe_load(shown("rate_limits:"))["rate_limits"]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for a unix socket, whose path may not be long."""
    with tempfile.TemporaryDirectory(prefix="try-") as name:
        yield Path(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_envoy_and_leaves_nothing_behind(
    tmp_path: Path, short_folder: Path, number: signal.Signals
) -> None:
    left = short_folder
    words = ["try", "llm", "--callers", "8", "--envoy", str(peers.envoy())]
    environ = {"PYTHONPATH": str(ROOT), "TMPDIR": str(left), "PYTHONUNBUFFERED": "1"}
    with Process([sys.executable, "-m", "ratelimit_service", *words], tmp_path, environ) as command:
        command.wait_until(lambda: "│" in command.log, "it draws")
        assert len(running(left)) == 1

        command.send(number)

        assert command.wait() == 1
        assert command.log.endswith("Aborted!\n")
        assert (running(left), list(left.iterdir())) == ([], [])


def running(folder: Path) -> list[str]:
    """The commands of processes that name the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(process.read_text(errors="replace"))
        except OSError:
            continue
    return [words for words in found if str(folder) in words]


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("/nowhere/envoy", "/nowhere/envoy cannot be started: No such file or directory"),
        ("false", "false ends at once"),
    ],
)
def test_an_envoy_that_does_not_start_is_an_error(program: str, problem: str) -> None:
    result = try_llm("--envoy", program)

    assert result.exit_code == 1
    assert f"ratelimit: {problem}" in result.output


def test_envoy_is_given_or_played_and_not_both() -> None:
    assert try_llm("--envoy", "envoy", "--no-envoy").exit_code == 2


def test_a_folder_whose_path_is_too_long_for_a_socket_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        result = try_llm("--envoy", "false")

    assert result.exit_code == 1
    assert "is too long for a socket in it; set TMPDIR to a shorter one" in result.output
