"""REDIS_URL and REDIS_AUTH, as envoyproxy's deployments write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.settings.fields import RedisType
from ratelimit_service.settings.redis_url import Servers, masked, read_auth, read_servers
from ratelimit_service.system.address import Address, Tcp, Unix


@pytest.mark.parametrize(
    ("text", "socket_type", "servers"),
    [
        ("", "", Servers((Tcp("localhost", 6379),))),
        ("redis:6380", "tcp", Servers((Tcp("redis", 6380),))),
        ("redis", "", Servers((Tcp("redis", 6379),))),
        ("[::1]:6380", "", Servers((Tcp("::1", 6380),))),
        ("::1", "", Servers((Tcp("::1", 6379),))),
        ("/run/redis.sock", "", Servers((Unix("/run/redis.sock"),))),
        ("redis.sock", "unix", Servers((Unix("redis.sock"),))),
        ("unix:///run/redis.sock", "", Servers((Unix("/run/redis.sock"),))),
        ("unix://:p%40ss@/run/redis.sock", "", Servers((Unix("/run/redis.sock"),), password="p@ss")),
        ("unix://ada:a:b@redis.sock", "unix", Servers((Unix("redis.sock"),), user="ada", password="a:b")),
        ("redis://redis:6380/2", "tcp", Servers((Tcp("redis", 6380),), database=2)),
        ("redis://:p%40ss@redis", "", Servers((Tcp("redis", 6379),), user="", password="p@ss")),
        ("rediss://ada:a:b@redis:1/", "", Servers((Tcp("redis", 1),), user="ada", password="a:b", tls=True)),
    ],
)
def test_one_server(text: str, socket_type: str, servers: Servers) -> None:
    assert read_servers(text, RedisType.SINGLE, socket_type) == servers


def test_a_master_and_its_sentinels() -> None:
    servers = read_servers("mymaster,one:26379, two:26380", RedisType.SENTINEL, "tcp")

    assert servers == Servers((Tcp("one", 26379), Tcp("two", 26380)), master="mymaster")


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("one:6379,two:6380", [Tcp("one", 6379), Tcp("two", 6380)]),
        ("rediss://one:6379", [Tcp("one", 6379)]),
    ],
)
def test_some_nodes_of_a_cluster(text: str, nodes: list[Address]) -> None:
    servers = read_servers(text, RedisType.CLUSTER, "tcp")

    assert list(servers.addresses) == nodes
    assert servers.tls == text.startswith("rediss")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("redis:0", RedisType.SINGLE),
        ("redis:65536", RedisType.SINGLE),
        ("a,b", RedisType.SINGLE),
        (":6379", RedisType.SINGLE),
        ("redis://redis:6379/x", RedisType.SINGLE),
        ("redis://redis:6379?db=1", RedisType.SINGLE),
        ("unix:///run/redis.sock?password=hunter2", RedisType.SINGLE),
        ("/run/redis.sock?password=hunter2", RedisType.SINGLE),
        ("/run/hunter2@redis.sock", RedisType.SINGLE),
        ("unix://", RedisType.SINGLE),
        ("hunter2@mymaster,one:26379", RedisType.SENTINEL),
        ("mymaster", RedisType.SENTINEL),
        ("one:26379,two:26379", RedisType.SENTINEL),
        ("mymaster,", RedisType.SENTINEL),
        ("/run/redis.sock", RedisType.CLUSTER),
        ("redis://one:6379/1", RedisType.CLUSTER),
        ("one:6379,", RedisType.CLUSTER),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, kind: RedisType) -> None:
    with pytest.raises(ValueError, match="is not"):
        read_servers(text, kind, "")


@given(st.text(), st.sampled_from(RedisType))
def test_any_text_is_read_or_refused_without_repeating_it(text: str, kind: RedisType) -> None:
    try:
        read_servers(text, kind, "")
    except ValueError as error:
        words = str(error)
    else:
        words = "is not a"

    assert words.startswith("is not a")


def test_a_password_may_have_a_user() -> None:
    assert read_auth("hunter2") == ("", "hunter2")
    assert read_auth("limiter:hun:ter2") == ("limiter", "hun:ter2")


def test_a_url_is_shown_without_its_password() -> None:
    assert masked("redis://user:p@ss@redis:6379") == "redis://***@redis:6379"
    assert masked("user:pass@redis:6379") == "***@redis:6379"
    assert masked("redis:6379?password=hunter2") == "redis:6379?***"
    assert masked("redis://user:pass@redis:6379?db=1") == "redis://***@redis:6379?***"
    assert masked("redis://redis?password=hun@ter2") == "redis://***@***"
    assert masked("redis:6379") == "redis:6379"
