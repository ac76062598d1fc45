"""Looks for cases that break the harness's invariant, guided by the lines they reach: `make fuzz`.

    python tests/fuzz/fuzz.py [seconds]

What breaks it is written to .fuzz, which git ignores; a test replays what tests/fuzz/corpus holds. Without seconds it
goes on until it finds something. `--merge` keeps the fewest and smallest cases of .fuzz/corpus that reach as many lines
and puts them beside those of the corpus.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ratelimit_service.transports.http2"]):
    from tests.fuzz.harness import try_case

CORPUS = Path(__file__).resolve().parent / "corpus"
FOUND = Path(__file__).resolve().parent.parent.parent / ".fuzz"


def main() -> None:
    """As the arguments say."""
    found = FOUND / "corpus"
    found.mkdir(parents=True, exist_ok=True)
    limits = ["-max_len=1024", "-timeout=60", "-rss_limit_mb=2048", f"-artifact_prefix={FOUND}/"]
    match sys.argv[1:]:
        case ["--merge"]:
            options = [*limits, "-merge=1", str(CORPUS), str(found)]
        case [str(first), *_] if first.startswith("-"):
            options = sys.argv[1:]  # it starts itself again to merge
        case seconds:
            options = [*limits, f"-max_total_time={(*seconds, 0)[0]}", str(found), str(CORPUS)]
    atheris.Setup([f"{sys.executable} {sys.argv[0]}", *options], try_case)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
