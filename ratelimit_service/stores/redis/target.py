"""The addresses, logins and certificates of a Redis, read from the settings."""

import logging
import ssl
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ratelimit_service.errors import StartError
from ratelimit_service.rules.rule import ALONE, Rule
from ratelimit_service.settings import RedisSettings, Settings
from ratelimit_service.settings.fields import RedisType
from ratelimit_service.settings.redis_url import Servers, read_auth, read_servers
from ratelimit_service.system.address import Address, Tcp
from ratelimit_service.system.clock import SECOND
from ratelimit_service.system.disk import Change, ReloadedFiles, read_file

log = logging.getLogger(__name__)


class RedisCertificates:
    """The certificates of the settings. StartError from the constructor when they cannot be used.

    A renewed CA or client certificate is used from the next connection on; a broken one is logged once, and the old one
    stays in use.
    """

    def __init__(self, settings: Settings) -> None:
        self._ca = settings.redis_tls_cacert
        self._cert = settings.redis_tls_client_cert
        self._key = settings.redis_tls_client_key
        self._check_hostname = not settings.redis_tls_skip_hostname_verification
        try:
            self._files = ReloadedFiles(self._read, self._load)
        except OSError as error:  # ssl.SSLError is one
            raise StartError(
                "cannot use the certificates of REDIS_TLS_CACERT, REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY:"
                f" {error}"
            ) from error

    def current(self) -> ssl.SSLContext:
        """The SSL context for a new connection; never raises."""
        match self._files.refresh():
            case Change.LOADED:
                log.info("certificates for Redis reloaded")
            case Change.RESTORED:
                log.info("the certificate files for Redis match the certificates in use again")
            case Change.REFUSED:
                log.error("certificates for Redis not loaded, the old ones stay: %s", self._files.problem)
        return self._files.loaded

    def _read(self) -> list[bytes]:
        return [read_file(path) for path in (self._ca, self._cert, self._key) if path]

    def _load(self, _: list[bytes]) -> ssl.SSLContext:
        """As envoyproxy/ratelimit: the CA is added to the system's, and the name may be left unchecked."""
        context = ssl.create_default_context()
        if self._ca:
            context.load_verify_locations(self._ca)
        if self._cert:
            # The empty password keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(self._cert, self._key or None, password="")
        context.check_hostname = self._check_hostname
        return context


@dataclass(frozen=True, slots=True)
class Login:
    """Address, credentials and TLS of one server."""

    address: Address
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    database: int = 0
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    timeout: float = 2.0

    @property
    def greeting(self) -> list[tuple[str, ...]]:
        """The commands that a connection begins with: AUTH and SELECT, if needed."""
        commands: list[tuple[str, ...]] = []
        if self.password:
            commands.append(("AUTH", self.user, self.password) if self.user else ("AUTH", self.password))
        if self.database:
            commands.append(("SELECT", str(self.database)))
        return commands

    @property
    def server_name(self) -> str | None:
        """The host that the certificate must name."""
        return self.address.host if self.tls is not None and isinstance(self.address, Tcp) else None


@dataclass(frozen=True, slots=True)
class Target:
    """A Redis: one server, a primary that sentinels know, or a cluster."""

    kind: RedisType
    servers: Servers
    timeout: float
    """Seconds to connect."""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    sentinel_user: str = field(default="", repr=False)
    sentinel_password: str = field(default="", repr=False)
    certificates: RedisCertificates | None = field(default=None, repr=False)
    """None without TLS."""

    def at(self, address: Address) -> Login:
        """The login to one of its servers."""
        return Login(address, self.user, self.password, self.servers.database, self._tls(), self.timeout)

    def at_sentinel(self, address: Address) -> Login:
        """The login to one of its sentinels."""
        return Login(address, self.sentinel_user, self.sentinel_password, 0, self._tls(), self.timeout)

    def _tls(self) -> ssl.SSLContext | None:
        return None if self.certificates is None else self.certificates.current()


def is_clustered(*targets: Target | None) -> bool:
    """Whether one of them is a cluster."""
    return any(target is not None and target.kind is RedisType.CLUSTER for target in targets)


def has_cluster_names(main: Target, per_second: Target | None, home: Target | None) -> bool:
    """Whether counters have names for a cluster; then all have, on each Redis.

    With a home always: the counters there have one name in all regions, whatever the Redis of each is.
    """
    return home is not None or is_clustered(main, per_second)


def is_per_second(rule: Rule) -> bool:
    """Whether its counters are in the Redis of rules per second, if there is one.

    Not those of a limit that is charged together with others: all or none needs one step, and that needs one Redis.
    """
    limit = rule.limit
    return limit is not None and limit.window == SECOND and rule.together == ALONE and limit.kind.in_windows


def is_central(rule: Rule) -> bool:
    """Whether its counters are in the home Redis, which all regions share."""
    return rule.limit is not None and rule.limit.is_central


def is_leased(rule: Rule) -> bool:
    """Whether regions lease from a counter at home."""
    return rule.limit is not None and rule.limit.kind.waits_for_home


_Redis = TypeVar("_Redis")


def redis_of(rule: Rule, main: _Redis, per_second: _Redis | None, home: _Redis | None) -> _Redis:
    """The one of these that has the counters of the rule."""
    if home is not None and is_central(rule):
        return home
    return per_second if per_second is not None and is_per_second(rule) else main


def main_target(settings: Settings) -> Target:
    """The Redis of all counters."""
    return _target(settings.redis, settings)


def per_second_target(settings: Settings) -> Target | None:
    """The Redis of the counters whose window is a second, if it is another one."""
    redis = settings.second_redis
    return None if redis is None else _target(redis, settings)


def home_target(settings: Settings) -> Target | None:
    """The Redis that all regions share, if there are several."""
    redis = settings.home_redis
    return None if redis is None else _target(redis, settings)


def _target(redis: RedisSettings, settings: Settings) -> Target:
    servers = read_servers(redis.url.get_secret_value(), redis.type, redis.socket_type)
    auth = redis.auth.get_secret_value()
    user, password = read_auth(auth) if auth else (servers.user, servers.password)
    sentinel_user, sentinel_password = read_auth(redis.sentinel_auth.get_secret_value())
    return Target(
        redis.type,
        replace(servers, user="", password=""),
        redis.timeout / SECOND,
        user,
        password,
        sentinel_user,
        sentinel_password,
        RedisCertificates(settings) if redis.tls or servers.tls else None,
    )
