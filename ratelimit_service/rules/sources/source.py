"""The contract of a source of rules: whole sets of documents, one after the other."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ratelimit_service.errors import Problem
from ratelimit_service.rules.data_files import ReadData
from ratelimit_service.rules.syntax.document import Document
from ratelimit_service.settings.fields import SourceKind


class Documents(NamedTuple):
    """All rules that a source has at one time."""

    documents: Sequence[Document]
    version: str
    """Tells this set from others of the source; the same documents have the same."""
    read_data: ReadData | None = None
    """Reads the data files that the documents name, called in another thread while they are loaded; None: only rules
    files may name some."""


Given = Documents | tuple[Problem, ...]
"""The documents, or why they cannot be had: a failed load, after which the old rules stay. No reason at all: there are
none yet, which is not a failure."""


class SourceConnection(NamedTuple):
    """The connection to a source that is another program."""

    address: str
    since: int
    """Microseconds since the epoch: when it was connected, or lost."""
    connected: bool = False
    why: str = ""
    """Why it is lost; empty before the first attempt has failed."""
    version: str = ""
    """The version that was accepted last, as the other program says it."""
    kept: str = ""
    """The file whose rules are in force, as the other program has sent none since the start; or empty."""
    received: int = 0
    """Snapshots that came: of those that came too fast only the newest were looked at."""
    accepted: int = 0
    rejected: int = 0


class RuleSource(Protocol):
    """A source of rules. One task at a time waits for it, and loads what it gave before it asks for more."""

    @property
    def kind(self) -> SourceKind:
        """The kind, which its documents have too."""

    @property
    def name(self) -> str:
        """The name for logs and pages: a path, an address."""

    @property
    def noun(self) -> str:
        """The noun for one of its documents in logs, such as `file`."""

    @property
    def connection(self) -> SourceConnection | None:
        """The connection to another program; None if there is none."""

    async def read(self, *, required: bool = False) -> Given:
        """Read what there is now. With `required`, StartError if the source does not exist."""

    async def changed(self) -> Given:
        """Wait for documents that differ from those given last and are whole, or for `refresh`."""

    def loaded(self, version: str, problems: tuple[Problem, ...]) -> None:
        """Take note that the documents of this version are in force, or why they are not."""

    def refresh(self) -> None:
        """Make `changed` give soon what there is, changed or not."""

    def close(self) -> None:
        """Release what it holds, when nothing waits for it any more."""
