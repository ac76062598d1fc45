"""Archives that are the same bytes whenever, wherever and by whomever they are made."""

import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path


def pack(archive: Path, folder: Path, places: Iterable[str], time: int, *, below: str = "") -> None:
    """Write these files and folders of a folder into a .tar.gz, under `below`, all of them as of this time."""
    with (
        archive.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(found for place in places for found in _files(folder / place)):
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{below}{path.relative_to(folder)}")
            entry.size, entry.mtime = len(content), time
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(entry, io.BytesIO(content))


def _files(path: Path) -> Iterable[Path]:
    return [path] if path.is_file() else (found for found in path.rglob("*") if found.is_file())
