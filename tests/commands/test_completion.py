"""`ratelimit completion` prints what makes a shell complete: each shell itself is asked what stands on its line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main
from tests import peers
from tests.processes import ROOT
from tests.sampled import sampled
from tests.terminal import Terminal, start_on_terminal

CTRL_X: Final = "\x18"
"""Each shell is told to write its line into the file `line` at this key."""

BASH: Final = """\
bind "set bell-style none"
say() { printf %s "$READLINE_LINE" > line; }
bind -x '"\\C-x": say'
PS1="ready> "
eval "$(ratelimit completion bash)"
"""
ZSH: Final = """\
PS1="ready> "
say() { print -rn -- "$BUFFER" > line }
zle -N say
bindkey "^X" say
autoload -U compinit
compinit -u
eval "$(ratelimit completion zsh)"
"""
ZSH_OF_OURS: Final = """\
module_path=({root}/usr/lib/*/zsh/*(N))
fpath=({root}/usr/share/zsh/functions/**/*(/N) {root}/usr/share/zsh/functions)
"""
"""Unpacked, and not at the place that is compiled into it."""
FISH: Final = """\
function fish_greeting; end
function fish_prompt; echo "ready> "; end
bind \\cx "commandline | string collect | read --null --local line; echo -n \\$line > line"
"""


def start_bash(home: Path) -> list[str]:
    """Its command, with files in this folder."""
    (home / "rc").write_text(BASH)
    return ["bash", "--noprofile", "--rcfile", str(home / "rc"), "-i"]


def start_zsh(home: Path) -> list[str]:
    """The same."""
    program = peers.zsh()
    if (root := program.parents[1]).joinpath("usr", "share", "zsh").exists():
        (home / ".zshenv").write_text(ZSH_OF_OURS.format(root=root))
    (home / ".zshrc").write_text(ZSH)
    return [str(program), "--no-global-rcs", "-i"]


def start_fish(home: Path) -> list[str]:
    """The same; the script is where `ratelimit completion --help` says."""
    program = peers.fish()
    config = home / ".config" / "fish"
    (config / "completions").mkdir(parents=True)
    script = CliRunner().invoke(main, ["completion", "fish"]).stdout
    (config / "completions" / "ratelimit.fish").write_text(script)
    (config / "config.fish").write_text(FISH)
    return [str(program), "-i"]


@contextmanager
def shell(name: str, folder: Path) -> Iterator[Terminal]:
    """An interactive one that has the script, with `ratelimit` in its PATH, in a folder with a file of rules."""
    ratelimit = folder / "bin" / "ratelimit"
    ratelimit.parent.mkdir()
    ratelimit.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m ratelimit_service "$@"\n')
    ratelimit.chmod(0o755)
    (folder / "shop-rules.yaml").write_text("domain: shop\n")
    command = {"bash": start_bash, "zsh": start_zsh, "fish": start_fish}[name](folder)
    environ = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder)}
    with start_on_terminal(command, folder, environ, columns=160) as terminal:
        terminal.wait_until(lambda: "ready> " in terminal.text, f"{name} is ready")
        yield terminal


LINES: Final = [
    ("ratelimit stat", "ratelimit status "),
    ("ratelimit explain --rul", "ratelimit explain --rules "),
    ("ratelimit completion fi", "ratelimit completion fish "),
    ("ratelimit check shop", "ratelimit check shop-rules.yaml "),
    ("ratelimit rules put shop", "ratelimit rules put shop-rules.yaml "),
    ("ratelimit check --env-file shop", "ratelimit check --env-file shop-rules.yaml "),
]


@pytest.mark.parametrize(
    ("name", "typed", "completed"),
    sampled([(name, *line) for line in LINES for name in ("bash", "zsh", "fish")], 2),
)
def test_a_shell_completes_verbs_options_choices_and_files(
    tmp_path: Path, name: str, typed: str, completed: str
) -> None:
    line = tmp_path / "line"
    with shell(name, tmp_path) as terminal:
        terminal.press(f"{typed}\t{CTRL_X}")
        terminal.wait_until(lambda: line.exists() and line.read_text() != "", f"{name} says what stands on its line")

        assert line.read_text() == completed


def test_another_shell_is_refused() -> None:
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2
