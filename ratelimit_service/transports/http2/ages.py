"""What is to be done about a connection as time passes: decided here, done by the server. No I/O, no clock."""

from enum import Enum, auto

from ratelimit_service.transports.http2.connection import Connection
from ratelimit_service.transports.http2.limits import FAREWELL, FIRST_CALL, LAST_STREAM, LEAST_PROGRESS, STALL
from ratelimit_service.transports.options import GrpcOptions


class Due(Enum):
    """What a connection is due for."""

    PING = auto()
    """It was silent for long: is anybody there?"""
    CUT_SILENT = auto()
    """Nobody is."""
    CUT_STALLED = auto()
    """It does not read what it was sent."""
    CLOSE_SLOW = auto()
    """It does not finish what it began."""
    RETIRE_OLD = auto()
    RETIRE_IDLE = auto()
    RETIRE_SPENT = auto()
    """It runs out of stream numbers."""
    LEAVE = auto()
    """It has had time to hear that it should go: the second GOAWAY, 6.8."""
    CUT_OLD = auto()
    """Its calls have had their grace."""


class Age:
    """What is known of one connection in time; all times are microseconds of a clock that does not go back."""

    __slots__ = (
        "_finished",
        "_heard",
        "_last",
        "_left",
        "_oldest",
        "_options",
        "_pinged",
        "_progress",
        "_stuck",
        "_used",
        "grace",
        "leaving",
    )

    def __init__(self, now: int, oldest: int, options: GrpcOptions) -> None:
        self._oldest = now + oldest if oldest else 0
        self._options = options
        self._heard = self._used = self._progress = now
        self._finished: int | None = None
        """What the client had finished when it was looked at last."""
        self._last = 0
        """Its last stream then."""
        self._pinged: int | None = None
        self.leaving: int | None = None
        """When it was first told to go."""
        self._stuck: int | None = None
        """Since when the socket has taken too little."""
        self._left = 0
        """How many bytes had left then."""
        self.grace = options.max_connection_age_grace
        """How long its calls may take after it was told to go; 0 is for ever."""

    def retire(self, now: int) -> bool:
        """It is told to go; False when it was before."""
        if self.leaving is not None:
            return False
        self.leaving = now
        return True

    def due(self, now: int, connection: Connection, *, heard: bool, left: int | None) -> Due | None:  # noqa: PLR0912 - a list of deadlines
        """What to do now, if anything.

        `heard` is whether anything came since this was asked last; `left` how many bytes have left so far, when the
        socket takes no more at present.
        """
        options = self._options
        if heard:
            self._heard, self._pinged = now, None
        last, finished = connection.peer.last, connection.finished
        if connection.calls.streams or last != self._last:
            self._used, self._last = now, last
        before, self._finished = self._finished, finished
        if (connection.begun and not connection.unfinished) or before not in {None, finished} or left is not None:
            self._progress = now  # while the socket takes no more, nothing is read that the client may have finished
        elif now - self._progress > options.preface_timeout:
            return Due.CLOSE_SLOW
        if left is None:
            self._stuck = None
        elif self._is_stalled(now, left):
            return Due.CUT_STALLED
        if self._pinged is not None:
            if now - self._pinged > options.keepalive_timeout:
                return Due.CUT_SILENT
        elif options.keepalive_time and now - self._heard > options.keepalive_time:
            self._pinged = now
            return Due.PING
        if self.leaving is not None:
            if self.grace and now - self.leaving > self.grace:
                return Due.CUT_OLD
            return Due.LEAVE if now - self.leaving > FAREWELL else None
        if self._oldest and now > self._oldest:
            return Due.RETIRE_OLD
        idle = options.max_connection_idle
        if idle and now - self._used > (idle if last else min(idle, FIRST_CALL)):
            return Due.RETIRE_IDLE
        return Due.RETIRE_SPENT if connection.peer.last > LAST_STREAM else None

    def _is_stalled(self, now: int, left: int) -> bool:
        if self._stuck is None or left >= self._left + LEAST_PROGRESS:
            self._stuck, self._left = now, left
        return now - self._stuck > STALL
