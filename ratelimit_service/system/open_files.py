"""The limit of open files (RLIMIT_NOFILE): raised as far as the system allows, and what it leaves for connections."""

import resource
from contextlib import suppress
from typing import Final

_OTHER_FILES: Final = 100
"""Files of a process besides its clients' connections: listening sockets, Redis, rules."""


def raise_file_limit(grpc: int, http: int) -> str:
    """Raise the limit for this process, and those it starts; returns why it does not suffice, or nothing.

    `grpc` and `http` are the connections that there may be.
    """
    # Shells and containers often begin with 1,024, for programs that use select(2); this one does not.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS allows less than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    needed = grpc + http + _OTHER_FILES
    if most == resource.RLIM_INFINITY or needed <= most:
        return ""
    return f"{grpc} gRPC and {http} HTTP connections take {needed} files, the process may have {most}: raise ulimit -Hn"


def within_file_limit(connections: int) -> int:
    """As many HTTP connections as given, or fewer if a quarter of the files that may be open is not enough."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections if files == resource.RLIM_INFINITY else max(1, min(connections, files // 4))
