"""Looks for cases that break a harness's invariant, guided by the lines they reach: `make fuzz`.

    python tests/fuzz/fuzz.py connections|requests [seconds]

What breaks it is written to .fuzz, which git ignores; a test replays what tests/fuzz/*.txt hold. Without seconds it
goes on until it finds something. `--merge` adds to that file the fewest and smallest cases found that reach more.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from hashlib import sha1
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

from tests.fuzz import corpus

FOUND = Path(__file__).resolve().parent.parent.parent / ".fuzz"

TRACED = {
    "connections": ["ratelimit_service.transports.http2"],
    "requests": [
        "ratelimit_service.api",
        "ratelimit_service.limiter.plan",
        "ratelimit_service.rules.rule",
        "ratelimit_service.stores.memory",
        "ratelimit_service.stores.redis.script",
    ],
}
FILES = {"connections": corpus.CONNECTIONS, "requests": corpus.REQUESTS}

LONGEST = {"connections": 1024, "requests": 8192}
"""Bytes of a case."""

MAX_MILLISECONDS = 50
"""Of processor time for one call: five times what it may take, for with its lines traced it takes so much longer."""


def main() -> None:
    """As the arguments say."""
    target, *arguments = sys.argv[1:]
    folder = FOUND / target
    kept, found = folder / "kept", folder / "corpus"
    limits = [f"-max_len={LONGEST[target]}", "-timeout=60", "-rss_limit_mb=2048", f"-artifact_prefix={folder}/"]
    with ExitStack() as stack:
        try_case = harness(target, stack)
        match arguments:
            case ["--merge"]:
                unpack(kept, cases(target))
                # In a process of its own, for it ends without a word to Python.
                command = [sys.executable, __file__, target, *limits, "-merge=1", str(kept), str(found)]
                subprocess.run(command, check=True)
                corpus.write((case.read_bytes() for case in kept.iterdir()), FILES[target])
                return
            case [str(first), *_] if first.startswith("-"):
                options = arguments  # it starts itself again to merge
            case seconds:
                unpack(kept, cases(target))
                found.mkdir(exist_ok=True)
                options = [*limits, f"-max_total_time={(*seconds, 0)[0]}", str(found), str(kept)]
        atheris.Setup([f"{sys.executable} {sys.argv[0]} {target}", *options], try_case)
        atheris.Fuzz()


def harness(target: str, stack: ExitStack) -> Callable[[bytes], None]:
    """What tries a case, with the lines of what it tries traced."""
    with atheris.instrument_imports(include=TRACED[target]):
        if target == "connections":
            from tests.fuzz.harness import try_case  # noqa: PLC0415 - traced from here on

            return try_case
        from tests.fuzz.requests import Harness  # noqa: PLC0415 - as above
    from redis import Redis as Client  # noqa: PLC0415 - for this target alone

    from tests.redis import start_redis  # noqa: PLC0415 - as above

    redis = stack.enter_context(start_redis(Path(stack.enter_context(TemporaryDirectory()))))
    client = stack.enter_context(Client(unix_socket_path=str(redis.socket)))
    return Harness(client, MAX_MILLISECONDS).try_case


def cases(target: str) -> Iterable[bytes]:
    """Those to begin with."""
    if target == "requests":
        from tests.fuzz.seeds import seeds  # noqa: PLC0415 - it imports what is to be traced

        return (*seeds(), *corpus.read(FILES[target]))
    return corpus.read(FILES[target])


def unpack(folder: Path, found: Iterable[bytes]) -> None:
    """The cases as the fuzzer reads them: a file for each, named as it names those that it finds."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for case in found:
        (folder / sha1(case, usedforsecurity=False).hexdigest()).write_bytes(case)


if __name__ == "__main__":
    main()
