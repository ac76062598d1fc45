"""`python -m deploy.release`: make all that is released into dist/, from the checked out commit and nothing else.

The same commit gives the same bytes: files are those of git, every time is the commit's, and the lock pins what builds.
With another version of Python or zlib the compressed bytes may differ.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from deploy.release.archive import pack
from deploy.release.sbom import sbom
from deploy.release.version import ROOT, Refused, notes_of, version_of

DIST: Final = ROOT / "dist"
CHART: Final = "deploy/helm/ratelimit"


def main() -> None:
    """Make the release, or say why there can be none."""
    try:
        made = release(ROOT, DIST)
    except Refused as reason:
        sys.exit(f"make release: {reason}")
    for path in made:
        print(f"{path.stat().st_size:>10,}  {path.relative_to(ROOT)}")


def release(root: Path, dist: Path) -> list[Path]:
    """Fill the folder anew."""
    if changed := _git(root, "status", "--porcelain"):
        first = ", ".join(line[3:] for line in changed.splitlines()[:3])
        raise Refused(f"what is not committed would not be in it ({first}): commit it, or remove it")
    version = version_of(root)
    notes = notes_of(root, version)
    time = int(_git(root, "log", "-1", "--format=%ct"))
    if dist.exists():
        shutil.rmtree(dist)
    dist.mkdir()
    with TemporaryDirectory() as scratch:
        source = Path(scratch)
        archived = subprocess.run(["git", "archive", "HEAD"], cwd=root, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "--extract", "--directory", scratch], input=archived, check=True)
        _build_packages(source, dist, time)
        context = re.findall(r"^COPY (?!--from)(.+) \S+$", (source / "Dockerfile").read_text("utf-8"), re.MULTILINE)
        copied = [place for places in context for place in places.split()]
        pack(dist / f"ratelimit-service-image-{version}.tar.gz", source, ["Dockerfile", *copied], time)
        # Not by `helm package`, which writes the time of the day. As there, .helmignore leaves out dot files.
        chart = [path.name for path in (source / CHART).iterdir() if not path.name.startswith(".")]
        pack(dist / f"ratelimit-{version}.tgz", source / CHART, chart, time, below="ratelimit/")
        made_at = datetime.fromtimestamp(time, UTC).isoformat()
        (wheel,) = dist.glob("*.whl")
        bill = sbom((source / "requirements/image.lock").read_text("utf-8"), version, made_at, wheel)
        _write(dist / f"ratelimit-service-{version}.cdx.json", json.dumps(bill, indent=2) + "\n")
    _write(dist / f"RELEASE-NOTES-{version}.md", notes)
    made = sorted(dist.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    _write(dist / "SHA256SUMS", sums)
    return [*made, dist / "SHA256SUMS"]


def _build_packages(source: Path, dist: Path, time: int) -> None:
    """Build the sdist and the wheel."""
    environ = os.environ | {"SOURCE_DATE_EPOCH": str(time)}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(dist)]
    done = subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"hatchling cannot build it:\n{done.stderr}")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"it is made from a clone of the repository: {done.stderr.strip()}")
    return done.stdout


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
