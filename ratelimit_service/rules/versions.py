"""The rules that the API keeps: a document for each domain, with its past; and the contract of what keeps them.

Each write makes a version of the domain's document, `7-3f9a2c1b04d5e6f7`: the number counts up, the digest is of all
that the version says. A write names the version that it replaces, and fails if another one has replaced it before. A
deletion is a version too, without a text: it stays for a while, and so does the past, to roll back to.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol

from ratelimit_service.system.clock import DAY

MAX_DOCUMENT_BYTES: Final = 2**20
MAX_DOCUMENTS: Final = 1000
"""Those deleted lately included."""
MAX_ALL_BYTES: Final = 32 * 2**20
"""Of all documents together; compared when one is written, with what is known of the others."""
MAX_VERSIONS: Final = 50
"""Versions of a document that are kept."""
MAX_PAST_BYTES: Final = 4 * 2**20
"""Bytes of them; the newest is kept in any case."""
DELETED_FOR: Final = 30 * DAY
"""Microseconds for which a deletion, and what was before it, are kept."""
MAX_NOTE_LENGTH: Final = 500
"""Characters of `why`, and of `who`."""

_PLACE: Final = "api:"


@dataclass(frozen=True, slots=True)
class RuleVersion:
    """A version of a domain's document."""

    domain: str
    number: int
    kind: str
    """`yaml` or `json`; empty for a deletion."""
    text: str
    at: int
    """Microseconds since the epoch."""
    who: str
    """The name of the token, and the name that the client gave, which it may have made up."""
    address: str
    """Where the change came from."""
    why: str
    replaces: str = ""
    """The version before; empty for the first one."""
    restores: str = ""
    """The version that was rolled back to."""
    version: str = field(init=False, compare=False)
    size: int = field(init=False, compare=False)
    """Bytes of the text."""

    def __post_init__(self) -> None:
        text = self.text.encode(errors="replace")
        digest = blake2b(self._head().encode(errors="replace"), digest_size=8)
        digest.update(text)
        object.__setattr__(self, "size", len(text))
        object.__setattr__(self, "version", f"{self.number}-{digest.hexdigest()}")

    @property
    def deleted(self) -> bool:
        """Whether it is a deletion."""
        return not self.kind

    @property
    def place(self) -> str:
        """The name of the document in messages, where a rule of a file has the file's path."""
        return place_of(self.domain)

    def _head(self) -> str:
        names = ("domain", "number", "kind", "at", "who", "address", "why", "replaces", "restores")
        return json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False)

    def written(self) -> str:
        """It as text, which `read_version` reads: a line of JSON, and the document as it came."""
        return f"{begin_of(self.version)}, {self._head()[1:]}\n{self.text}"


def begin_of(version: str) -> str:
    """The text with which the version begins as it is written; empty for none."""
    return f'{{"version": {json.dumps(version)}' if version else ""


def read_version(written: bytes) -> RuleVersion:
    """The version that was written so. ValueError if it was not."""
    head, line_end, text = written.decode().partition("\n")
    try:
        found = json.loads(head)
        version = found.pop("version")
        made = RuleVersion(text=text, **found)
    except (TypeError, AttributeError, LookupError, RecursionError) as error:
        raise ValueError("it is not a stored version of rules") from error
    if not line_end or made.version != version:
        raise ValueError("it was changed, or cut")
    return made


def place_of(domain: str) -> str:
    """The name of the domain's document."""
    return f"{_PLACE}{domain}"


class RuleStore(Protocol):
    """Keeps the documents. Every method that waits raises StoreError when they cannot be reached."""

    @property
    def name(self) -> str:
        """Where they are, for logs and pages."""

    def start(self, on_change: Callable[[], object]) -> None:
        """Begin to follow what is kept: `known` from now on. `on_change` is called when that is another."""

    @property
    def known(self) -> Mapping[str, RuleVersion] | None:
        """The present versions by domain as they were read last, deletions too; None before the first read."""

    @property
    def trouble(self) -> str:
        """Why they cannot be read now; empty if they can."""

    async def present(self, domain: str) -> RuleVersion | None:
        """The present version of the domain's document, or None if there was none for long."""

    async def put(self, made: RuleVersion) -> None:
        """Make it the present version in place of the one that it replaces. RuleConflictError if that is not present.

        StoreError when there are too many documents.
        """

    async def past(self, domain: str) -> Sequence[RuleVersion]:
        """The versions that are kept, the newest first."""

    async def close(self) -> None:
        """Follow no more."""
