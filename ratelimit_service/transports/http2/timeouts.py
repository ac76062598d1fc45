"""Timeouts: of a connection, decided here and carried out by the server; and of calls, on a timer wheel. No I/O.

All times are microseconds of a clock that does not go back.
"""

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, Protocol

from ratelimit_service.system.clock import SECOND
from ratelimit_service.transports.http2.connection import Connection
from ratelimit_service.transports.http2.limits import FIRST_CALL, GOAWAY_NOTICE, LAST_STREAM, MIN_PROGRESS, STALL
from ratelimit_service.transports.options import GrpcOptions


class Due(Enum):
    """The actions that are due on a connection."""

    PING = auto()
    """Nothing came for long: send a keepalive PING."""
    ABORT_SILENT = auto()
    """The keepalive PING was not answered."""
    ABORT_STALLED = auto()
    """The client does not read."""
    CLOSE_SLOW = auto()
    """The client does not finish what it began: the preface, a frame, a header block."""
    RETIRE_OLD = auto()
    RETIRE_IDLE = auto()
    RETIRE_SPENT = auto()
    """Stream numbers run out."""
    LEAVE = auto()
    """The client had time to read the first GOAWAY: send the second (6.8)."""
    ABORT_OLD = auto()
    """The grace period of a retired connection is over."""


class ConnectionTimeouts:
    """The timeouts of one connection.

    A connection is active, then retired (the first GOAWAY was sent), and never active again. Each `due` returns the
    first of these that holds:

    | what holds                                      | for longer than        | then          |
    | ----------------------------------------------- | ---------------------- | ------------- |
    | something unfinished, and no frame was finished | preface_timeout        | CLOSE_SLOW    |
    | the socket accepts no more, and little has left | STALL                  | ABORT_STALLED |
    | a keepalive PING is not answered                | keepalive_timeout      | ABORT_SILENT  |
    | nothing came                                    | keepalive_time         | PING          |
    | retired                                         | grace                  | ABORT_OLD     |
    | retired                                         | GOAWAY_NOTICE          | LEAVE         |
    | active                                          | `oldest`               | RETIRE_OLD    |
    | active, without a call                          | max_connection_idle    | RETIRE_IDLE   |
    | active, and there never was a call              | FIRST_CALL, if shorter | RETIRE_IDLE   |
    | active, with stream numbers over LAST_STREAM    |                        | RETIRE_SPENT  |
    """

    __slots__ = (
        *("_last_data", "_finished", "_last_stream", "_left", "_oldest", "_options", "_pinged", "_progress"),
        *("_stalled_since", "_used", "grace", "retired_at"),
    )

    def __init__(self, now: int, oldest: int, options: GrpcOptions) -> None:
        self._oldest = now + oldest if oldest else 0
        self._options = options
        self._last_data = self._used = self._progress = now
        self._finished: int | None = None
        """How many frames the client had finished at the last `due`."""
        self._last_stream = 0
        """Its last stream then."""
        self._pinged: int | None = None
        self.retired_at: int | None = None
        self._stalled_since: int | None = None
        """Since when the socket has accepted less than MIN_PROGRESS."""
        self._left = 0
        """How many bytes had left then."""
        self.grace = options.max_connection_age_grace
        """How long its calls may take once it is retired; 0 is for ever."""

    def retire(self, now: int) -> bool:
        """Begin the grace period; False if it has begun before."""
        if self.retired_at is not None:
            return False
        self.retired_at = now
        return True

    def due(self, now: int, connection: Connection, *, data_came: bool, left: int | None) -> Due | None:  # noqa: PLR0912 - a list of timeouts
        """The action that is due now, if any.

        `data_came`: since the last `due`; `left`: how many bytes have left so far if the socket accepts no more now.
        """
        options = self._options
        if data_came:
            self._last_data, self._pinged = now, None
        last, finished = connection.last_stream, connection.frames_finished
        if connection.streams.active or last != self._last_stream:
            self._used, self._last_stream = now, last
        before, self._finished = self._finished, finished
        if not connection.unfinished or before not in {None, finished} or left is not None:
            self._progress = now  # while the socket accepts no more, we do not read what may finish it
        elif now - self._progress > options.preface_timeout:
            return Due.CLOSE_SLOW
        if left is None:
            self._stalled_since = None
        elif self._is_stalled(now, left):
            return Due.ABORT_STALLED
        if self._pinged is not None:
            if now - self._pinged > options.keepalive_timeout:
                return Due.ABORT_SILENT
        elif options.keepalive_time and now - self._last_data > options.keepalive_time:
            self._pinged = now
            return Due.PING
        if self.retired_at is not None:
            if self.grace and now - self.retired_at > self.grace:
                return Due.ABORT_OLD
            return Due.LEAVE if now - self.retired_at > GOAWAY_NOTICE else None
        if self._oldest and now > self._oldest:
            return Due.RETIRE_OLD
        idle = options.max_connection_idle
        if idle and now - self._used > (idle if last else min(idle, FIRST_CALL)):
            return Due.RETIRE_IDLE
        return Due.RETIRE_SPENT if last > LAST_STREAM else None

    def _is_stalled(self, now: int, left: int) -> bool:
        if self._stalled_since is None or left >= self._left + MIN_PROGRESS:
            self._stalled_since, self._left = now, left
        return now - self._stalled_since > STALL


GRAIN: Final = SECOND // 100
"""Microseconds of a bucket: a call may end so much later than its deadline."""

HORIZON: Final = SECOND
"""Microseconds: no entry of a call that is answered is kept longer, whatever its deadline was."""


class Timed(Protocol):
    """The calls of one connection."""

    @property
    def timed(self) -> dict[int, int]:
        """The deadline of each call that has one and is not answered, by number."""

    def expire(self, number: int) -> None:
        """End a call: its deadline has passed."""


class Deadlines:
    """The deadlines of all calls that are not answered at once: a timer wheel.

    Calls are in buckets of GRAIN by when they must be looked at: at their deadline, or after HORIZON if that is sooner.
    Almost all are answered before; their entries stay until then, so that an answer costs one entry of `timed` only.
    """

    __slots__ = ("_bucket", "_buckets", "_when")

    def __init__(self) -> None:
        self._buckets: dict[int, list[tuple[Timed, int]]] = {}
        self._when = -1
        """The deadline that was added last: calls of one read share it, almost always."""
        self._bucket: list[tuple[Timed, int]] = []
        """The bucket of that deadline."""

    def __bool__(self) -> bool:
        return bool(self._buckets)

    def add(self, calls: Timed, number: int, when: int, now: int) -> None:
        """Add a call, once."""
        calls.timed[number] = when
        if when != self._when:
            self._when, self._bucket = when, self._bucket_of(when, now)
        self._bucket.append((calls, number))

    def _bucket_of(self, when: int, now: int) -> list[tuple[Timed, int]]:
        return self._buckets.setdefault(-(-min(when, now + HORIZON) // GRAIN), [])

    def take_expired(self, now: int) -> Iterator[tuple[Timed, int]]:
        """Yield each call whose deadline has passed, once. Calls may be added meanwhile."""
        for bucket in sorted(each for each in self._buckets if each <= now // GRAIN):
            self._when = -1
            for calls, number in self._buckets.pop(bucket):
                when = calls.timed.get(number)
                if when is None:
                    continue
                if when > now:
                    self._bucket_of(when, now).append((calls, number))
                else:
                    del calls.timed[number]
                    yield calls, number
