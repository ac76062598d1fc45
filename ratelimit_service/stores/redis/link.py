"""One connection to one server: bytes out, replies in, in order. Hot path.

A small layer of its own on hiredis, the parser that redis-py has too, because a call needs neither a task, a future,
nor a retry: one call after the other cost 33 µs of processor time here, 62 by redis-py's Connection and 116 by its
client, on one and the same machine.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, cast

import hiredis

from ratelimit_service.stores.redis.faults import Fault, fault_of_exception, fault_of_reply
from ratelimit_service.stores.redis.target import Login
from ratelimit_service.system.address import Tcp, Unix

log = logging.getLogger(__name__)

Command = Sequence[str | bytes | int]
OnReply = Callable[[Any], None]
"""Called with what the server answers; an error it answers with comes as `hiredis.ReplyError`."""

MOST_SECONDS: Final = 2.0
"""To connect, whatever REDIS_TIMEOUT allows: when packets vanish, TCP repeats its first one ever more rarely, and a
fresh attempt finds a server that is back sooner than an old one."""

NAME: Final = "ratelimit"
"""What CLIENT LIST and ACL LOG say of our connections."""

_pack: Final[Callable[[Any], bytes]] = hiredis.pack_command


class Link(asyncio.Protocol):
    """A connection that is open; `on_lost` is called once when it is not any more, unless `abort` was called."""

    def __init__(self) -> None:
        self.on_lost: Callable[[Fault], None] | None = None
        self._reader = hiredis.Reader()
        self._replies: deque[OnReply] = deque()
        self._transport: asyncio.Transport | None = None
        self._fault: Fault | None = None
        """Why it is lost."""

    @classmethod
    async def open(cls, login: Login) -> Self:
        """A connection that is let in. Raises Fault."""
        link: Self | None = None
        try:
            async with asyncio.timeout(min(login.timeout, MOST_SECONDS)):
                link = await cls._connect(login)
                for command in login.greeting:
                    await link.ask(*command)
                await link.introduce()
        except BaseException as error:
            if link is not None:
                link.abort()
            if isinstance(error, OSError | TimeoutError | ValueError):  # a host that is no name is a ValueError
                raise fault_of_exception(error) from error
            raise
        return link

    @classmethod
    async def _connect(cls, login: Login) -> Self:
        loop = asyncio.get_running_loop()
        if isinstance(login.address, Unix):
            _, link = await loop.create_unix_connection(cls, login.address.path)
            return link
        host, port = login.address
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        places = dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found)
        return await cls.connect([Tcp(place, port) for place in places], login)

    @classmethod
    async def connect(cls, places: Sequence[Tcp], login: Login) -> Self:
        """A connection to the first of these addresses of one name that takes one; each has its part of the time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(login.timeout, MOST_SECONDS)
        last: Exception | None = None
        for index, place in enumerate(places):
            part = (end - loop.time()) / (len(places) - index)
            try:
                async with asyncio.timeout(part):
                    _, link = await loop.create_connection(
                        cls, place.host, place.port, ssl=login.tls, server_hostname=login.server_name
                    )
                    return link
            except (OSError, TimeoutError) as error:
                last = error
        raise last or OSError(f"{login.address} has no address")

    def call(self, command: Command, on_reply: OnReply) -> None:
        """Send a command; `on_reply` is called when its answer comes, and never when the connection is lost first.

        Raises ValueError when the command cannot be written as bytes.
        """
        assert self._transport is not None, "a link is made by open"
        if self._fault is not None:
            return
        packed = _pack(tuple(command))  # first: a reply that is waited for in vain would be taken for the next one's
        self._replies.append(on_reply)
        self._transport.write(packed)

    def ask(self, *command: str | bytes | int) -> asyncio.Future[Any]:
        """The same, to be awaited. Raises Fault, also when the connection is lost."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._fault is not None:
            answer.set_exception(self._fault)
        else:
            self.call(command, _Answer(answer))
        return answer

    def abort(self) -> None:
        """Close at once and forget what was called."""
        self.on_lost = None
        self._lose(Fault("reset"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        """Bytes came: hand out every reply that is whole."""
        reader, replies = self._reader, self._replies
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                if not replies:
                    if isinstance(reply, hiredis.ReplyError):  # why it is about to hang up
                        self._lose(fault_of_reply(reply))
                        return
                    raise hiredis.ProtocolError("it speaks unasked")  # noqa: TRY301  # as any other bytes that are wrong
                replies.popleft()(reply)
        except hiredis.ProtocolError:
            self._lose(Fault("error", "it does not speak the protocol of Redis"))
        except Exception:
            log.exception("a reply of Redis could not be used")
            self._lose(Fault("error", "a reply that could not be used"))

    async def introduce(self) -> None:
        """Give it a name for CLIENT LIST. A user who may not set one is let in all the same."""
        # Nothing else is written before the answer has come: a server that has no room says so and hangs up, and a
        # second write, which would fail then, would end the connection before that is read.
        try:
            await self.ask("CLIENT", "SETNAME", NAME)
        except Fault as fault:
            if self._fault is not None or fault.cause in _HANGS_UP:
                raise

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._lose(fault_of_exception(error or ConnectionResetError()))

    def _lose(self, fault: Fault) -> None:
        self._fault = self._fault or fault
        on_lost, self.on_lost = self.on_lost, None
        replies, self._replies = self._replies, deque()
        if self._transport is not None:
            self._transport.abort()
        for on_reply in replies:
            if isinstance(on_reply, _Answer):
                on_reply.fail(fault)
        if on_lost is not None:
            on_lost(fault)


class _Answer:
    """Puts a reply where somebody waits for it."""

    def __init__(self, answer: asyncio.Future[Any]) -> None:
        self._answer = answer

    def __call__(self, reply: Any) -> None:
        if self._answer.done():
            return
        if isinstance(reply, hiredis.ReplyError):
            fault = fault_of_reply(reply)
            fault.__cause__ = reply
            self._answer.set_exception(fault)
        else:
            self._answer.set_result(reply)

    def fail(self, fault: Fault) -> None:
        """There will be no reply."""
        if not self._answer.done():
            self._answer.set_exception(fault)


_HANGS_UP: Final = frozenset({"maxclients", "protected"})
"""Causes that a server names unasked."""
