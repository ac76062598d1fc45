"""A real Redis for tests, which ends with them."""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final

from tests import peers
from tests.ports import free_port
from tests.processes import Process

Environ = Mapping[str, str]
_NOTHING: Final[Environ] = MappingProxyType({})

_QUIET: Final = ("--save", "", "--appendonly", "no", "--daemonize", "no", "--bind", "127.0.0.1")


@cache
def debugging() -> Sequence[str]:
    """The option that allows DEBUG, which up to 6.2 needed none."""
    version = subprocess.run([peers.redis_server(), "--version"], capture_output=True, text=True, check=True).stdout
    return () if " v=6." in version else ("--enable-debug-command", "yes")


class Redis(Process):
    """A Redis at work, without persistence. It may be stopped and killed meanwhile, as any process."""

    def __init__(
        self, folder: Path, port: int, options: Sequence[str], program: Path | None = None, environ: Environ = _NOTHING
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = port
        # Not in pytest's folder: the path of a socket has room for 107 bytes, and that of a test is longer some day.
        self._short = TemporaryDirectory(prefix="redis-")
        self.socket = Path(self._short.name, "s")
        """A unix socket that it listens on too."""
        listen = ("--port", str(port), "--unixsocket", str(self.socket), "--dir", str(folder))
        command = [str(program or peers.redis_server()), *listen, *_QUIET, *options]
        super().__init__(command, folder, environ, f"redis-{port}.log")

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._short.cleanup()

    def cli(self, *words: str) -> str:
        """What redis-cli answers, without the newline at its end."""
        command = [str(peers.redis_cli()), "-s", str(self.socket), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.rstrip("\n")

    def script_calls(self) -> int:
        """How many times a script was run."""
        return sum(int(count) for count in re.findall(r"cmdstat_eval\w*:calls=(\d+)", self.cli("INFO", "commandstats")))


@contextmanager
def start_redis(
    folder: Path, *options: str, port: int = 0, program: Path | None = None, environ: Environ = _NOTHING
) -> Iterator[Redis]:
    """A Redis on that port, or on a free one, that answers; options as on its command line, a later one wins."""
    with Redis(folder, port or free_port(), options, program, environ) as redis:
        redis.wait_until(lambda: "eady to accept connections" in redis.log, "Redis listens")
        yield redis
