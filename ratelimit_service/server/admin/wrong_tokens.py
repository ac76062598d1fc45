"""A limit on the wrong tokens of a client: a token bucket for each address, by the service's own algorithm and store.

While the bucket of an address is empty, its tokens are refused unseen, the right one too: otherwise trying would go on.
But who shares an address must not lock out the operator behind it for as long as he tries. So addresses from which the
right token came are known, and from those, and from this machine itself, the right one is always accepted.
"""

from typing import Final

from ratelimit_service.algorithms import open_algorithm
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.address import by_prefix
from ratelimit_service.rules.rule import Rule
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.system.clock import MINUTE, SECOND, Clock
from ratelimit_service.telemetry.tally import Tally

WRONG_A_MINUTE: Final = 10
"""Wrong tokens a minute of one address, and as many at once: a person mistypes less often, and a program gains nothing
by more."""

MAX_ADDRESSES: Final = 1000
"""The addresses with a bucket of their own; the least recently used is forgotten. 250 bytes each."""

MAX_TRUSTED: Final = 100
"""Addresses from which the right token came."""

_LIMIT: Final = Limit(WRONG_A_MINUTE, Unit.MINUTE, MINUTE, count_refused=False)  # a flood does not make the wait longer
_RULE: Final = Rule("tokens", (), _LIMIT, open_algorithm("token_bucket"))


class WrongTokens:
    """Counts wrong tokens by address; those of an IPv6 network of 64 bits are one."""

    def __init__(self, clock: Clock) -> None:
        self._buckets = MemoryStore(MAX_ADDRESSES, clock)
        self._trusted: dict[str, None] = {}
        """In the order in which the right token came last."""
        self._address = by_prefix(32, 64)

    def check(self, remote: str, *, right: bool, local: bool) -> int:
        """0: whether the token is right may be said. Else seconds after which this address may try again.

        A client of this machine is `local`.
        """
        address = self._address(remote)
        if right and (local or address in self._trusted):
            self._trust(address)
            return 0
        hit = Hit(_RULE, address, 1, tally=Tally(), quota=False)
        self._buckets.charge([hit])
        if not hit.decision.allowed:
            return -(-hit.decision.retry_after // SECOND)
        if right:
            hit.cost = -1
            self._buckets.charge([hit])
            self._trust(address)
        return 0

    def _trust(self, address: str) -> None:
        self._trusted.pop(address, None)
        self._trusted[address] = None
        if len(self._trusted) > MAX_TRUSTED:
            del self._trusted[next(iter(self._trusted))]
