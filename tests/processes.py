"""Real processes for stories over real sockets: our service, as an operator would start it, and other programs.

Every port is one that the system gave, so nothing has to be free beforehand. Every wait has a deadline, and ends with
the log of the process when that is over.
"""

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

from ratelimit_service.system.token_file import TokenFile, find_token

ROOT: Final = Path(__file__).resolve().parent.parent

START_SECONDS: Final = 60
STOP_SECONDS: Final = 60
_LOOK_SECONDS: Final = 0.02
_MAX_LOOK_SECONDS: Final = 0.2

UNTIL_WE_END: Final = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Begins a command that must not outlive tests that are killed themselves; it becomes what it starts."""

_LISTENING: Final = re.compile(r"listening for ([\w ]+) on [^\n\"]*:(\d+)\b")


class Reply(NamedTuple):
    """An HTTP response; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: str


def ask(
    port: int, path: str, headers: Mapping[str, str] | None = None, *, method: str = "GET", body: str = ""
) -> Reply:
    """One HTTP request to a port of this machine, on a connection of its own; changes with the token of the service."""
    token = find_token("127.0.0.1", port) if method != "GET" else ""
    given = ({"Authorization": f"Bearer {token}"} if token else {}) | dict(headers or {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request(method, path, body.encode() or None, given)
        response = connection.getresponse()
        text = response.read().decode()
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, text)
    finally:
        connection.close()


def eventually(true: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Looks until it is true; what it says is why the test ends otherwise. Nobody listening yet is not true yet."""
    deadline = time.monotonic() + seconds
    pause = _LOOK_SECONDS
    while True:
        try:
            if true():
                return
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(pause)
        pause = min(1.1 * pause, _MAX_LOOK_SECONDS)  # a look may cost the service a page


class Process:
    """A program at work, with its log; leaving it as a context manager ends it."""

    def __init__(self, command: Sequence[str], folder: Path, environ: Mapping[str, str], log: str = "log") -> None:
        self._log = folder / log
        with self._log.open("wb") as log_file:
            self._popen = subprocess.Popen(
                (*UNTIL_WE_END, *command),
                cwd=folder,
                # Nothing else of what the tests themselves were started with.
                env={name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ} | dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self._popen.poll() is None

    @property
    def log(self) -> str:
        """Everything it has said, on either output."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
        """As `eventually`; when the process ends meanwhile, or the time is over, its log is told."""

        def true_while_running() -> bool:
            if not self.running:
                raise AssertionError(f"ended with {self._popen.returncode} before: {what}")
            return true()

        try:
            eventually(true_while_running, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\nthe log of process {self.pid}:\n{self.log}") from None

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._popen.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """The exit code, once it has ended; negative when a signal ended it."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} did not end within {seconds} s:\n{self.log}") from None

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """SIGTERM, and the exit code."""
        if self.running:
            self.send(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        """SIGKILL: it is gone, and had no time to say so."""
        self._popen.kill()
        self._popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.kill()
        print(f"--- process {self.pid} ended with {self._popen.returncode}, its log:\n{self.log}")


class Service(Process):
    """`ratelimit serve` at work."""

    rules: Path
    """The folder of its rules."""

    def port(self, what: str) -> int:
        """Where it listens for `gRPC`, `HTTP`, `debug HTTP` or `Prometheus`."""
        return dict(self._ports())[what]

    def _ports(self) -> Iterator[tuple[str, int]]:
        for match in _LISTENING.finditer(self.log):
            yield match[1], int(match[2])

    @property
    def grpc_port(self) -> int:
        """Where Envoy asks."""
        return self.port("gRPC")

    @property
    def http_port(self) -> int:
        """`/json`, `/healthcheck`, `/metrics`."""
        return self.port("HTTP")

    @property
    def debug_port(self) -> int:
        """The pages."""
        return self.port("debug HTTP")

    @property
    def healthy(self) -> bool:
        """It wants calls."""
        return ask(self.http_port, "/healthcheck").status == 200

    @property
    def listening(self) -> bool:
        """All three ports are open, or unix sockets in place of gRPC's and the debug port."""
        return all(f"listening for {what} on" in self.log for what in ("HTTP", "debug HTTP", "gRPC"))

    def metrics(self) -> str:
        """What Prometheus would read."""
        return ask(self.http_port, "/metrics").body

    def __exit__(self, *error: object) -> None:
        """Its token goes too: another service may have its port next."""
        super().__exit__(*error)
        if port := dict(self._ports()).get("debug HTTP"):
            TokenFile(port).path.unlink(missing_ok=True)

    def write_rules(self, text: str, name: str = "rules.yaml") -> None:
        """Replace a file of rules in one step, as an editor or a ConfigMap does."""
        fresh = self.rules / f".{name}.new"
        fresh.write_text(text, encoding="utf-8")
        fresh.rename(self.rules / name)


@contextmanager
def start_service(
    folder: Path,
    rules: str | Path,
    environ: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    *,
    prefix: Sequence[str] = (),
    wait_until_healthy: bool = True,
) -> Iterator[Service]:
    """The service with these rules, the text of a file or a folder of them, once it listens and is well.

    It is quick to notice changed rules and to stop, unless `environ` says otherwise; `folder` becomes its own. `prefix`
    is a command that becomes the service. At the end it is killed if it is still there, and its log printed: pytest
    shows it when the test failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rules_path = rules if isinstance(rules, Path) else folder / "rules"
    if isinstance(rules, str):
        rules_path.mkdir()
        (rules_path / "rules.yaml").write_text(rules, encoding="utf-8")
    defaults = {
        "HOST": "127.0.0.1",
        "DEBUG_HOST": "127.0.0.1",
        "GRPC_HOST": "127.0.0.1",
        "PORT": "0",
        "DEBUG_PORT": "0",
        "GRPC_PORT": "0",
        "RULES_PATH": str(rules_path),
        "RULES_POLL_INTERVAL": "50ms",
        "DRAIN_SECONDS": "0",
        "PYTHONPATH": str(ROOT),
        "TRANSPORT": os.environ.get("TRANSPORT", "http2"),  # which tests/conftest.py sets for each test
    }
    command = [*prefix, sys.executable, "-m", "ratelimit_service", "serve", *flags]
    with Service(command, folder, defaults | dict(environ or {})) as service:
        service.rules = rules_path
        service.wait_until(lambda: service.listening, "listens on its ports")
        if wait_until_healthy:
            service.wait_until(lambda: service.healthy, "is healthy")
        yield service
