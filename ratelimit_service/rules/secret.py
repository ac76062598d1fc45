"""Secret values: a keyed digest is counted, stored and shown in place of each of them.

`hash_values` makes the values of a key secret in its whole domain, wherever an entry with this key stands in a request.
Only matching compares the value itself.
"""

import re
from hashlib import blake2b
from secrets import token_bytes
from typing import Final

from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import Backend

DIGEST: Final = re.compile(r"h-[0-9a-f]{32}")
"""The form of the text in place of a value."""


class Digest(str):
    """A digest that the operator of a running service gives in place of its value. Values of clients are never one."""

    __slots__ = ()


_SIZE: Final = 16
"""Bytes of a digest: among 10^13 values, two have the same one with a probability of 10^-13."""


class HashValue:
    """Makes the digest of a value, with the operator's key: BLAKE2b (RFC 7693) of 16 bytes, in hex after `h-`.

    A key of more than 64 bytes, which BLAKE2b does not take, is replaced by its own BLAKE2b digest. Without a key there
    is a random one: for counters that no other process shares, and for rules that count nothing.

    With `keep_digests`, a digest is returned as it is: for an operator's commands, which take it in place of its value.
    Not for requests: with a digest that stands in a log, a client could then use up the counter of its value.
    """

    __slots__ = ("_keep_digests", "_keyed", "_last", "key_given")

    def __init__(self, key: str, *, keep_digests: bool = False) -> None:
        secret = key.encode() or token_bytes(blake2b.MAX_KEY_SIZE)
        if len(secret) > blake2b.MAX_KEY_SIZE:
            secret = blake2b(secret).digest()
        self.key_given = bool(key)
        self._keyed = blake2b(key=secret, digest_size=_SIZE)
        self._keep_digests = keep_digests
        # A value is matched, and then counted: the second time costs nothing, of 1.3 µs.
        self._last = ("", "")

    def __call__(self, value: str) -> str:
        """The digest."""
        if value.__class__ is Digest:
            return str(value)
        last, digest = self._last
        if value == last and digest:
            return digest
        if self._keep_digests and DIGEST.fullmatch(value):
            return value
        hasher = self._keyed.copy()  # half the time of a new one
        hasher.update(value.encode(errors="surrogatepass"))
        digest = f"h-{hasher.hexdigest()}"
        self._last = value, digest  # in one step: the console explains in a thread of its own
        return digest

    def written(self, text: str) -> str:
        """The digest of what a file has: a value, or its digest."""
        return text if DIGEST.fullmatch(text) else self(text)


class Secrets:
    """The keys of a domain whose values are secret, and the function that makes digests of the values."""

    __slots__ = ("hash_value", "keys")

    def __init__(self, hash_value: HashValue, keys: set[str]) -> None:
        self.hash_value = hash_value
        self.keys = keys
        """Complete when all files are read."""

    def hide(self, entries: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """The entries with digests in place of secret values."""
        keys = self.keys
        if not keys:
            return entries
        # What is an address, as it is counted, stays one.
        hash_value = self.hash_value
        return tuple(
            [(key, value.__class__(hash_value(value))) if key in keys else (key, value) for key, value in entries]
        )

    def exact_name(self, key: str, value: str) -> str:
        """The name in the book of the descriptor with exactly this value, as far as there may be one."""
        if key in self.keys:
            return f"{key}_{self.hash_value(value)}"
        name = f"{key}_{value}"
        # Key `api` with the value `key_h-…` makes the name of a secret value of `api_key` too, and must not match it.
        secret, _, digest = name.rpartition("_")
        return "" if secret in self.keys and DIGEST.fullmatch(digest) else name


NO_SECRETS: Final = Secrets(HashValue(""), set())
"""The secrets of a domain without secret values."""


def hash_value_of(settings: Settings, *, keep_digests: bool = False) -> HashValue | None:
    """The digests of a service with these settings; None if it can make none."""
    key = settings.hash_key.get_secret_value()
    # Without a key, processes that share counters in Redis would not agree on their names.
    return HashValue(key, keep_digests=keep_digests) if key or settings.backend_type is Backend.MEMORY else None
