"""Looks for cases that break the harness's invariant, guided by the lines they reach: `make fuzz`.

    python tests/fuzz/fuzz.py [seconds]

What breaks it is written to .fuzz, which git ignores; a test replays what tests/fuzz/corpus.txt holds. Without seconds
it goes on until it finds something. `--merge` adds to that file the fewest and smallest cases found that reach more.
"""

import subprocess
import sys
from hashlib import sha1
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ratelimit_service.transports.http2"]):
    from tests.fuzz.harness import try_case

from tests.fuzz import corpus

FOUND = Path(__file__).resolve().parent.parent.parent / ".fuzz"


def main() -> None:
    """As the arguments say."""
    kept, found = FOUND / "kept", FOUND / "corpus"
    limits = ["-max_len=1024", "-timeout=60", "-rss_limit_mb=2048", f"-artifact_prefix={FOUND}/"]
    match sys.argv[1:]:
        case ["--merge"]:
            unpack(kept)
            # In a process of its own, for it ends without a word to Python.
            subprocess.run([sys.executable, __file__, *limits, "-merge=1", str(kept), str(found)], check=True)
            corpus.write(case.read_bytes() for case in kept.iterdir())
            return
        case [str(first), *_] if first.startswith("-"):
            options = sys.argv[1:]  # it starts itself again to merge
        case seconds:
            unpack(kept)
            found.mkdir(exist_ok=True)
            options = [*limits, f"-max_total_time={(*seconds, 0)[0]}", str(found), str(kept)]
    atheris.Setup([f"{sys.executable} {sys.argv[0]}", *options], try_case)
    atheris.Fuzz()


def unpack(folder: Path) -> None:
    """The corpus as the fuzzer reads it: a file for each case, named as it names those that it finds."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for case in corpus.read():
        (folder / sha1(case, usedforsecurity=False).hexdigest()).write_bytes(case)


if __name__ == "__main__":
    main()
