"""Every exception raised on purpose.

::

    RateLimitError
    ├── SettingsError     a setting is unknown or malformed; `ratelimit` exits 2
    ├── RulesError        the rules files are wrong; carries every problem with its place
    ├── ComparisonError   two books of rules are too different to compare; `ratelimit diff` exits 2
    ├── StartError        something outside is missing: a certificate, a folder; exits 1
    │   └── ListenError   an address cannot be had
    ├── StoreError        the counters cannot be reached; answered by policy
    │   ├── RuleConflictError another version of stored rules is present than the one to be replaced
    │   ├── TooHeavyError a request asks for more in one step than a store does in one; INVALID_ARGUMENT
    │   └── UnreachableError  a command's service gives no answer; exits 3
    ├── BanError          a ban cannot be as it was asked for
    ├── TooLongError      a value is too long for the patterns that it is compared with; its descriptor is denied
    ├── ApiError          a request to the rules API that cannot be done; becomes an HTTP status with problem JSON
    ├── RpcError          a call that cannot be answered; becomes a gRPC status
    └── WireError         a peer breaks HTTP/2 or asks too much; its connection ends with GOAWAY

Denial is not here: it is a value (`Decision.allowed`), not an exception.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class RateLimitError(Exception):
    """Root of the tree."""


class SettingsError(RateLimitError):
    """One or more settings are unknown or malformed; `problems` has a line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class Problem(NamedTuple):
    """One thing wrong with the rules, and where; line and column count from 1, 0 when there is no such place."""

    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        if not self.line:
            return f"{self.path}: {self.message}"
        return f"{self.path}:{self.line}:{self.column}: {self.message}"


class RulesError(RateLimitError):
    """The rules cannot be used; `problems` has all of them, in the order of the files."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class ComparisonError(RateLimitError):
    """Two books of rules are so different that comparing them would take too long."""


class StartError(RateLimitError):
    """The service cannot start or go on listening; the message is the one line the operator needs."""


class ListenError(StartError):
    """An address cannot be listened on."""

    def __init__(self, message: str, address: object) -> None:
        super().__init__(message)
        self.address = address


class StoreError(RateLimitError):
    """The store cannot say whether a hit is allowed."""


class TooHeavyError(StoreError):
    """Hits that must be charged in one step are more than the store does in one; the message names the bound."""


class RuleConflictError(StoreError):
    """Another version of stored rules than the one to be replaced is the present one."""


class UnreachableError(StoreError):
    """The service that a command asks cannot be reached, or is of another kind; the message says which."""


class BanError(RateLimitError):
    """A ban cannot be made, or read; the message says why."""


class TooLongError(RateLimitError):
    """A value is too long for the patterns that it is compared with; `setting` is what bounds it."""

    def __init__(self, message: str, setting: str) -> None:
        super().__init__(f"{message} ({setting})")


class Status(IntEnum):
    """The gRPC status codes this service answers with."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class RpcError(RateLimitError):
    """A call ends with a status other than OK."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ApiError(RateLimitError):
    """A request to the rules API cannot be done: the HTTP status, and fields of the problem besides the message."""

    def __init__(self, status: int, message: str, **fields: object) -> None:
        super().__init__(message)
        self.status = status
        self.fields = fields


class WireError(RateLimitError):
    """A connection must end, with this code of RFC 9113, section 7; `bound` names the limit that it ran into."""

    def __init__(self, code: int, message: str, bound: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.bound = bound
        self.message = message
