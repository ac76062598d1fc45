"""Load through Envoy: requests on several connections, each answer looked at."""

import http.client
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

from tests.processes import START_SECONDS, eventually

_CONNECTIONS: Final = 4
_PAUSE_SECONDS: Final = 0.01


class Load:
    """What the answers were."""

    def __init__(self, port: int, path: str, header: str) -> None:
        self._port = port
        self._path = path
        self._header = header
        self._over = Event()
        self._threads = [Thread(target=self._ask, daemon=True) for _ in range(_CONNECTIONS)]
        self.statuses: Counter[int] = Counter()
        self.values: list[str] = []
        """Of the header, in the order in which answers came, each followed by another one."""
        self.broken: list[str] = []
        """Connections that ended, and why: none should."""
        self.slowest = 0.0
        """Seconds."""

    @property
    def answers(self) -> int:
        """How many there are."""
        return self.statuses.total()

    def wait_for(self, more: int) -> None:
        """Until so many more answers have come."""
        enough = self.answers + more
        eventually(lambda: self.answers >= enough, f"{more} more answers: {self}")

    def wait_for_value(self, value: str) -> None:
        """Until an answer has the header with this value."""
        eventually(lambda: value in self.values, f"an answer with {value}: {self}")

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_SECONDS)
        try:
            while not self._over.wait(_PAUSE_SECONDS):
                began = time.monotonic()
                connection.request("GET", self._path)
                response = connection.getresponse()
                response.read()
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.statuses[response.status] += 1
                value = response.getheader(self._header, "")
                if not self.values or self.values[-1] != value:
                    self.values.append(value)
        except (OSError, http.client.HTTPException) as error:
            self.broken.append(repr(error))
        finally:
            connection.close()

    def start(self) -> None:
        """Ask on all connections, each soon after it was answered."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """No more requests; those in flight have their answer."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def __repr__(self) -> str:
        return f"{dict(self.statuses)}, {self.values}, {self.broken}, {self.slowest:.3f} s"


@contextmanager
def load(port: int, path: str, header: str = "ratelimit-limit") -> Iterator[Load]:
    """Requests on all connections, while this lasts; afterwards all have their answer."""
    running = Load(port, path, header)
    running.start()
    try:
        yield running
    finally:
        running.finish()
