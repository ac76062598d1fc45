"""The primaries of one Redis for commands that are not in a hurry: redis-py's clients. Hits go by lanes.

redis-py connects (TLS, ACL users, unix sockets), pipelines, scans, and asks sentinels. Of a Cluster each node has a
client of its own, not redis-py's `RedisCluster`. As of 8.1 that one needs the right to `COMMAND`, which the
documented ACL users lack. It fails when a slot moves to a node that has none yet (redis-py issue 4015), and when a
redirection names no host, as with `cluster-preferred-endpoint-type unknown-endpoint`.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import Redis, Sentinel
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import AskError, MovedError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ratelimit_service.errors import StoreError
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import RedisType
from ratelimit_service.stores.redis.faults import Fault, fault_of_exception, fault_of_reply
from ratelimit_service.stores.redis.keys import slot_of
from ratelimit_service.stores.redis.target import Target
from ratelimit_service.system.address import Address, Tcp, Unix

NAME: Final = "ratelimit"
"""The connection's name in CLIENT LIST and ACL LOG."""

_CONNECT_SECONDS: Final = 2.0
"""At most, whatever REDIS_TIMEOUT allows."""

_SENTINEL_SECONDS: Final = 0.5
"""For one sentinel to reply."""

_REPLY_SECONDS: Final = 10.0
_SCAN_COUNT: Final = 1000
"""Keys that one SCAN looks at: it keeps a server from others for less than a millisecond."""

_MOST_REDIRECTIONS: Final = 5

ALLOWED: Final = (
    "~<CACHE_KEY_PREFIX>* +scan +get +pttl +time, to reset +unlink +set, in a Cluster +cluster|slots +asking"
)
"""What an ACL user needs."""

Command = Sequence[str | bytes | int]
Layout = Sequence[tuple[int, int, Address]]
"""First slot, last slot, and the primary that has them."""


