"""Reads rules files from disk."""

import os
from pathlib import Path
from typing import Final

from ratelimit_service.errors import Problem, RulesError, StartError
from ratelimit_service.rules.document import MOST_BYTES
from ratelimit_service.rules.source import Source
from ratelimit_service.system.disk import read_file

_USUAL: Final = "config"
"""Where rules are in many a repository, this one among them."""


def read_sources(path: Path) -> list[Source]:
    """Every `*.yaml` and `*.yml` file below a folder, in the order of their paths, or the one file that `path` is.

    Names that begin with a dot are passed over, of files and of folders: Kubernetes keeps each ConfigMap twice, once
    below `..data`. Raises RulesError with all that cannot be read, and with all of these names that are no files.
    """
    problems: list[Problem] = []
    sources: list[Source] = []
    for file in _rules_files(path, problems) if path.is_dir() else [path]:
        try:
            text = read_file(file, MOST_BYTES + 1)
        except OSError as error:
            problems.append(_unreadable(file, error))
        else:
            if len(text) > MOST_BYTES:
                problems.append(Problem(str(file), 0, 0, f"is larger than {MOST_BYTES >> 20} MiB; split it"))
            sources.append(Source(str(file), text))
    if problems:
        raise RulesError(problems)
    return sources


def ensure_there(path: Path) -> None:
    """StartError when there is nothing at the path that the operator named, or did not name."""
    if not path.exists():
        hint = f", such as --rules {_USUAL}" if Path(_USUAL).is_dir() else ""
        raise StartError(
            f"there are no rules: {path} does not exist; say where they are with --rules or RULES_PATH{hint}"
        )


def _rules_files(folder: Path, problems: list[Problem]) -> list[Path]:
    found: list[Path] = []
    walked: set[str] = set()
    for root, folders, files in os.walk(
        folder,
        onerror=lambda error: problems.append(_unreadable(Path(error.filename), error)),
        followlinks=True,
    ):
        real = os.path.realpath(root)
        if real in walked:  # a symlink that leads back to a folder above it
            folders.clear()
            continue
        walked.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        # A folder with such a name is refused as what it is: Docker makes one where a file to mount is missing.
        found += [Path(root, name) for name in files + folders if _is_rules_file(name)]
        folders[:] = [name for name in folders if not _is_rules_file(name)]
    return sorted(found)


def _is_rules_file(name: str) -> bool:
    return not name.startswith(".") and name.endswith((".yaml", ".yml"))


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(str(path), 0, 0, f"cannot be read: {(error.strerror or str(error)).lower()}")
