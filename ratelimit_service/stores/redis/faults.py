"""The causes of failures of a Redis: each cause has a name for metrics and words for the operator.

No word of a credential ever gets into a fault: what a server says is kept only where it cannot hold one. The log has
two lines for an outage, lost and regained, and a third one for each cause that does not pass by itself.
"""

import logging
import ssl
from time import monotonic, time
from typing import Final, NamedTuple

from ratelimit_service.errors import StoreError
from ratelimit_service.rules.problems import printable
from ratelimit_service.stores.store import LostServer
from ratelimit_service.system.clock import SECOND
from ratelimit_service.telemetry.logs import about, iso_time

log = logging.getLogger(__name__)


class Fault(StoreError):  # noqa: N818  # a cause, which callers see inside a StoreError
    """A failure of a server; `cause` is its name in metrics."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause, detail)
        self.cause = cause
        self.detail = detail

    def __str__(self) -> str:
        words = CAUSES[self.cause].words
        return f"{words} ({self.detail})" if self.detail else words


class Cause(NamedTuple):
    """A cause of failures, in words."""

    words: str
    by_hand: bool = False
    """It does not pass by itself: `words` say what has to be changed."""


CAUSES: Final = {
    "timeout": Cause("no answer in time"),
    "refused": Cause("connection refused"),
    "unreachable": Cause("cannot be reached"),
    "reset": Cause("connection lost"),
    "overload": Cause("too many hits wait for an answer"),
    "readonly": Cause("it is a replica, not the primary"),
    "loading": Cause("it is loading its data"),
    "busy": Cause("it is busy with another script"),
    "clusterdown": Cause("the cluster is down, or does not cover all slots"),
    "moved": Cause("the counter's slot is moving"),
    "oom": Cause("out of memory: raise maxmemory, or make room", by_hand=True),
    "misconf": Cause("it cannot persist and refuses writes: see its log, or stop-writes-on-bgsave-error", by_hand=True),
    "noreplicas": Cause("too few replicas for min-replicas-to-write", by_hand=True),
    "noauth": Cause("it asks for a password: set REDIS_AUTH", by_hand=True),
    "wrongpass": Cause("user or password is wrong: check REDIS_AUTH", by_hand=True),
    "noperm": Cause(
        "the ACL user must be allowed: ~<CACHE_KEY_PREFIX>* +@scripting +@read +@write +time +select +client|setname,"
        " in a Cluster +cluster|slots +asking",
        by_hand=True,
    ),
    "tls": Cause("no TLS connection: check REDIS_TLS and its certificates", by_hand=True),
    "sentinel": Cause("no sentinel knows the primary: check the master's name and the sentinels in REDIS_URL"),
    "maxclients": Cause("it has no room for another connection: raise its maxclients", by_hand=True),
    "protected": Cause("it is in protected mode: give it a password, or see its documentation", by_hand=True),
    "stopping": Cause("the service is stopping"),
    "protocol": Cause("it does not answer as Redis does: check what it is, and what stands between"),
    "error": Cause("it answers with an error"),
}

_BY_CODE: Final = {
    "READONLY": "readonly",
    "LOADING": "loading",
    "MASTERDOWN": "loading",
    "BUSY": "busy",
    "CLUSTERDOWN": "clusterdown",
    "MOVED": "moved",
    "ASK": "moved",
    "TRYAGAIN": "moved",
    "CROSSSLOT": "error",
    "OOM": "oom",
    "MISCONF": "misconf",
    "NOREPLICAS": "noreplicas",
    "NOAUTH": "noauth",
    "WRONGPASS": "wrongpass",
    "NOPERM": "noperm",
    "DENIED": "protected",
}
UNSERVED: Final = "a slot has no node"
"""The detail of a fault that is of a slot alone: the node that replies so is healthy."""

_MAY_HOLD_SECRETS: Final = frozenset({"wrongpass", "noauth"})
_MAX_DETAIL_LENGTH: Final = 200


def code_of(reply: Exception) -> str:
    """The first word of an error reply: `NOSCRIPT`, `MOVED`."""
    return str(reply).partition(" ")[0]


def fault_of_reply(reply: Exception) -> Fault:
    """The fault that an error reply means. An error inside a script may stand behind words of Redis's own."""
    text = str(reply)
    cause = _BY_CODE.get(text.partition(" ")[0])
    if cause is None:
        # Before 7.0: "ERR Error running script (call to f_…): @user_script:12: @user_script: 12: -READONLY You can't …"
        cause = next((cause for code, cause in _BY_CODE.items() if f"-{code} " in text), None)
    if cause is None:
        if text.startswith(("ERR invalid password", "ERR AUTH")):
            return Fault("wrongpass")
        if text.startswith("ERR max number of clients"):
            return Fault("maxclients")
        return Fault("error", one_line(text))
    if text.startswith("CLUSTERDOWN Hash slot not served"):
        return Fault(cause, UNSERVED)
    if cause in _MAY_HOLD_SECRETS or cause == "protected" or not CAUSES[cause].by_hand:
        return Fault(cause)
    return Fault(cause, one_line(text))


