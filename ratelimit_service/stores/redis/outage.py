"""What the operator is told of an outage: two lines, lost and regained.

A third one only when it turns out that it will not pass by itself, once for each such cause.
"""

import logging
from time import monotonic, time
from typing import Final

from ratelimit_service.stores.redis.faults import CAUSES, Fault
from ratelimit_service.stores.store import Lost

log = logging.getLogger(__name__)

_MINUTE: Final = 60.0


class Outage:
    """That of one server, and what has been said about it."""

    def __init__(self, name: str, policy: str) -> None:
        self.lost: Lost | None = None
        """The same for the operator's page; None while all is well."""
        self._name = name
        self._policy = policy
        self._began = 0.0
        self._told: set[str] = set()
        self._complained = -_MINUTE

    def begin(self, fault: Fault, ago: float = 0.0) -> None:
        """The server is lost, since so many seconds; or not yet regained."""
        since = time() - ago if self.lost is None else self.lost.since
        news = self.lost is None
        self.lost = Lost(self._name, fault.cause, str(fault), since, self._policy)
        if news:
            self._began = monotonic() - ago
            self._told = {fault.cause}
            policy = f"meanwhile answering by policy, {self._policy}"
            log.warning("store lost: Redis at %s: %s; %s", self._name, fault, policy)
        elif CAUSES[fault.cause].by_hand and fault.cause not in self._told:
            self._told.add(fault.cause)
            log.warning("store still lost: Redis at %s: %s", self._name, fault)

    def complain(self, fault: Fault) -> None:
        """It has answered a command with an error, which says nothing of other commands."""
        now = monotonic()
        if now - self._complained > _MINUTE:
            self._complained = now
            log.warning("Redis at %s: %s; more of these are logged in a minute", self._name, fault)

    def end(self) -> None:
        """It is there."""
        if self.lost is not None:
            self.lost = None
            log.warning("store regained: Redis at %s, after %.1f s", self._name, monotonic() - self._began)
