"""Keeps the last good snapshot on disk, for a start while the control plane is away."""

import os
from contextlib import suppress
from pathlib import Path

from ratelimit_service.system.disk import read_file


def read_kept(path: Path, most: int) -> bytes | None:
    """The snapshot that was kept; None if there is none. OSError if it cannot be read, or is larger than `most`."""
    try:
        found = read_file(path, most + 1)
    except FileNotFoundError:
        return None
    if len(found) > most:
        raise OSError(f"it is larger than {most:,} bytes")
    return found


def keep(path: Path, snapshot: bytes) -> None:
    """Replace the snapshot: written aside, synced, renamed. OSError if that fails; the old one is whole then."""
    aside = path.with_name(f".{path.name}.new")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:  # noqa: PTH123
            file.write(snapshot)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
