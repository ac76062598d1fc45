"""The locks: what runs the service, what the image has, what develops it; and which of them `make` uses for what."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tests.processes import ROOT

LOCKS: Final = ("requirements/run.lock", "requirements/dev.lock")
IMAGE_LOCK: Final = "requirements/image.lock"


def pins(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """The version of each package, and its hashes."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=\S+)+)", text, re.MULTILINE)
    return {name: (version, frozenset(hashes.split())) for name, version, hashes in entries}


def test_what_runs_is_pinned_as_in_development() -> None:
    """So what the tests try is what the image has; hashes too."""
    run, image, development = map(pins, (LOCKS[0], IMAGE_LOCK, LOCKS[1]))

    assert run.items() < image.items() < development.items()
    assert len(image) < len(development) - 20


def test_tracing_is_in_the_image_and_not_where_nobody_asked_for_it() -> None:
    """It is an extra, of eleven packages and those that they need."""
    run, image = pins(LOCKS[0]).keys(), pins(IMAGE_LOCK).keys()

    assert {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc", "requests"} <= image - run


def test_the_lock_for_running_has_what_the_project_names_and_no_tools() -> None:
    """What builds the project is in it, because `make run` installs it editable."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {re.split(r"[^\w.-]", dependency)[0] for dependency in project["dependencies"]}
    run = pins("requirements/run.lock").keys()

    assert named | {"hatchling", "editables"} <= run
    assert {"pytest", "mypy", "ruff", "grpcio-tools", "hypothesis", "pip-tools", "coverage"}.isdisjoint(run)


def test_no_aiohttp_with_known_holes_may_be_installed() -> None:
    """Until 3.14.0 it keeps all that a client asks for and does not read: 238 MiB for 12 MB of `GET /status`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (aiohttp,) = (each for each in map(Requirement, project["dependencies"]) if each.name == "aiohttp")
    version, _ = pins("requirements/run.lock")["aiohttp"]

    assert [known in aiohttp.specifier for known in ("3.13.3", "3.14.0", "3.14.1", version)] == [
        False,
        False,
        True,
        True,
    ]


def plan(folder: Path, *words: str) -> str:
    """What make would do in a clone where nothing was made yet."""
    (folder / "requirements").mkdir()
    for name in ("Makefile", "pyproject.toml", *LOCKS):
        shutil.copy(ROOT / name, folder / name)
    command = ["make", "--dry-run", *words]
    # Without what the make that runs these tests was told.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTEST_ARGS"))}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("target", "installed"), [("run", ["requirements/run.lock"]), ("test", [*LOCKS]), ("check", [*LOCKS])]
)
def test_make_installs_what_its_target_needs_and_fetches_nothing(
    tmp_path: Path, target: str, installed: list[str]
) -> None:
    """In a clone where nothing was made yet; tests fetch what they ask for themselves."""
    planned = plan(tmp_path, target)

    assert re.findall(r"--require-hashes --requirement (\S+)", planned) == installed
    assert "tests.peers" not in planned


def test_make_run_listens_for_this_machine_alone_unless_it_is_told(tmp_path: Path) -> None:
    """A page on all addresses of a laptop is for whoever shares its network."""
    planned = plan(tmp_path, "run")

    for name in ("HOST", "GRPC_HOST", "DEBUG_HOST"):
        assert f"{name}=${{{name}:-127.0.0.1}} " in planned


def test_another_python_has_a_virtualenv_of_its_own(tmp_path: Path) -> None:
    """An existing .venv, of whatever version, is not taken for it."""
    planned = plan(tmp_path, "test", f"PYTHON={sys.executable}")

    assert planned.endswith(" .venv-{}.{}/bin/pytest -n 4 --dist worksteal\n".format(*sys.version_info))
