"""The cases that are kept: one line of base64 each, in a file for each harness.

A find is added with `base64 -w0 .fuzz/crash-… >> tests/fuzz/corpus.txt`, and an end of line.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Final

CONNECTIONS: Final = Path(__file__).with_suffix(".txt")
REQUESTS: Final = Path(__file__).with_name("requests.txt")


def read(file: Path = CONNECTIONS) -> list[bytes]:
    """All of them."""
    return [b64decode(line, validate=True) for line in file.read_text(encoding="ascii").splitlines()]


def write(cases: Iterable[bytes], file: Path = CONNECTIONS) -> None:
    """These, each once, and in the same order whatever theirs is."""
    file.write_text("".join(f"{line}\n" for line in sorted({b64encode(case).decode() for case in cases})), "ascii")
