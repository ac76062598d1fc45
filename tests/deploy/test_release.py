"""`make release`: what it makes, that it makes the same again, and when it refuses."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest
import yaml

import ratelimit_service
from deploy.release.version import version_of
from tests import peers
from tests.deploy.releases import CHANGE, VERSION, WHEEL, clone, commit, make_release, python
from tests.processes import ROOT, Service, ask

pytestmark = pytest.mark.extended

VALIDATE: Final = """\
import json, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.spdx import is_expression
from cyclonedx.validation.json import JsonStrictValidator
text = sys.stdin.read()
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
licences = [each["licenses"][0]["expression"] for each in json.loads(text)["components"]]
print(str(error)[:500] if error else [licence for licence in licences if not is_expression(licence)])
"""


def names(archive: Path) -> set[str]:
    """The files of a .tar.gz."""
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def test_a_release_has_packages_chart_image_context_bill_and_notes(dist: Path) -> None:
    """And a sum of each, as sha256sum checks it."""
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, capture_output=True, check=True
    )
    files = {
        "RELEASE-NOTES-999.0.0.md",
        "ratelimit-999.0.0.tgz",
        "ratelimit-service-999.0.0.cdx.json",
        "ratelimit-service-image-999.0.0.tar.gz",
        WHEEL,
        "ratelimit_service-999.0.0.tar.gz",
    }

    assert {path.name for path in dist.iterdir()} == files | {"SHA256SUMS"}
    assert checked.stdout.decode() == "".join(f"{name}: OK\n" for name in sorted(files))


def test_another_clone_releases_the_same_bytes(repository: Path, dist: Path, tmp_path: Path) -> None:
    """In another folder, more than a year later, in another time zone, under another umask."""
    later = {"LD_PRELOAD": str(peers.libfaketime()), "FAKETIME": "+400d", "TZ": "Pacific/Auckland", "LC_ALL": "C"}
    other = make_release(clone(repository, tmp_path / "some" / "where" / "else"), later, umask=0o077)

    assert {path.name: path.read_bytes() for path in other.iterdir()} == {
        path.name: path.read_bytes() for path in dist.iterdir()
    }


def test_the_sdist_builds_the_wheel_that_is_released(dist: Path, tmp_path: Path) -> None:
    sdist = dist / f"ratelimit_service-{VERSION}.tar.gz"
    with tarfile.open(sdist) as tar:
        environ = os.environ | {"SOURCE_DATE_EPOCH": str(tar.getmembers()[0].mtime)}
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(sdist)], env=environ, check=True)
    (built,) = tmp_path.iterdir()

    assert built.name == WHEEL
    assert built.read_bytes() == (dist / built.name).read_bytes()


def test_the_wheel_alone_makes_rules_serves_and_calls_in_an_empty_folder(dist: Path, tmp_path: Path) -> None:
    """With the packages that it needs, and nothing of the tree that it was made from."""
    venv, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    installed = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    # Of these tests' virtualenv the packages alone: what its own .pth files add, the tree, is not followed from here.
    (installed / "needed.pth").write_text(sysconfig.get_path("purelib"))
    options = ["--quiet", "--no-index", "--no-deps", "--ignore-installed"]
    target = ["--python", str(venv / "bin" / "python")]
    pip = [sys.executable, "-m", "pip", *target, "install", *options, str(dist / WHEEL)]
    subprocess.run(pip, check=True)
    program = str(venv / "bin" / "ratelimit")
    ports = dict.fromkeys(("PORT", "GRPC_PORT", "DEBUG_PORT", "DRAIN_SECONDS"), "0")
    environ = {"HOST": "127.0.0.1", "DEBUG_HOST": "127.0.0.1", "GRPC_HOST": "127.0.0.1", **ports}

    def said(*words: str) -> str:
        return subprocess.run(
            [program, *words], cwd=empty, env=environ, capture_output=True, text=True, check=True
        ).stdout

    said("init", "--example")
    with Service([program, "serve", "--rules", "rules"], empty, environ) as service:
        service.wait_until(lambda: service.listening and service.healthy, "is healthy")
        called = said("call", f"localhost:{service.grpc_port}", "shop", "login=ada")
        page = ask(service.debug_port, "/status").body
        metrics, told = service.metrics(), said("status", f"localhost:{service.debug_port}")
        code = service.stop()

    assert "login=ada: OK, limit 5 per minute, 4 left" in called
    assert said("--version") == f"ratelimit, version {VERSION}\n"
    assert f"starting {VERSION}, counters in memory" in service.log
    assert f": version {VERSION}, up " in told
    assert f'"version": "{VERSION}"' in page
    assert f'version="{VERSION}"' in metrics
    assert code == 0


def test_the_image_context_is_what_the_dockerfile_copies(dist: Path) -> None:
    """`docker build - <` takes it as it is; tests/deploy/test_dockerfile.py builds from it."""
    found = names(dist / f"ratelimit-service-image-{VERSION}.tar.gz")

    assert {name.partition("/")[0] for name in found} == {
        *("Dockerfile", "LICENSE", "README.md", "pyproject.toml", "ratelimit_service", "requirements"),
    }
    assert "ratelimit_service/algorithms/token_bucket.lua" in found


def test_the_chart_is_what_helm_packages(repository: Path, dist: Path, tmp_path: Path) -> None:
    """File by file, but that Helm writes Chart.yaml anew; and Helm takes it."""
    helm, chart = str(peers.helm()), dist / f"ratelimit-{VERSION}.tgz"
    package = [helm, "package", str(repository / "deploy" / "helm" / "ratelimit"), "--destination", str(tmp_path)]
    subprocess.run(package, capture_output=True, check=True)
    ours, theirs = files(chart), files(tmp_path / chart.name)
    template = [helm, "template", str(chart), "--kube-version", peers.KUBERNETES[-1]]
    shown = subprocess.run(template, capture_output=True, text=True, check=True).stdout

    assert yaml.safe_load(ours.pop("ratelimit/Chart.yaml")) == yaml.safe_load(theirs.pop("ratelimit/Chart.yaml"))
    assert ours == theirs
    assert f"ratelimit-service:{VERSION}" in shown


def files(archive: Path) -> dict[str, bytes]:
    """What is in the files of a .tar.gz."""
    with tarfile.open(archive) as tar:
        return {member.name: reader.read() for member in tar if (reader := tar.extractfile(member)) is not None}


def test_the_bill_of_materials_is_valid_with_licences_of_spdx(dist: Path) -> None:
    """By CycloneDX's own schema and SPDX's own list."""
    text = (dist / f"ratelimit-service-{VERSION}.cdx.json").read_text("utf-8")
    environ = os.environ | {"PYTHONPATH": f"{peers.cyclonedx()}:{peers.kubernetes_validate()}"}
    validated = subprocess.run(
        [sys.executable, "-c", VALIDATE], input=text, env=environ, capture_output=True, text=True, check=True
    )
    bill = json.loads(text)
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}

    assert validated.stdout == "[]\n"
    assert needs.keys() == {each["purl"] for each in bill["components"]} | {f"pkg:pypi/ratelimit-service@{VERSION}"}
    assert all(each["hashes"] for each in bill["components"])
    assert {"hatchling", "editables", "pip"}.isdisjoint(each["name"] for each in bill["components"])
    (file,) = bill["metadata"]["component"]["components"]
    assert file["name"] == WHEEL
    assert file["hashes"][0]["content"] == sha256((dist / WHEEL).read_bytes()).hexdigest()


def test_the_notes_are_the_version_s_section_of_the_changelog(repository: Path, dist: Path) -> None:
    notes = (dist / f"RELEASE-NOTES-{VERSION}.md").read_text("utf-8")
    changelog = (repository / "CHANGELOG.md").read_text("utf-8")

    assert notes.startswith(f"{CHANGE}\n")
    assert "## [" not in notes
    assert re.search(
        rf"^## \[Unreleased\]\n\n## \[{VERSION}\] - \d{{4}}-\d\d-\d\d\n\n{CHANGE}\n", changelog, re.MULTILINE
    )


def test_the_tree_has_one_version() -> None:
    assert version_of(ROOT) == ratelimit_service.__version__


def test_the_version_stands_in_every_place(repository: Path) -> None:
    """Where each tool looks for it."""
    chart = yaml.safe_load((repository / "deploy/helm/ratelimit/Chart.yaml").read_text("utf-8"))
    kustomization = yaml.safe_load((repository / "deploy/kubernetes/kustomization.yaml").read_text("utf-8"))
    shown = python(repository, "ratelimit_service", "--version").stdout

    assert shown == f"ratelimit, version {VERSION}\n"
    assert (chart["version"], chart["appVersion"], kustomization["images"][0]["newTag"]) == (VERSION,) * 3
    assert f"LABEL org.opencontainers.image.version={VERSION}\n" in (repository / "Dockerfile").read_text("utf-8")


def untracked(clone: Path) -> None:
    (clone / "notes.txt").write_text("mine\n")


def no_section(clone: Path) -> None:
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(changelog.read_text("utf-8").replace(f"## [{VERSION}] - ", f"## {VERSION} - "), "utf-8")
    commit(clone)


def another_version(clone: Path) -> None:
    chart = clone / "deploy" / "helm" / "ratelimit" / "Chart.yaml"
    chart.write_text(chart.read_text("utf-8").replace(f": {VERSION}", ": 0.0.1"), "utf-8")
    commit(clone)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (untracked, "what is not committed would not be in it (notes.txt): commit it, or remove it"),
        (no_section, "CHANGELOG.md has no section for 999.0.0: `make version VERSION=999.0.0`, and commit"),
        (another_version, "deploy/helm/ratelimit/Chart.yaml has version 0.0.1: use `make version` to have 999.0.0"),
    ],
)
def test_a_tree_that_cannot_be_released_is_refused(
    repository: Path, tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    tree = clone(repository, tmp_path / "clone")
    change(tree)
    done = python(tree, "deploy.release")

    assert (done.returncode, done.stderr) == (1, f"make release: {said}\n")
    assert not (tree / "dist").exists()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.0rc1", "VERSION=1.0rc1 is not three numbers such as 1.2.0, which Python and Helm both read"),
        (VERSION, "CHANGELOG.md has a section for 999.0.0 already: choose a later version"),
        ("999.0.1", "CHANGELOG.md has nothing under [Unreleased]: a release says what it changes"),
    ],
)
def test_a_version_that_cannot_begin_is_refused(repository: Path, version: str, said: str) -> None:
    done = python(repository, "deploy.release.version", version)

    assert (done.returncode, done.stderr) == (1, f"make version: {said}\n")
