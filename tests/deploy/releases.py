"""A release of the tree as it is here, committed or not: clones of it, and what `make release` makes in them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.processes import ROOT

VERSION: Final = "999.0.0"
"""Later than any that the CHANGELOG will ever have."""
WHEEL: Final = f"ratelimit_service-{VERSION}-py3-none-any.whl"
CHANGE: Final = "- A change that only tests know of."


def commit_a_version(folder: Path) -> Path:
    """A repository of its own with all files of this one and VERSION, all committed."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).exists():  # what was removed and not committed is listed too
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    changelog = folder / "CHANGELOG.md"
    heading = "## [Unreleased]\n"
    changelog.write_text(changelog.read_text("utf-8").replace(heading, f"{heading}\n{CHANGE}\n"), "utf-8")
    begun = python(folder, "deploy.release.version", VERSION)
    assert begun.returncode == 0, begun.stderr
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    """All there is."""
    who = ("-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false")
    for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "All"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


def clone(repository: Path, folder: Path) -> Path:
    """A clone of it."""
    subprocess.run(["git", "clone", "--quiet", str(repository), str(folder)], check=True)
    return folder


def make_release(clone: Path, environ: Mapping[str, str] | None = None, *, umask: int = -1) -> Path:
    """The folder of what `make release` makes there, but with the virtualenv of these tests."""
    done = python(clone, "deploy.release", environ=environ, umask=umask)
    assert done.returncode == 0, done.stderr
    return clone / "dist"


def python(
    folder: Path, *words: str, environ: Mapping[str, str] | None = None, umask: int = -1
) -> "subprocess.CompletedProcess[str]":
    """Run a module of this folder."""
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=os.environ | (environ or {}),
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
