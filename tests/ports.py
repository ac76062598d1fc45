"""Ports for servers that a test starts."""

import socket


def free_port() -> int:
    """A TCP port that nobody listened on a moment ago: bind it soon."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
