"""Whether a server is asked: the states of a lane, and what each event makes of them. Pure; times are seconds.

A server is judged by what callers granted, and never for anything that takes less than `QUICK`. Judged is only when the
sockets have been read: what comes late because this process was not running is not late. An order's own error is no
event at all.

======================  =======================  =======================  =======================  ===================
event                   SEEKING                  ANSWERING                SILENT                   LOST
                        no connection yet, or    connected, replies come  connected, and a call    not there, or it
                        it was lost just now                              is overdue               will not do
======================  =======================  =======================  =======================  ===================
a hit comes             waits, if it grants      is sent, if it grants    waits, if it grants      is answered by
                        more than has passed     more than each of the    more than the silence    policy
                        since                    last answers took        has lasted
a reply comes           -                        -                        ANSWERING                -
the time of a request   -                        SILENT, since the call   -                        -
is over, and its call                            was sent
unanswered
1 s, and by chance 0.5  -                        SILENT                   another connection is    -
more, without a reply                                                     sought, this one kept
an attempt succeeds     ANSWERING                -                        ANSWERING, on the new    ANSWERING
                                                                          connection
an attempt fails, and   LOST                     -                        -                        -
nothing has answered
an attempt fails        LOST                     -                        LOST                     -
otherwise
the connection is lost  -                        SEEKING, at once         SEEKING, at once         -
the same, less than     -                        LOST, after a pause      LOST, after a pause      -
1 s after it was found
it refuses to decide    -                        LOST                     LOST                     -
======================  =======================  =======================  =======================  ===================

Pauses between attempts grow within an outage and begin short in the next one. An outage is over when a connection has
answered for a second: what a probe finds is not enough where a server lets in and hangs up.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from random import random
from typing import Final

QUICK: Final = 0.005
"""What takes less is never late, whatever callers grant."""

SILENCE: Final = 1.0
"""Without a reply, until another connection is sought. A connection that is kept needs nothing when the server is back;
new ones fill the queue of connections that it has not accepted yet, from which it drops some."""

PROVEN: Final = 1.0
"""After which a connection counts, and the pauses begin short again."""

MOST_FAILURES: Final = 5
"""Times that a server may refuse to decide, or requests that may be too late, one after the other."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0


class State(Enum):
    """Of a lane."""

    SEEKING = auto()
    ANSWERING = auto()
    SILENT = auto()
    LOST = auto()


class Pauses:
    """Each longer than the one before, and half of it by chance: a hundred instances do not come at one moment."""

    def __init__(self, chance: Callable[[], float] = random) -> None:
        self._chance = chance
        self._count = 0

    def next(self) -> float:
        """Seconds."""
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(self._count, 10)))
        self._count += 1
        return longest * (0.5 + self._chance() / 2)

    def reset(self) -> None:
        """The next one is short."""
        self._count = 0


class Breaker:
    """The state of one lane; it does nothing by itself."""

    def __init__(self, now: float, chance: Callable[[], float] = random) -> None:
        self.state = State.SEEKING
        self.since = now
        """When the connection was lost, or the call was sent that is overdue."""
        self.calm = False
        """The server answers, and quickly: nothing has to be asked here."""
        self.pauses = Pauses(chance)
        self.heard = now
        """When it answered last."""
        self.unserved = 0
        """Requests that were too late since one was in time."""
        self._chance = chance
        self._found = now
        self._flaps = False
        self._patience = SILENCE
        self._failures = 0
        self._took: deque[float] = deque(maxlen=MOST_FAILURES)
        self._pace = 0.0
        """What each of the last answers took at the least; 0 if one of them was quick."""
        self._unserved_since = now
        self._needed = 0.0
        """The most that one of them had granted."""

    def admits(self, granted: float, now: float) -> bool:
        """A hit that comes now, of a request that is granted so much, is sent or waits."""
        match self.state:
            case State.ANSWERING:
                if granted > self._pace:
                    return True
                self._count_unserved(granted, now)
                return False
            case State.LOST:
                return False
            case State.SEEKING | State.SILENT:
                return granted > now - self.since

    def replied(self, now: float, took: float, *, decided: bool, in_time: bool) -> None:
        """A call is answered that took so long: hits were decided or not, and some request waited for that or not."""
        self.heard = now
        self.state = State.ANSWERING
        if decided:
            self._failures = 0
        if took < QUICK:
            self._took.clear()
            self._pace = 0.0
        else:
            self._took.append(took)
            self._pace = min(self._took) if len(self._took) == MOST_FAILURES else 0.0
        if in_time or took < max(QUICK, self._needed):
            self.unserved = 0
            self._needed = 0.0
        self.calm = not (self._took or self.unserved or self._failures)

    def overdue(self, sent: float, granted: float, now: float) -> None:
        """The call that was sent then, the oldest, is unanswered, and a request in it was granted no more."""
        if now - sent < QUICK:
            return
        self._count_unserved(granted, now)
        self.state = State.SILENT
        self.since = sent
        self._patience = SILENCE * (1 + self._chance() / 2)

    def is_mute(self, now: float) -> bool:
        """It has been silent for so long that another connection is worth trying."""
        return self.state is State.SILENT and now - self.since >= self._patience

    def is_late(self, now: float) -> bool:
        """It answers, and for a second none of its answers was in time."""
        return self.unserved >= MOST_FAILURES and now - self._unserved_since >= SILENCE

    @property
    def serves(self) -> bool:
        """It answers in time."""
        return self.state is State.ANSWERING and not self.unserved

    @property
    def recovered(self) -> bool:
        """The same, and not only for a moment between two connections that last no longer."""
        return self.serves and (self._proven or not self._flaps)

    def found(self, now: float) -> None:
        """There is a connection, and the server has decided a hit on it."""
        self.state = State.ANSWERING
        self._found = self.heard = now
        self._took.clear()
        self._pace = self._needed = 0.0
        self._failures = self.unserved = 0
        self.calm = True

    def fail(self) -> bool:
        """The server has refused to decide; says whether that was once too often."""
        self._failures += 1
        self.calm = False
        return self._failures >= MOST_FAILURES

    def hung_up(self, now: float) -> float:
        """The connection is lost; says after which pause to seek another."""
        if not self._proven:
            self._flaps = True
            return self.lose()
        if self.state is not State.SILENT:
            self.since = now
        pause = self.lose()
        self.state = State.SEEKING
        return pause

    def lose(self) -> float:
        """It is of no use to ask; says after which pause to seek it."""
        self.state = State.LOST
        self.calm = False
        if not self._proven:
            return self.pauses.next()
        self._flaps = False
        self._found = self.heard  # the next connection has yet to prove itself
        self.pauses.reset()
        return 0.0

    def missed(self) -> None:
        """An attempt has failed."""
        self.state = State.LOST
        self.calm = False

    @property
    def _proven(self) -> bool:
        """This connection has answered for some time."""
        return self.heard - self._found >= PROVEN

    def _count_unserved(self, granted: float, now: float) -> None:
        if not self.unserved:
            self._unserved_since = now
        self.unserved += 1
        self._needed = max(self._needed, granted)
        self.calm = False
