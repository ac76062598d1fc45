"""A client that takes another address of its network for each request has one limit, with every store."""

from collections.abc import Iterator
from ipaddress import IPv6Address
from random import Random

import pytest

from ratelimit_service.limiter.limiter import Limiter
from ratelimit_service.model import Descriptor, Limit, Request, Unit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.store import Store
from tests.books import book
from tests.clocks import Clock
from tests.redis import start_redis
from tests.stores.redis_stores import RedisStores
from tests.verdicts import check

RULES = """\
    domain: d
    descriptors:
      - key: ip
        cidr: 2001:db8::/32
        prefix: {ipv6: 64}
        rate_limit: {unit: year, requests_per_unit: 3}
      - key: ip
        prefix: {ipv4: 24}
        rate_limit: {unit: year, requests_per_unit: 5}
    """


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An empty one."""
    if request.param == "memory":
        yield MemoryStore(1000, Clock())
        return
    with start_redis(tmp_path_factory.mktemp("redis")) as redis, RedisStores(redis) as stores:
        yield stores.open(Clock())


def allowed(store: Store, addresses: list[str]) -> int:
    """Of a request from each of these addresses."""
    limiter = Limiter(store)
    limiter.book = book(RULES)
    return sum(check(limiter, Request("d", [Descriptor((("ip", address),))])).allowed for address in addresses)


def test_a_client_that_rotates_in_its_network_has_one_limit(store: Store) -> None:
    random = Random(1)  # noqa: S311 - no secret
    hosts = [IPv6Address((0x20010DB8_00000007 << 64) | random.getrandbits(64)) for _ in range(200)]
    written = [random.choice([str(host), host.exploded, str(host).upper(), f"{host}%eth0"]) for host in hosts]

    assert allowed(store, written) == 3
    assert store.counters == 1


def test_a_limit_that_comes_with_requests_counts_addresses_as_the_rule_does(store: Store) -> None:
    limiter = Limiter(store)
    limiter.book = book(RULES)
    limit = Limit(4, Unit.YEAR, Unit.YEAR.window)

    verdicts = [
        check(limiter, Request("d", [Descriptor((("ip", f"2001:db8::{host:x}"),), override=limit)])).allowed
        for host in range(50)
    ]

    assert verdicts.count(True) == 4
    assert store.counters == 1
    assert allowed(store, ["2001:DB8::ffff"]) == 0


def test_clients_of_other_networks_have_limits_of_their_own(store: Store) -> None:
    ipv4 = [f"{prefix}192.0.{network}.{host}" for prefix in ("", "::ffff:") for network in (1, 2) for host in range(5)]
    ipv6 = [f"2001:db8:{network}::{host}" for network in (1, 2, 3) for host in range(5)]

    assert allowed(store, ipv4 + ipv6) == 2 * 5 + 3 * 3
    assert store.counters == 5
