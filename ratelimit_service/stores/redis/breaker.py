"""The circuit breaker of a server: whether it is sent hits. Pure; times are seconds.

A server is judged by the time that callers grant, and never for what takes less than `QUICK`. It is judged only after
the sockets were read: a reply that is unread because this process did not run is not late. An error of one script call
alone is not an event.

======================  =======================  =======================  =======================  ===================
event                   CONNECTING               ANSWERING                SILENT                   LOST
                        no connection yet, or    connected, replies come  connected, and a         no connection, or
                        it was lost just now                              pipeline is overdue      it refuses to decide
======================  =======================  =======================  =======================  ===================
a hit comes             waits, if it is granted  is sent, if it is        waits, if it is granted  is answered by
                        more than the time that  granted more than each   more than the silence    policy
                        has passed since         of the last replies      has lasted
                                                 took
a reply comes           -                        -                        ANSWERING                -
the deadline of a       -                        SILENT, since the        -                        -
request passes, and                              pipeline was sent
its pipeline is
unanswered
1 to 1.5 s without a    -                        SILENT                   another connection is    -
reply                                                                     opened, this one kept
an attempt to connect   ANSWERING                -                        ANSWERING, on the new    ANSWERING
succeeds                                                                  connection
an attempt fails, but   LOST                     -                        -                        -
a paused server may
still come back
an attempt fails        LOST                     -                        LOST                     -
otherwise
the connection is lost  -                        CONNECTING, at once      CONNECTING, at once      -
the same, before it is  -                        LOST, after a pause      LOST, after a pause      -
proven
it refuses to decide    -                        LOST                     LOST                     -
======================  =======================  =======================  =======================  ===================

Pauses between attempts grow within an outage (backoff) and begin short in the next one. A connection is proven, and an
outage is over, by a reply a tenth of a second after it was opened: the probe alone does not show it, where a server
accepts connections and closes them again. One that is proven and lost is replaced at once, so that there are at most
ten a second, and only what was in flight is answered by policy.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from random import random
from typing import Final

QUICK: Final = 0.005
"""Replies within this time are never late, whatever callers grant."""

SILENCE: Final = 1.0
"""Seconds without a reply until another connection is opened. A connection that is kept needs nothing when the server
is back; new ones fill its queue of connections that it has not accepted yet, from which it drops some."""

PROVEN: Final = 0.1
"""A connection that has answered after this time counts, and the backoff begins anew."""

MAX_FAILURES: Final = 5
"""Failures in a row: script calls that a server may refuse to decide, and requests that may be too late."""

FIRST_PAUSE: Final = 0.05
MAX_PAUSE: Final = 2.0


class ServerState(Enum):
    """Whether a server is sent hits."""

    CONNECTING = auto()
    ANSWERING = auto()
    SILENT = auto()
    LOST = auto()


class Backoff:
    """Pauses, each longer than the one before; half of each is random, so that instances do not come at one moment."""

    def __init__(self, chance: Callable[[], float] = random) -> None:
        self._chance = chance
        self._count = 0

    def next(self) -> float:
        """Seconds."""
        longest = min(MAX_PAUSE, FIRST_PAUSE * (1 << min(self._count, 10)))
        self._count += 1
        return longest * (0.5 + self._chance() / 2)

    def reset(self) -> None:
        """Begin with a short pause again."""
        self._count = 0


class Breaker:
    """The state of one server. It has no effects: the lane reads it and acts."""

    def __init__(self, now: float, chance: Callable[[], float] = random) -> None:
        self.state = ServerState.CONNECTING
        self.since = now
        """When the connection was lost, or the overdue pipeline was sent."""
        self.calm = False
        """The server answers, and quickly: `admits` need not be asked."""
        self.backoff = Backoff(chance)
        self.last_reply = now
        self.late_requests = 0
        """Requests that were answered too late, since the last one in time."""
        self._chance = chance
        self._connected = now
        self._flaps = False
        self._patience = SILENCE
        self._failures = 0
        self._took: deque[float] = deque(maxlen=MAX_FAILURES)
        self._min_took = 0.0
        """The least of the last replies' times; 0 if one of them was quick."""
        self._late_since = now
        self._max_granted = 0.0
        """To one of the late requests."""

    def admits(self, granted: float, now: float) -> bool:
        """Whether a hit that comes now is sent or waits; its request is granted that many seconds."""
        match self.state:
            case ServerState.ANSWERING:
                if granted > self._min_took:
                    return True
                self._count_late(granted, now)
                return False
            case ServerState.LOST:
                return False
            case ServerState.CONNECTING | ServerState.SILENT:
                return granted > now - self.since

    def replied(self, now: float, took: float, *, decided: bool, in_time: bool) -> None:
        """A pipeline was answered after `took` seconds: some hits decided or none; in time for some request or none."""
        self.last_reply = now
        self.state = ServerState.ANSWERING
        if decided:
            self._failures = 0
        if took < QUICK:
            self._took.clear()
            self._min_took = 0.0
        else:
            self._took.append(took)
            self._min_took = min(self._took) if len(self._took) == MAX_FAILURES else 0.0
        if in_time or took < max(QUICK, self._max_granted):
            self.late_requests = 0
            self._max_granted = 0.0
        self.calm = not (self._took or self.late_requests or self._failures)

    def overdue(self, sent: float, granted: float, now: float) -> None:
        """The oldest pipeline, sent at `sent`, is unanswered, and the deadline of a request in it has passed."""
        if now - sent < QUICK:
            return
        self._count_late(granted, now)
        self.state = ServerState.SILENT
        self.since = sent
        self._patience = SILENCE * (1 + self._chance() / 2)

    def is_mute(self, now: float) -> bool:
        """It was silent for so long that another connection is worth a try."""
        return self.state is ServerState.SILENT and now - self.since >= self._patience

    def is_late(self, now: float) -> bool:
        """It answers, and for a second no answer was in time."""
        return self.late_requests >= MAX_FAILURES and now - self._late_since >= SILENCE

    @property
    def serves(self) -> bool:
        """It answers in time."""
        return self.state is ServerState.ANSWERING and not self.late_requests

    @property
    def recovered(self) -> bool:
        """It answers in time, and not only for a moment between two short connections."""
        return self.serves and (self.proven or not self._flaps)

    @property
    def proven(self) -> bool:
        """This connection has answered some time after it was opened."""
        return self.last_reply - self._connected >= PROVEN

    def connected(self, now: float) -> None:
        """A connection is open, and the server has decided the probe on it."""
        self.state = ServerState.ANSWERING
        self._connected = self.last_reply = now
        self._took.clear()
        self._min_took = self._max_granted = 0.0
        self._failures = self.late_requests = 0
        self.calm = True

    def refused(self) -> bool:
        """The server refused to decide a script call; returns whether it did so too often."""
        self._failures += 1
        self.calm = False
        return self._failures >= MAX_FAILURES

    def disconnected(self, now: float) -> float:
        """The connection is lost; returns the pause until the next attempt."""
        if not self.proven:
            self._flaps = True
            return self.lose()
        if self.state is not ServerState.SILENT:
            self.since = now
        pause = self.lose()
        self.state = ServerState.CONNECTING
        return pause

    def lose(self) -> float:
        """The server does not decide hits; returns the pause until the next attempt."""
        self.state = ServerState.LOST
        self.calm = False
        if not self.proven:
            return self.backoff.next()
        self._flaps = False
        self._connected = self.last_reply  # the next connection is not proven yet
        self.backoff.reset()
        return 0.0

    def attempt_failed(self) -> None:
        """An attempt to connect failed."""
        self.state = ServerState.LOST
        self.calm = False

    def _count_late(self, granted: float, now: float) -> None:
        if not self.late_requests:
            self._late_since = now
        self.late_requests += 1
        self._max_granted = max(self._max_granted, granted)
        self.calm = False
