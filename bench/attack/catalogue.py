"""The list of attacks, what each needs of a server, and what it knows of it.

An attack is a function; its name and the first line of its docstring are those of the table.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attack.attacker import Attacker

Run = Callable[["Attacker"], Awaitable[None]]


class Need(StrEnum):
    """What an attack needs of a server; it is not tried on one without."""

    RATE_LIMITS = "ShouldRateLimit"
    HTTP = "an HTTP port"
    DEBUG = "a debug port"
    TLS = "TLS"
    REDIS = "Redis"
    WORKERS = "two workers"
    OURS = "our own rules, log and command"


@dataclass(frozen=True)
class Target:
    """A server, as its attackers and its healthy client know it."""

    host: str
    port: int
    path: str
    """Of the method that is called."""
    request: str
    """The message of a plain call, in hexadecimal digits."""
    pid: int = 0
    http_port: int = 0
    debug_port: int = 0
    tls: bool = False
    rules: str = ""
    """The folder of its rules, where these may be changed."""
    log: str = ""
    """The file of its log."""
    same_address: bool = False
    """The healthy client's is that of the attackers."""

    @property
    def healthy_address(self) -> tuple[str, int] | None:
        """Where the healthy client calls from: another host than the attackers', where this machine can be two."""
        return ("127.0.0.2", 0) if self.host.startswith("127.") and not self.same_address else None


@dataclass(frozen=True)
class Attack:
    """One of them."""

    name: str
    subject: str
    does: str
    run: Run
    needs: frozenset[Need]
    seconds: float
    """The shortest time in which it shows what it does."""
    processes: int
    """Attackers; a process has no more than 20,000 files."""
    memory: int
    """MiB that settings grant it beyond what connections may hold: the memory store's."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of our own service, where the attack is about them; all others have their defaults."""
    files: int = 0
    """The most files that our own service may open, where the attack is about them."""


ATTACKS: dict[str, Attack] = {}

SUBJECTS = ("messages", "floods", "places", "http1", "tls", "stores", "made_up", "files")
"""The modules that have them, in the order of tables."""


def listed() -> list[Attack]:
    """All that were imported, by subject."""
    return sorted(ATTACKS.values(), key=lambda attack: SUBJECTS.index(attack.subject))


def attack(
    *needs: Need,
    seconds: float = 0,
    processes: int = 1,
    memory: int = 0,
    settings: Mapping[str, str] | None = None,
    files: int = 0,
) -> Callable[[Run], Run]:
    """Enters a function under its name."""

    def enter(run: Run) -> Run:
        name = run.__name__.replace("_", "-")
        subject = run.__module__.rpartition(".")[2]
        does = (run.__doc__ or "").partition("\n")[0].rstrip(".")
        ATTACKS[name] = Attack(
            name, subject, does, run, frozenset(needs), seconds, processes, memory, settings or {}, files
        )
        return run

    return enter
