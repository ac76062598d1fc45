"""`ratelimit completion` prints what makes a shell complete."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main
from tests.processes import ROOT
from tests.terminal import Terminal, start_on_terminal


@contextmanager
def bash(folder: Path) -> Iterator[Terminal]:
    """An interactive one that has read the script, with `ratelimit` in its PATH."""
    ratelimit = folder / "bin" / "ratelimit"
    ratelimit.parent.mkdir()
    ratelimit.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m ratelimit_service "$@"\n')
    ratelimit.chmod(0o755)
    (folder / "shop-rules.yaml").write_text("domain: shop\n")
    (folder / "rc").write_text('bind "set bell-style none"\nPS1="ready> "\neval "$(ratelimit completion bash)"\n')
    environ = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder)}
    command = ["bash", "--noprofile", "--rcfile", str(folder / "rc"), "-i"]
    with start_on_terminal(command, folder, environ, columns=160) as terminal:
        terminal.wait_until(lambda: "ready> " in terminal.text, "bash is ready")
        yield terminal


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("ratelimit stat", "ratelimit status "),
        ("ratelimit explain --rul", "ratelimit explain --rules "),
        ("ratelimit completion fi", "ratelimit completion fish "),
        ("ratelimit check shop", "ratelimit check shop-rules.yaml "),
        ("ratelimit check --env-file shop", "ratelimit check --env-file shop-rules.yaml "),
    ],
)
def test_bash_completes_verbs_options_choices_and_files(tmp_path: Path, typed: str, completed: str) -> None:
    with bash(tmp_path) as terminal:
        terminal.press(f"{typed}\t")

        terminal.wait_until(lambda: f"ready> {completed}" in terminal.text, f"{completed!r} stands there")


def test_every_shell_has_a_script_of_its_own() -> None:
    said = {shell: CliRunner().invoke(main, ["completion", shell]).stdout for shell in ("bash", "zsh", "fish")}

    assert "_RATELIMIT_COMPLETE=bash_complete" in said["bash"]
    assert said["zsh"].startswith("#compdef ratelimit\n")
    assert "complete --no-files --command ratelimit" in said["fish"]
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2
