"""A file system that hangs: a folder with one file, served over /dev/fuse, whose server is stopped when it shall hang.

As with a network file system whose server is gone, a process that looks at it waits in the kernel, and no signal but
KILL ends the wait. The mount is in a namespace of the process that is to see it, so nothing is left behind.

    unshare --user --map-root-user --mount python tests/hanging.py FOLDER FILE PID_FILE hangs|answers COMMAND...

mounts it at FOLDER, with a copy of FILE under its name, writes the server's pid to PID_FILE, and becomes COMMAND.
"""

import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

_REQUEST: Final = struct.Struct("<IIQQIIII")
"""Of include/uapi/linux/fuse.h: length, opcode, number, node, and who asks."""
_ANSWER: Final = struct.Struct("<IiQ")
_ATTRIBUTES: Final = struct.Struct("<QQQQQQIIIIIIIIII")

_FORGETS: Final = {2, 36, 42}
"""FORGET, INTERRUPT and BATCH_FORGET want no answer."""
_LOOKUP, _GETATTR, _OPEN, _READ, _INIT, _OPENDIR, _READDIR = 1, 3, 14, 15, 26, 27, 28
_ENDS: Final = {18, 29}
"""RELEASE and RELEASEDIR."""

_FOLDER, _FILE = 1, 2
_UNBUFFERED: Final = 1
_PR_SET_PDEATHSIG: Final = 1


def can_hang() -> bool:
    """Whether this machine lets a process mount one."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "test", "-w", "/dev/fuse"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def command(folder: Path, file: Path, pid_file: Path, *, hangs: bool = False) -> list[str]:
    """What a command begins with that is to see `file` in `folder`; it may hang from the beginning."""
    own = [sys.executable, __file__, str(folder), str(file), str(pid_file), "hangs" if hangs else "answers"]
    return ["unshare", "--user", "--map-root-user", "--mount", *own]


class Server:
    """The process that answers, or does not."""

    def __init__(self, pid_file: Path) -> None:
        self._pid = int(pid_file.read_text())

    def hang(self) -> None:
        """Answer nothing from now on."""
        os.kill(self._pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Answer again, what was asked meanwhile too."""
        os.kill(self._pid, signal.SIGCONT)


def _serve(device: int, name: bytes, data: bytes) -> NoReturn:
    while True:
        request = os.read(device, 2**20 + 2**16)
        _, opcode, number, node, *_ = _REQUEST.unpack_from(request)
        if opcode not in _FORGETS:
            answer = _answer(opcode, node, request[_REQUEST.size :], name, data)
            error, body = (-answer, b"") if isinstance(answer, int) else (0, answer)
            os.write(device, _ANSWER.pack(_ANSWER.size + len(body), error, number) + body)


def _answer(opcode: int, node: int, asked: bytes, name: bytes, data: bytes) -> bytes | int:
    if opcode == _INIT:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0)
    if opcode == _LOOKUP:
        if asked.rstrip(b"\0") != name:
            return errno.ENOENT
        return struct.pack("<QQQQII", _FILE, 0, 0, 0, 0, 0) + _attributes(_FILE, data)
    if opcode == _GETATTR:
        return struct.pack("<QII", 0, 0, 0) + _attributes(node, data)
    if opcode in {_OPEN, _OPENDIR}:
        return struct.pack("<QII", 0, _UNBUFFERED, 0)
    if opcode in {_READ, _READDIR}:
        _, offset, size = struct.unpack_from("<QQI", asked)
        if opcode == _READ:
            return data[offset : offset + size]
        entry = struct.pack("<QQII", _FILE, 1, len(name), stat.S_IFREG >> 12) + name
        return b"" if offset else entry + b"\0" * (-len(entry) % 8)
    return b"" if opcode in _ENDS else errno.ENOSYS


def _attributes(node: int, data: bytes) -> bytes:
    """Nothing of it may be remembered by the kernel, so each look asks."""
    mode, size = (stat.S_IFDIR | 0o755, 0) if node == _FOLDER else (stat.S_IFREG | 0o644, len(data))
    return _ATTRIBUTES.pack(node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 512, 0)


def _main(folder: str, file: str, pid_file: str, how: str, *command: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"hanging", folder.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "cannot mount", folder)
    parent, data = os.getpid(), Path(file).read_bytes()
    pid = os.fork()
    if not pid:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            if how == "hangs":
                os.kill(os.getpid(), signal.SIGSTOP)
            _serve(device, Path(file).name.encode(), data)
        os._exit(1)
    Path(pid_file).write_text(str(pid))
    os.execvp(command[0], command)  # noqa: S606 - it is to have this process's pid


if __name__ == "__main__":
    _main(*sys.argv[1:])
