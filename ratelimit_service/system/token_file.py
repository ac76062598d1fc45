"""The file with the token that a service makes at its start, which commands of the same user on this machine find.

It is in a folder of the user in the folder for temporary files, as tmux has one. A folder there that belongs to another
user, or that others may open, is not used.
"""

import contextlib
import os
import secrets
import stat
from ipaddress import ip_address
from pathlib import Path
from typing import Final

_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


class TokenFile:
    """A new token, in a file from `write` to `remove`. `port` is that of the service, which tells several apart."""

    def __init__(self, port: int) -> None:
        self.token = secrets.token_hex(32)
        self.path = _path(port)

    def write(self) -> None:
        """Write the file. Raises OSError if it cannot be written so that its user alone reads it."""
        with contextlib.suppress(FileExistsError):
            self.path.parent.mkdir(_FOLDER_MODE)
        _ensure_own(self.path.parent)
        fresh = self.path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "w") as opened:  # noqa: PTH123
            opened.write(f"{self.token}\n")
        fresh.rename(self.path)

    def keep(self) -> None:
        """Keep the file from what removes old temporary files, and write it again if that was too late."""
        try:
            os.utime(self.path)
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                self.write()

    def remove(self) -> None:
        """Remove the file, unless another service has replaced it."""
        if _read(self.path) == self.token:
            self.path.unlink(missing_ok=True)


def find_token(host: str, port: int) -> str:
    """The token of a service that this user has started on this machine; empty if there is none."""
    return _read(_path(port)) if _is_loopback(host) else ""


def _path(port: int) -> Path:
    # Not tempfile.gettempdir(): where that may write nowhere else, it is the folder that the service was started in.
    return Path(os.environ.get("TMPDIR") or "/tmp", f"ratelimit-{os.geteuid()}", f"token-{port}")  # noqa: S108


def _read(path: Path) -> str:
    try:
        _ensure_own(path.parent)
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _ensure_own(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & ~_FOLDER_MODE & 0o777:
        raise PermissionError(f"{folder} is not a folder that this user alone may open")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
