"""Files that the operator names: read when they are regular, else refused with what they are; nothing waits."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ratelimit_service.system.disk import BoundedRead, read_file

PUT = "and only regular files are read: put one in its place, or remove it"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


NO_FILES: list[tuple[Callable[[Path], None], str]] = [
    (os.mkfifo, "a pipe"),
    (_socket, "a socket"),
    (_device, "a device"),
    (Path.mkdir, "a folder"),
]


@pytest.mark.parametrize(("make", "kind"), NO_FILES, ids=[kind for _, kind in NO_FILES])
def test_only_regular_files_are_read(tmp_path: Path, make: Callable[[Path], None], kind: str) -> None:
    path = tmp_path / "odd"
    make(path)

    with pytest.raises(OSError, match="regular") as refused:
        read_file(path)

    assert (refused.value.strerror, refused.value.filename) == (f"it is {kind}, {PUT}", str(path))


def test_a_file_is_read_whole_or_as_far_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")

    assert (read_file(path), read_file(path, 3)) == (b"abcdef", b"abc")


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")

    assert read_file(tmp_path / "link") == b"abc"


def test_a_read_that_hangs_is_given_up_and_begun_anew_when_it_has_ended() -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def read() -> str:
        begun.release()
        go_on.wait()
        return "read"

    bounded = BoundedRead(read)
    for _ in range(3):
        with pytest.raises(TimeoutError, match="its file system does not answer"):
            bounded.now(0.1)
    asked = [begun.acquire(blocking=False) for _ in range(2)]
    go_on.set()

    assert asked == [True, False]
    assert eventually_reads(bounded) == "read"


def eventually_reads(bounded: BoundedRead[str]) -> str:
    """What it reads once the read that hung has ended."""
    while True:
        try:
            return bounded.now(60)
        except TimeoutError:
            continue


def test_what_a_read_raises_is_raised() -> None:
    def read() -> None:
        raise TimeoutError("the server says so")

    with pytest.raises(TimeoutError, match="the server says so"):
        BoundedRead(read).now()
