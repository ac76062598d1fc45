"""One connection to one server: commands out, replies in, in order. Hot path.

A thin layer on hiredis, the parser that redis-py has too, because a script call needs no task, no future and no retry:
calls that follow each other cost 33 µs of processor time each here, 62 by redis-py's Connection and 116 by its client,
on the same machine.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, Self, TypeVar, cast

import hiredis

from ratelimit_service.stores.redis.faults import Fault, code_of, fault_of_exception, fault_of_reply
from ratelimit_service.stores.redis.target import Login
from ratelimit_service.system.address import Tcp, Unix

log = logging.getLogger(__name__)

_T = TypeVar("_T")

Command = Sequence[str | bytes | int]
OnReply = Callable[[Any], None]
"""Called with the server's reply; an error reply comes as `hiredis.ReplyError`. A Fault that it raises is one of the
connection, which is lost."""

MAX_REPLY: Final = 8 * 1024 * 1024
"""Bytes of one reply that are read. A script's has 100 kB at most, and the map of a Cluster of 1,000 nodes 4 MB."""

MAX_SECONDS: Final = 2.0
"""Seconds to connect, even if REDIS_TIMEOUT allows more: when packets vanish, TCP repeats its first one ever more
rarely, so a new attempt finds a server that is back sooner than an old one."""

NAME: Final = "ratelimit"
"""The name of our connections, in CLIENT LIST and ACL LOG."""

_pack: Final[Callable[[Any], bytes]] = hiredis.pack_command


def noop(*_: object) -> None:
    """A callback that does nothing."""


async def within(seconds: float, reply: Awaitable[_T]) -> _T:
    """The reply. Raises Fault, also when it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await reply
    except TimeoutError as error:
        raise Fault("timeout") from error


class ScriptText(Protocol):
    """A script, and the name that Redis gives it."""

    @property
    def text(self) -> str:
        """Its source."""

    @property
    def sha(self) -> str:
        """Its name."""


async def call_script(
    execute: Callable[..., Awaitable[Any]], script: ScriptText, keys: Sequence[str], arguments: Sequence[str | int]
) -> Any:
    """The reply to a call of the script, by name, or with its text where that is not known yet. Raises Fault."""
    command = (len(keys), *keys, *arguments)
    try:
        return await execute("EVALSHA", script.sha, *command)
    except Fault as fault:
        if not isinstance(fault.__cause__, hiredis.ReplyError) or code_of(fault.__cause__) != "NOSCRIPT":
            raise
    return await execute("EVAL", script.text, *command)


class Link(asyncio.Protocol):
    """An open connection; `on_lost` is called once when it is lost, but not after `abort`."""

    def __init__(self) -> None:
        self.on_lost: Callable[[Fault], None] | None = None
        self._reader = hiredis.Reader()
        self._replies: deque[OnReply] = deque()
        self._transport: asyncio.Transport | None = None
        self._fault: Fault | None = None
        """Why the connection is lost."""
        self._unread = 0
        """Bytes that have come since the read in which a reply was whole."""

    @classmethod
    async def open(cls, login: Login) -> Self:
        """Connect and log in. Raises Fault."""
        link: Self | None = None
        try:
            async with asyncio.timeout(min(login.timeout, MAX_SECONDS)):
                link = await cls._connect(login)
                for command in login.greeting:
                    await link.execute(*command)
                await link.set_client_name()
        except BaseException as error:
            if link is not None:
                link.abort()
            if isinstance(error, OSError | TimeoutError | ValueError):  # a host that is not a name is a ValueError
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
        """Connect to the first of these addresses of one host that accepts; each has its share of the time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(login.timeout, MAX_SECONDS)
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

    def send(self, command: Command, on_reply: OnReply) -> None:
        """Send a command; `on_reply` is called with its reply, and never when the connection is lost before.

        Raises ValueError when the command cannot be written as bytes.
        """
        assert self._transport is not None, "a link is made by open"
        if self._fault is not None:
            return
        packed = _pack(tuple(command))  # before the append: replies are matched by their order alone
        self._replies.append(on_reply)
        self._transport.write(packed)

    def execute(self, *command: str | bytes | int) -> asyncio.Future[Any]:
        """Send a command, and await its reply. Raises Fault, also when the connection is lost."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._fault is not None:
            reply.set_exception(self._fault)
        else:
            self.send(command, _Reply(reply))
        return reply

    def abort(self) -> None:
        """Close at once; the callbacks of commands in flight are not called."""
        self.on_lost = None
        self._lose(Fault("reset"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, as asyncio.Protocol says."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        """Call the callback of each whole reply."""
        reader, replies = self._reader, self._replies
        reader.feed(data)
        self._unread += len(data)
        try:
            while (reply := reader.gets()) is not False:
                self._unread = 0
                if not replies:
                    if isinstance(reply, hiredis.ReplyError):  # why it is about to close the connection
                        self._lose(fault_of_reply(reply))
                        return
                    raise Fault("protocol", "unsolicited reply")  # noqa: TRY301  # as any other bytes that are wrong
                replies.popleft()(reply)
            if self._unread > MAX_REPLY:
                raise Fault("protocol", f"a reply of more than {MAX_REPLY >> 20} MiB")  # noqa: TRY301  # the same
        except hiredis.ProtocolError:
            self._lose(Fault("protocol"))
        except Fault as fault:
            self._lose(fault)
        except Exception:
            log.exception("a reply of Redis could not be used")
            self._lose(Fault("protocol", "a reply that could not be used"))

    async def set_client_name(self) -> None:
        """Name the connection for CLIENT LIST. A user without that permission connects all the same."""
        # Nothing else is written before the reply: a server at its maxclients sends an error and closes; a second write
        # would fail, and end the connection before the error is read.
        try:
            await self.execute("CLIENT", "SETNAME", NAME)
        except Fault as fault:
            if self._fault is not None or fault.cause in _CLOSES:
                raise

    def connection_lost(self, error: Exception | None) -> None:
        """Call `on_lost`, as asyncio.Protocol says."""
        self._lose(fault_of_exception(error or ConnectionResetError()))

    def _lose(self, fault: Fault) -> None:
        self._fault = self._fault or fault
        on_lost, self.on_lost = self.on_lost, None
        replies, self._replies = self._replies, deque()
        if self._transport is not None:
            self._transport.abort()
        for on_reply in replies:
            if isinstance(on_reply, _Reply):
                on_reply.fail(fault)
        if on_lost is not None:
            on_lost(fault)


class _Reply:
    """The callback that completes a future."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def __call__(self, reply: Any) -> None:
        if self._future.done():
            return
        if isinstance(reply, hiredis.ReplyError):
            fault = fault_of_reply(reply)
            fault.__cause__ = reply
            self._future.set_exception(fault)
        else:
            self._future.set_result(reply)

    def fail(self, fault: Fault) -> None:
        """Complete it with an error: there will be no reply."""
        if not self._future.done():
            self._future.set_exception(fault)


_CLOSES: Final = frozenset({"maxclients", "protected"})
"""Causes that a server sends before it closes a connection."""
