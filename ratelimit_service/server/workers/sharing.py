"""Who gets which connection, and which call: the worker that has the fewest."""

import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_service.api.method import Reply
from ratelimit_service.errors import RpcError, Status
from ratelimit_service.server.workers.post import Post

_NOBODY: Final = RpcError(Status.UNAVAILABLE, "no worker is there to answer")


class Sharing:
    """Gives all that comes to the posts; a connection for which none has room waits here."""

    def __init__(self, posts: Sequence[Post]) -> None:
        self.wake: Callable[[], None] = _nothing
        """Called when a connection may find room that found none before."""
        self._posts = posts
        self._waiting: deque[socket.socket] = deque()

    @property
    def open(self) -> int:
        """Connections of all."""
        return sum(post.load for post in self._posts) + len(self._waiting)

    @property
    def has_room(self) -> bool:
        """A connection would be taken at once."""
        return self._next() is not None

    def hand(self, connection: socket.socket) -> None:
        """Give it to the worker that has the fewest, as soon as there is one."""
        while (post := self._next()) is not None:
            if post.hand(connection):
                return
        self._waiting.append(connection)

    def hand_on(self, post: Post) -> None:
        """Give to others what waits for that one."""
        for connection in post.take_back():
            self.hand(connection)

    def resume(self) -> None:
        """Give what waits, if there is room now."""
        while self._waiting and self.has_room:
            self.hand(self._waiting.popleft())
        self.wake()

    def even_out(self, idle: Post) -> None:
        """Have clients of the others come again, if this one has none and some have more than their part."""
        part = -(-self.open // len(self._posts))
        if idle.load == 0:
            for post in self._posts:
                if post.load > part:
                    post.send("release", post.load - part)

    def call(self, body: bytes, reply: Reply, what: str = "call", *, timeout: int | None = None) -> None:
        """Have the worker that has the fewest of them, or of those the one that spoke last, answer a call of ours."""
        able = [post for post in self._posts if post.open_to_more]
        if able:
            min(able, key=lambda post: (post.calls, -post.heard)).call(body, reply, what, timeout)
        else:
            reply(_NOBODY)

    def close(self) -> None:
        """What waits is lost."""
        while self._waiting:
            self._waiting.popleft().close()

    def _next(self) -> Post | None:
        return min((post for post in self._posts if post.open_to_more), key=lambda post: post.turn, default=None)


def _nothing() -> None:
    """Nobody waits."""
