"""`python -m deploy.release.version 0.2.0`: give the project this version everywhere, and the CHANGELOG its section.

`ratelimit_service/__init__.py` is the one place; what other tools read has a copy, which this writes and `make release`
compares.
"""

import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

SOURCE: Final = "ratelimit_service/__init__.py"
PLACES: Final[Mapping[str, re.Pattern[str]]] = {
    SOURCE: re.compile(r'^(__version__ = ")(.+)(?=")', re.MULTILINE),
    "Dockerfile": re.compile(r"^(.*org\.opencontainers\.image\.version=)(\S+)", re.MULTILINE),
    "deploy/helm/ratelimit/Chart.yaml": re.compile(r"^(version: |appVersion: )(\S+)", re.MULTILINE),
    "deploy/kubernetes/kustomization.yaml": re.compile(r"^( +newTag: )(\S+)", re.MULTILINE),
}
CHANGELOG: Final = "CHANGELOG.md"
_UNRELEASED: Final = "## [Unreleased]\n"
_SECTION: Final = r"^## \[{version}\] - \d{{4}}-\d\d-\d\d\n+(.*?)(?=^## \[|\Z)"


class Refused(Exception):  # noqa: N818  # what the tree lacks, not an error of ours
    """There can be no release of it as it is; the message says what to do."""


def version_of(root: Path) -> str:
    """The version that stands in every place."""
    found = {
        place: {written for _, written in pattern.findall(_read(root, place))} for place, pattern in PLACES.items()
    }
    version: str = min(found[SOURCE])
    for place, written in found.items():
        if written != {version}:
            other = " and ".join(sorted(written)) or "none"
            raise Refused(f"{place} has version {other}: use `make version` to have {version}")
    return version


def notes_of(root: Path, version: str) -> str:
    """What the CHANGELOG says of this version."""
    section = re.search(_SECTION.format(version=re.escape(version)), _read(root, CHANGELOG), re.MULTILINE | re.DOTALL)
    if section is None:
        raise Refused(f"{CHANGELOG} has no section for {version}: `make version VERSION={version}`, and commit")
    return str(section[1])


def begin(root: Path, version: str, day: str) -> None:
    """Write the version, and make what is unreleased in the CHANGELOG its section."""
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise Refused(f"VERSION={version} is not three numbers such as 1.2.0, which Python and Helm both read")
    changes = _read(root, CHANGELOG)
    if f"\n## [{version}]" in changes:
        raise Refused(f"{CHANGELOG} has a section for {version} already: choose a later version")
    _, heading, rest = changes.partition(_UNRELEASED)
    if not heading or not rest.partition("\n## [")[0].strip():
        raise Refused(f"{CHANGELOG} has nothing under [Unreleased]: a release says what it changes")
    _write(root, CHANGELOG, changes.replace(heading, f"{heading}\n## [{version}] - {day}\n", 1))
    for place, pattern in PLACES.items():
        _write(root, place, pattern.sub(rf"\g<1>{version}", _read(root, place)))


def _read(root: Path, place: str) -> str:
    return (root / place).read_text(encoding="utf-8")


def _write(root: Path, place: str, text: str) -> None:
    (root / place).write_text(text, encoding="utf-8")


def main() -> None:
    """Begin the version that the argument names, today."""
    version = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        begin(ROOT, version, datetime.now(UTC).date().isoformat())
    except Refused as reason:
        sys.exit(f"make version: {reason}")
    print(f"all places have version {version}: read {CHANGELOG}, commit, then `make release`")


if __name__ == "__main__":
    main()
