"""REDIS_URL and REDIS_AUTH, in envoyproxy's syntax. No error message contains what may be a password.

::

    single      localhost:6379   /run/redis.sock   redis://user:password@host:6379/1   rediss://…   unix:///run/redis.sock
    sentinel    mymaster,sentinel1:26379,sentinel2:26379
    cluster     node1:6379,node2:6379
"""

from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote

from ratelimit_service.settings.fields import RedisType
from ratelimit_service.system.address import Address, Tcp, Unix

DEFAULT_URL: Final = "localhost:6379"


@dataclass(frozen=True, slots=True)
class Servers:
    """The addresses of a REDIS_URL: the server, the sentinels, or some nodes of the cluster."""

    addresses: tuple[Address, ...]
    master: str = ""
    """The name of the primary that the sentinels monitor."""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    database: int = 0
    tls: bool = False


def read_servers(text: str, kind: RedisType, socket_type: str) -> Servers:
    """The servers of a REDIS_URL. With an empty `socket_type`, the form of the text decides."""
    text = text.strip() or DEFAULT_URL
    match kind:
        case RedisType.SENTINEL:
            master, *sentinels = (part.strip() for part in text.split(","))
            if not sentinels or not master or set(master) & set(":@"):
                raise ValueError("is not a master's name and its sentinels such as mymaster,host:26379,host:26379")
            return Servers(tuple(_tcp(sentinel) for sentinel in sentinels), master)
        case RedisType.CLUSTER:
            nodes = [_read_url(part.strip()) for part in text.split(",")]
            first = nodes[0]
            if any(isinstance(address, Unix) for node in nodes for address in node.addresses) or first.database:
                raise ValueError("is not a list of cluster nodes such as host:6379,host:6379")
            addresses = tuple(address for node in nodes for address in node.addresses)
            return Servers(addresses, "", first.user, first.password, 0, first.tls)
        case _:
            if socket_type == "unix" and "://" not in text:
                return _read_path(text)
            return _read_url(text)


def read_auth(text: str) -> tuple[str, str]:
    """User and password of `password` or `user:password`."""
    user, colon, password = text.partition(":")
    return (user, password) if colon else ("", user)


def masked(text: str) -> str:
    """The text with stars in place of what may be a password: before an `@`, and in a query."""
    before, at, place = text.rpartition("@")
    scheme, slashes, _ = before.partition("://")
    start = f"{scheme}{slashes}***@" if slashes else "***@" if at else ""
    place, question, _ = place.partition("?")
    if "?" in before:  # the @ may be part of a login or of a query
        return f"{start}***"
    return f"{start}{place}?***" if question else start + place


def _read_url(text: str) -> Servers:
    scheme, slashes, rest = text.partition("://")
    if not slashes:
        if text.startswith("/"):
            return _read_path(text)
        return Servers((_tcp(text),))
    if scheme == "unix":
        login, _, path = rest.rpartition("@")
        return _with_login(_read_path(path), login)
    if scheme not in {"redis", "rediss"}:
        raise ValueError("is not a URL such as redis://, rediss:// or unix://")
    login, _, place = rest.rpartition("@")
    place, _, query = place.partition("?")
    host, _, database = place.partition("/")
    if query or (database and not database.isdecimal()):
        raise ValueError("is not a URL such as redis://user:password@host:6379/1")
    return _with_login(Servers((_tcp(host),), database=int(database or 0), tls=scheme == "rediss"), login)


def _with_login(servers: Servers, login: str) -> Servers:
    """The servers with the user and password of `login`, which stands before the `@` of a URL."""
    user, _, password = (unquote(part) for part in login.partition(":"))
    return replace(servers, user=user, password=password) if password else replace(servers, password=user)


def _read_path(path: str) -> Servers:
    # Paths are logged, so a text that may contain a password is not taken for one.
    if not path or "?" in path or "@" in path[1:]:
        raise ValueError("is not the path of a socket such as /run/redis.sock; the password stands in REDIS_AUTH")
    return Servers((Unix(path),))


def _tcp(text: str) -> Tcp:
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = text, "6379"
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or set(host) & set("/@ ,"):
        raise ValueError("is not an address such as host:6379")
    return Tcp(host, int(port))