class Primaries:
    """Found by `find`; each is connected to with its first command. Raises StoreError."""

    def __init__(self, settings: Settings, target: Target) -> None:
        self._target = target
        self._options: dict[str, Any] = {
            "socket_connect_timeout": min(target.timeout, _CONNECT_SECONDS),
            "socket_timeout": _REPLY_SECONDS,
            "retry": Retry(NoBackoff(), 0),  # who runs the command sees at once what is wrong
            "protocol": 2,  # 3 needs the right to HELLO
            "driver_info": None,  # needs the right to CLIENT SETINFO
            "redis_connect_func": _introduce,
        }
        if target.certificates is not None:
            self._options |= {
                "ssl": True,
                "ssl_ca_certs": settings.redis_tls_cacert or None,
                "ssl_certfile": settings.redis_tls_client_cert or None,
                "ssl_keyfile": settings.redis_tls_client_key or None,
                "ssl_check_hostname": not settings.redis_tls_skip_hostname_verification,
            }
        self._clients: dict[Address, Redis] = {}
        self.layout: Layout = ()
        """Who has which slots, as `find` saw it."""

    async def find(self) -> list[Address]:
        """Where they are now."""
        match self._target.kind:
            case RedisType.CLUSTER:
                self.layout = await self._slots()
            case RedisType.SENTINEL:
                self.layout = [(0, 0, await self._watched())]
            case RedisType.SINGLE:
                self.layout = [(0, 0, self._target.servers.addresses[0])]
        return list(dict.fromkeys(address for _, _, address in self.layout))

    async def owner(self, key: bytes) -> Address:
        """Who has this key."""
        if not self.layout:
            await self.find()
        slot = slot_of(key)
        return next((address for first, last, address in self.layout if first <= slot <= last), self.layout[0][2])

    async def scan(self, address: Address, pattern: str) -> AsyncIterator[list[bytes]]:
        """All keys there that fit, some at a time; one may come more than once."""
        keys: list[bytes] = []
        try:
            async for key in self._client(address).scan_iter(pattern, _SCAN_COUNT, "string"):
                keys.append(key)
                if len(keys) == _SCAN_COUNT:
                    yield keys
                    keys = []
        except RedisError as error:
            raise _failed(address, error) from error
        if keys:
            yield keys

    async def ask(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        """The replies of that primary, in order, to commands sent in one go; redirections are followed."""
        try:
            return [
                await self._follow(address, command, reply) if isinstance(reply, ResponseError) else reply
                for command, reply in zip(commands, await self._send(address, commands), strict=True)
            ]
        except RedisError as error:
            raise _failed(address, error) from error

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()

    def _client(self, address: Address) -> Redis:
        client = self._clients.get(address)
        if client is None:
            target = self._target
            place: dict[str, Any] = (
                {"unix_socket_path": address.path}
                if isinstance(address, Unix)
                else {"host": address.host, "port": address.port}
            )
            client = self._clients[address] = Redis(
                **place,
                **self._options,
                username=target.user or None,
                password=target.password or None,
                db=target.servers.database,
            )
        return client

    async def _send(self, address: Address, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client(address).pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute(raise_on_error=False)

    async def _follow(self, asked: Address, command: Command, error: ResponseError) -> Any:
        """The reply of the node that has the key of a command which `asked` has refused."""
        for _ in range(_MOST_REDIRECTIONS):
            if str(error).startswith("WRONGTYPE"):
                return None
            if not isinstance(error, AskError):  # MovedError is one, too
                raise error
            asked = _node(error.host, error.port, asked)
            asking: list[Command] = [] if isinstance(error, MovedError) else [("ASKING",)]
            *_, reply = await self._send(asked, [*asking, command])
            if not isinstance(reply, ResponseError):
                return reply
            error = reply
        raise error

    async def _slots(self) -> Layout:
        """The primaries of a Cluster, from the first of its nodes that replies."""
        addresses = self._target.servers.addresses
        failure: StoreError | None = None
        for address in random.sample(addresses, len(addresses)):
            try:
                [reply] = await self.ask(address, [("CLUSTER SLOTS",)])
            except StoreError as error:
                failure = error
                continue
            if reply:
                return sorted((first, last, _node(host, port, address)) for first, last, (host, port, *_), *_ in reply)
            failure = StoreError(f"Redis at {address}: {Fault('clusterdown')}")
        assert failure is not None, "a cluster has a node"
        raise failure

    async def _watched(self) -> Address:
        """The primary, from the first of its sentinels that knows it."""
        target = self._target
        login = {"username": target.sentinel_user or None, "password": target.sentinel_password or None}
        options = {**self._options, **login, "socket_timeout": _SENTINEL_SECONDS}
        sentinel = Sentinel(target.servers.addresses, sentinel_kwargs=options)  # type: ignore[no-untyped-call]  # redis-py has no types here
        try:
            try:
                return Tcp(*await sentinel.discover_master(target.servers.master))
            except MasterNotFoundError:
                # It does not say what is wrong with a sentinel. The sentinel does, when it is asked again.
                for client in sentinel.sentinels:
                    await client.sentinel_masters()
                raise
        except RedisError as error:
            fault = _fault_of(error)
            detail = str(fault) if fault.cause in {"noauth", "wrongpass", "tls"} else ""
            raise StoreError(f"Redis at {target.servers.addresses[0]}: {Fault('sentinel', detail)}") from error
        finally:
            for client in sentinel.sentinels:
                await client.aclose()


async def _introduce(connection: AbstractConnection) -> None:
    """Log in, and give the connection its name if the ACL user may."""
    await connection.on_connect()
    await connection.send_command("CLIENT", "SETNAME", NAME)
    with suppress(ResponseError):
        await connection.read_response()


def _node(host: str | bytes | None, port: int, asked: Address) -> Address:
    """A node of a Cluster; one that is told without a host has that of the node which was asked."""
    assert isinstance(asked, Tcp), "a cluster has no unix sockets"
    name = host.decode() if isinstance(host, bytes) else host
    return Tcp(asked.host if name in {None, "", "?"} else name, port)


def _failed(address: Address, error: RedisError) -> StoreError:
    fault = _fault_of(error)
    if fault.cause == "noperm":
        return StoreError(f"Redis at {address}: the ACL user must be allowed: {ALLOWED} ({fault.detail})")
    return StoreError(f"Redis at {address}: {fault}")


def _fault_of(error: RedisError) -> Fault:
    if isinstance(error, ResponseError) or error.status_code is not None:
        # redis-py cuts the code off where it has a class for it.
        return fault_of_reply(ResponseError(f"{error.status_code or ''} {error}".strip()))
    if isinstance(error, MasterNotFoundError):
        return Fault("sentinel")
    if isinstance(error, RedisTimeoutError):
        return Fault("timeout")
    return fault_of_exception(error.__cause__ or error.__context__ or ConnectionResetError())
