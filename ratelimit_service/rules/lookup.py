"""`lookup`: an entry becomes another one before it is matched, by a data file: a key its tier, a user their plan.

So a hundred thousand keys are lines of a file, and not descriptors. Only the match sees the other entry: the counter is
that of the entry that came.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

from ratelimit_service.rules.problems import Place
from ratelimit_service.rules.rule import Entries
from ratelimit_service.rules.secret import HashValue


class Lookup(NamedTuple):
    """One lookup of a domain: entries with its `key` get the key `becomes`, and the name of their value."""

    key: str
    becomes: str
    names: Mapping[str, str]
    """By value; by its digest if the values are secret."""
    otherwise: str | None
    """The name of all other values; None if their entries stay as they are."""
    path: str
    """Of the data file."""
    place: Place
    hash_value: HashValue | None = None
    """Makes the digests, if the values are secret."""

    def entry(self, value: str) -> tuple[str, str] | None:
        """The entry that one with this value becomes; None if it stays as it is."""
        name = self.listed(value) or self.otherwise
        return None if name is None else (self.becomes, name)

    def listed(self, value: str) -> str | None:
        """The name that the file has for this value."""
        return self.names.get(value if self.hash_value is None else self.hash_value(value))

    def hashed(self, hash_value: HashValue) -> Self:
        """The same lookup of secret values; the file has values, or their digests."""
        # By digests alone: a client that knows a digest must not have what the value has.
        names = {hash_value.written(value): name for value, name in self.names.items()}
        return self._replace(names=names, hash_value=hash_value)


def looked_up(lookups: Mapping[str, Lookup], entries: Entries) -> Entries:
    """The entries as they are matched; those that no lookup changes are the same objects."""
    return tuple(
        [(lookup.entry(entry[1]) or entry) if (lookup := lookups.get(entry[0])) else entry for entry in entries]
    )
