"""One release for all tests that look at what is in it: to make one takes ten seconds and more."""

import os
from pathlib import Path

import pytest

from tests.deploy.releases import clone, commit_a_version, make_release
from tests.fetching import one_at_a_time


@pytest.fixture(scope="session")
def release_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first worker of pytest that asks makes the release, and the others find it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "release"
    with one_at_a_time(folder):
        if not (folder / "clone" / "dist" / "SHA256SUMS").exists():
            commit_a_version(folder / "repository")
            make_release(clone(folder / "repository", folder / "clone"))
    return folder


@pytest.fixture(scope="session")
def repository(release_folder: Path) -> Path:
    """The tree with a version to release. Not to be changed."""
    return release_folder / "repository"


@pytest.fixture(scope="session")
def dist(release_folder: Path) -> Path:
    """What is released. Not to be changed."""
    return release_folder / "clone" / "dist"