def fault_of_exception(error: BaseException) -> Fault:
    """The fault that an exception of a connection, or of an attempt to make one, means."""
    match error:
        case Fault():
            return error
        case TimeoutError():
            return Fault("timeout")
        case ssl.SSLCertVerificationError():
            return Fault("tls", one_line(error.verify_message))
        case ssl.SSLError():
            return Fault("tls", one_line(getattr(error, "reason", None) or str(error)))
        case ConnectionRefusedError():
            return Fault("refused")
        case ConnectionError():
            return Fault("reset")
        case OSError():
            return Fault("unreachable", one_line(error.strerror or str(error)))
        case _:
            return Fault("error", type(error).__name__)


def one_line(text: str) -> str:
    """The text of a server, as one line for the log."""
    return printable(" ".join(text[: 4 * _MAX_DETAIL_LENGTH].split()))[:_MAX_DETAIL_LENGTH]


_MINUTE: Final = 60.0


class Outage:
    """Whether one server is lost, and the log lines about it."""

    def __init__(self, name: str, policy: str, *, at_home: bool = False) -> None:
        self.lost: LostServer | None = None
        """For the operator's page; None while the server decides hits."""
        self.name = name
        self._policy = policy
        self._at_home = at_home
        self._began = 0.0
        self._logged: set[str] = set()
        self._error_logged = -_MINUTE

    def begin(self, fault: Fault, ago: float = 0.0) -> None:
        """The server is lost, since `ago` seconds; or still lost, perhaps for another cause."""
        since = time() - ago if self.lost is None else self.lost.since
        is_new = self.lost is None
        self.lost = LostServer(self.name, fault.cause, str(fault), since, self._policy, self._at_home)
        if is_new:
            self._began = monotonic() - ago
            self._logged = {fault.cause}
            policy = f"meanwhile answering by policy, {self._policy}"
            if self._at_home:
                policy = f"meanwhile answering by policy, {self._policy}, or by floors, what regions share"
            fields = about(
                "store_lost",
                server=self.name,
                cause=fault.cause,
                policy=self._policy,
                since=iso_time(int(since * SECOND), "milliseconds"),
            )
            log.warning("store lost: Redis at %s: %s; %s", self.name, fault, policy, extra=fields)
        elif CAUSES[fault.cause].by_hand and fault.cause not in self._logged:
            self._logged.add(fault.cause)
            fields = about("store_still_lost", server=self.name, cause=fault.cause)
            log.warning("store still lost: Redis at %s: %s", self.name, fault, extra=fields)

    def log_error(self, fault: Fault) -> None:
        """Log the error reply to a single command, at most one a minute: other commands may succeed."""
        now = monotonic()
        if now - self._error_logged > _MINUTE:
            self._error_logged = now
            log.warning("Redis at %s: %s; more of these are logged in a minute", self.name, fault)

    def end(self) -> None:
        """The server decides hits again."""
        if self.lost is not None:
            self.lost = None
            seconds, fields = monotonic() - self._began, about("store_regained", server=self.name)
            log.warning("store regained: Redis at %s, after %.1f s", self.name, seconds, extra=fields)

    def retire(self) -> None:
        """The server is not used any more."""
        if self.lost is not None:
            self.lost = None
            seconds, fields = monotonic() - self._began, about("store_unused", server=self.name)
            log.warning("Redis at %s is not used any more, after %.1f s without it", self.name, seconds, extra=fields)
