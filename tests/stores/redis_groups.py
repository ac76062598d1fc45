"""Several real Redises that know each other: a primary with replicas and sentinels, and a cluster."""

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests import peers
from tests.ports import free_port
from tests.processes import Process, eventually
from tests.redis import Redis, start_redis
from tests.transports.certificates import Issued, authority, issue

_AT_ONCE = ("--repl-diskless-sync-delay", "0")
"""A replica is sent the data when it asks; by default others are waited for, five seconds."""

_CALM, _ALERT = 60_000, 1_500
"""Milliseconds without a word after which others believe that one is dead. Those of a busy machine must not take each
other for dead that only wait for their turn, so they are alert only once one is.

Of a primary that has died, a replica is chosen that had lost it no longer ago than ten times that.
"""


def ask(port: int, *words: str) -> str:
    """What redis-cli is answered on that port."""
    command = [str(peers.redis_cli()), "-p", str(port), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.rstrip("\n")


def have_the_same(primary: Redis, replicas: Sequence[Redis]) -> bool:
    """Whether the replicas have all writes of the primary; `WAIT` only knows the writes of one connection."""
    written = _replication(primary)["master_repl_offset"]
    return all(_replication(replica)["slave_repl_offset"] == written for replica in replicas)


def _replication(redis: Redis) -> Mapping[str, str]:
    lines = redis.cli("INFO", "replication").split()
    return dict(line.split(":", 1) for line in lines if ":" in line)


class _Alertable(ABC):
    """Servers that look after each other."""

    @contextmanager
    def alert(self) -> Iterator[None]:
        """They notice soon that one of them has died, and put another in its place."""
        self._set_patience(_ALERT)
        yield
        self._set_patience(_CALM)

    @abstractmethod
    def _set_patience(self, milliseconds: int) -> None: ...


class Watched(_Alertable):
    """A primary, its replicas, and the sentinels that watch them."""

    def __init__(self, redises: list[Redis], sentinels: list[int], password: str) -> None:
        self.redises = redises
        self.sentinels = sentinels
        self._login = ("-a", password, "--no-auth-warning") if password else ()

    @property
    def url(self) -> str:
        """As REDIS_URL has it."""
        return ",".join(["shop", *(f"127.0.0.1:{port}" for port in self.sentinels)])

    @property
    def primary(self) -> Redis:
        """The one that the first sentinel believes in."""
        port = self.ask(self.sentinels[0], "get-master-addr-by-name", "shop").split("\n")[1]
        return next(redis for redis in self.redises if redis.port == int(port))

    def ask(self, sentinel: int, *words: str) -> str:
        """What the sentinel on that port answers."""
        return ask(sentinel, *self._login, "SENTINEL", *words)

    def _set_patience(self, milliseconds: int) -> None:
        for sentinel in self.sentinels:
            self.ask(sentinel, "SET", "shop", "down-after-milliseconds", str(milliseconds))

    def know_each_other(self) -> bool:
        """All of them know all the others, and the replicas: before that they cannot agree on a failover."""
        expected = {"num-other-sentinels": len(self.sentinels) - 1, "num-slaves": len(self.redises) - 1}
        for sentinel in self.sentinels:
            try:
                words = self.ask(sentinel, "MASTER", "shop").split("\n")
            except subprocess.CalledProcessError:
                return False
            told = dict(zip(words[::2], words[1::2], strict=True))
            if any(int(told[name]) != number for name, number in expected.items()):
                return False
        return True


@contextmanager
def start_sentinels(folder: Path, replicas: int = 2, *, password: str = "") -> Iterator[Watched]:
    """One primary, that many replicas, and three sentinels, which require the password if there is one."""
    with ExitStack() as stack:
        primary = stack.enter_context(start_redis(folder / "0", *_AT_ONCE))
        redises = [primary]
        for number in range(1, replicas + 1):
            replica = start_redis(folder / str(number), *_AT_ONCE, "--replicaof", "127.0.0.1", str(primary.port))
            redises.append(stack.enter_context(replica))
        eventually(
            lambda: primary.cli("INFO", "replication").count("state=online") == replicas, "the replicas are there"
        )
        ports = [free_port() for _ in range(3)]
        sentinels = [stack.enter_context(_sentinel(folder, port, primary.port, password)) for port in ports]
        watched = Watched(redises, ports, password)
        sentinels[-1].wait_until(watched.know_each_other, "the sentinels know each other")
        yield watched


def _sentinel(folder: Path, port: int, primary: int, password: str) -> Process:
    at = folder / f"sentinel{port}"
    at.mkdir()
    (at / "sentinel.conf").write_text(
        f"port {port}\nbind 127.0.0.1\ndir {at}\n"
        f"sentinel monitor shop 127.0.0.1 {primary} 2\n"
        f"sentinel down-after-milliseconds shop {_CALM}\nsentinel failover-timeout shop 3000\n"
        + (f"requirepass {password}\nsentinel sentinel-pass {password}\n" if password else "")
    )
    return Process([str(peers.redis_server()), str(at / "sentinel.conf"), "--sentinel"], at, {})


class Nodes(_Alertable):
    """A cluster."""

    def __init__(self, redises: list[Redis]) -> None:
        self.redises = redises

    @property
    def url(self) -> str:
        """As REDIS_URL has it."""
        return ",".join(f"127.0.0.1:{redis.port}" for redis in self.redises[:2])

    def with_slot(self, slot: int) -> Redis:
        """The primary that has the slot."""
        for line in self.redises[-1].cli("CLUSTER", "NODES").splitlines():
            _, address, flags, *rest = line.split()
            for span in rest[5:]:
                first, _, last = span.partition("-")
                if "master" in flags and first.isdecimal() and int(first) <= slot <= int(last or first):
                    port = int(address.split("@")[0].rpartition(":")[2])
                    return next(redis for redis in self.redises if redis.port == port)
        raise AssertionError(f"no node has slot {slot}")

    def _set_patience(self, milliseconds: int) -> None:
        for redis in self.redises:
            if redis.running:
                redis.cli("CONFIG", "SET", "cluster-node-timeout", str(milliseconds))


class Secured(NamedTuple):
    """Certificates for servers that let in only whom the same authority knows."""

    authority: Issued
    server: Issued
    client: Issued

    @property
    def as_server(self) -> tuple[str, ...]:
        """Options of redis-server."""
        files = ("--tls-cert-file", str(self.server.cert), "--tls-key-file", str(self.server.key))
        return (*files, "--tls-ca-cert-file", str(self.authority.cert), "--tls-cluster", "yes")

    @property
    def as_client(self) -> tuple[str, ...]:
        """Options of redis-cli."""
        cert, key = str(self.client.cert), str(self.client.key)
        return ("--tls", "--cacert", str(self.authority.cert), "--cert", cert, "--key", key)

    @property
    def settings(self) -> dict[str, str]:
        """Those of the service."""
        return {
            "REDIS_TLS_CACERT": str(self.authority.cert),
            "REDIS_TLS_CLIENT_CERT": str(self.client.cert),
            "REDIS_TLS_CLIENT_KEY": str(self.client.key),
        }


def secure(folder: Path, name: str) -> Secured:
    """Certificates for servers of this name, `DNS:…` or `IP:…`."""
    ca = authority(folder)
    return Secured(ca, issue(ca, "redis", name), issue(ca, "limiter"))


class Move:
    """A slot on its way from the node that has it to another one; it begins when this is made."""

    def __init__(self, nodes: Nodes, slot: int, to: Redis | None = None) -> None:
        self.source = nodes.with_slot(slot)
        self.target = to or next(redis for redis in nodes.redises if redis is not self.source)
        self._nodes = nodes
        self._slot = str(slot)
        source, target = (redis.cli("CLUSTER", "MYID") for redis in (self.source, self.target))
        self._target_id = target
        self.target.cli("CLUSTER", "SETSLOT", self._slot, "IMPORTING", source)
        self.source.cli("CLUSTER", "SETSLOT", self._slot, "MIGRATING", target)

    def keys(self) -> list[str]:
        """Those that have not gone."""
        return self.source.cli("CLUSTER", "GETKEYSINSLOT", self._slot, "1000").split()

    def take(self, *keys: str) -> None:
        """Move these, in one step."""
        self.source.cli("MIGRATE", "127.0.0.1", str(self.target.port), "", "0", "5000", "KEYS", *keys)

    def end(self) -> None:
        """Move what is left, and tell all nodes; as redis-cli does it, the one that gets the slot first."""
        while keys := self.keys():
            self.take(*keys)
        for redis in (self.target, self.source, *self._nodes.redises):
            redis.cli("CLUSTER", "SETSLOT", self._slot, "NODE", self._target_id)


@contextmanager
def start_cluster(folder: Path, replicas: int = 0, *more: str, secured: Secured | None = None) -> Iterator[Nodes]:
    """Three primaries, with that many replicas each; with certificates they use TLS only, between nodes too."""
    count = 3 * (1 + replicas)
    with ExitStack() as stack:
        redises = []
        for number in range(count):
            patience = ("--cluster-node-timeout", str(_CALM), "--cluster-replica-validity-factor", "0")
            options = ("--cluster-enabled", "yes", *patience, *_AT_ONCE, *more)
            redises.append(stack.enter_context(_cluster_node(folder / str(number), options, secured)))
        addresses = [f"127.0.0.1:{redis.port}" for redis in redises]
        ask(
            redises[0].port,
            *(secured.as_client if secured else ()),
            *("--cluster", "create", *addresses, "--cluster-replicas", str(replicas), "--cluster-yes"),
        )
        eventually(
            lambda: all("cluster_state:ok" in redis.cli("CLUSTER", "INFO") for redis in redises), "the cluster is well"
        )
        if replicas:
            eventually(
                lambda: all(
                    "master_link_status:up" in redis.cli("INFO", "replication")
                    for redis in redises
                    if "role:slave" in redis.cli("INFO", "replication")
                ),
                "the replicas are there",
            )
        yield Nodes(redises)


@contextmanager
def start_fourth(folder: Path, nodes: Nodes) -> Iterator[Redis]:
    """One more node that has no slots yet."""
    first = nodes.redises[0]
    with _cluster_node(folder, ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000"), None) as node:
        node.cli("CLUSTER", "MEET", "127.0.0.1", str(first.port))
        own = node.cli("CLUSTER", "MYID")
        eventually(
            lambda: (
                all(own in redis.cli("CLUSTER", "NODES") for redis in nodes.redises)
                and "cluster_state:ok" in node.cli("CLUSTER", "INFO")
            ),
            "the node has joined",
        )
        yield node


@contextmanager
def _cluster_node(folder: Path, options: tuple[str, ...], secured: Secured | None) -> Iterator[Redis]:
    """Its bus listens on the port 10,000 higher."""
    port = free_port(besides=10_000)
    if secured:
        options += ("--port", "0", "--tls-port", str(port), *secured.as_server)
    with start_redis(folder, *options, port=port) as redis:
        yield redis
