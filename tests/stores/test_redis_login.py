"""Logins that work and that do not: TLS, users and passwords, on a real server."""

import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from ratelimit_service.stores.redis.keys import slot_of
from tests.ports import free_port
from tests.processes import ROOT
from tests.redis import Redis as Plain
from tests.redis import start_redis
from tests.stores.redis_groups import Move, secure, start_cluster
from tests.stores.redis_stores import charge, hit_of, opened, rule, until
from tests.transports.certificates import expired

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


class Redis(NamedTuple):
    """One that speaks TLS only with clients of its authority."""

    port: int
    settings: dict[str, str]
    """Settings that the server accepts."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    folder = tmp_path_factory.mktemp("tls")
    certificates = secure(folder, "DNS:localhost")
    port = free_port()
    options = ("--tls-port", str(port), *certificates.as_server, "--requirepass", "hunter2")
    with start_redis(folder / "redis", *options):
        yield Redis(port, {"REDIS_AUTH": "hunter2", **certificates.settings})


async def cause(url: str, environ: dict[str, str]) -> str:
    """Why a request is not answered there; empty when it is."""
    async with opened(url, wait=False, STORE_DEADLINE="5s", **environ) as store:
        await charge(store, hit_of(rule()))
        return "".join(store.errors)


@pytest.mark.parametrize(
    ("url", "changed", "expected"),
    [
        ("localhost:{port}", {"REDIS_TLS": "true"}, ""),
        ("rediss://localhost:{port}", {}, ""),
        ("rediss://default:hunter2@localhost:{port}", {"REDIS_AUTH": ""}, ""),
        ("rediss://127.0.0.1:{port}", {}, "tls"),
        ("rediss://127.0.0.1:{port}", {"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "true"}, ""),
        ("rediss://localhost:{port}", {"REDIS_TLS_CACERT": ""}, "tls"),
    ],
)
def test_tls_trusts_the_certificates_of_the_settings(
    secured: Redis, url: str, changed: dict[str, str], expected: str
) -> None:
    async def story() -> None:
        assert await cause(url.format(port=secured.port), {**secured.settings, **changed}) == expected

    run(story())


def test_a_client_without_a_certificate_is_not_let_in(secured: Redis) -> None:
    async def story() -> None:
        environ = {**secured.settings, "REDIS_TLS_CLIENT_CERT": "", "REDIS_TLS_CLIENT_KEY": ""}

        assert await cause(f"rediss://localhost:{secured.port}", environ) in {"tls", "reset"}

    run(story())


def test_an_expired_certificate_is_logged_and_a_fresh_one_is_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = secure(tmp_path, "DNS:localhost")
    fresh, old = certificates.server.cert, expired(certificates.authority, certificates.server)
    port = free_port()
    options = ("--tls-port", str(port), *certificates.as_server, "--tls-cert-file", str(old))
    settings = {**certificates.settings, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "true"}  # the old one has no name

    async def story(redis: Plain) -> None:
        async with opened(f"rediss://localhost:{port}", wait=False, STORE_DEADLINE="5s", **settings) as store:
            assert (await charge(store, hit_of(rule()))).error

            redis.cli("CONFIG", "SET", "tls-cert-file", str(fresh))
            await until(lambda: store.healthy, "the fresh certificate is trusted")

    with start_redis(tmp_path / "redis", *options) as redis:
        run(story(redis))
    assert caplog.messages[0] == (
        f"store lost: Redis at localhost:{port}: no TLS connection: check REDIS_TLS and its certificates "
        "(certificate has expired); meanwhile answering by policy, error"
    )


def test_certificates_that_are_renewed_are_used_from_the_next_connection_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As cert-manager does it: authority and client certificate are others, in the same files."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    first, second = secure(tmp_path / "first", "DNS:localhost"), secure(tmp_path / "second", "DNS:localhost")
    port = free_port()

    def renew(redis: Plain) -> None:
        """On both sides: the server has them read again, and the connections begin anew."""
        own = (*first.server, first.authority.cert)
        for renewed, file in zip((*second.server, second.authority.cert), own, strict=True):
            file.write_bytes(renewed.read_bytes())
        redis.cli("CONFIG", "SET", "tls-cert-file", str(own[0]), "tls-key-file", str(own[1]))
        redis.cli("CONFIG", "SET", "tls-ca-cert-file", str(own[2]))
        redis.cli("CLIENT", "KILL", "TYPE", "normal")

    async def story(redis: Plain) -> None:
        async with opened(f"rediss://localhost:{port}", wait=True, **first.settings) as store:
            renew(redis)
            await until(lambda: not store.healthy, "it is not let in with its old certificate")

            first.client.key.write_text("broken")
            await until(lambda: "not loaded, the old ones stay" in caplog.text, "it is logged")
            for renewed, file in zip(second.client, first.client, strict=True):
                file.write_bytes(renewed.read_bytes())
            await until(lambda: store.healthy, "the fresh ones are used")
            assert (await charge(store, hit_of(rule()))).allowed

    with start_redis(tmp_path / "redis", "--tls-port", str(port), *first.as_server) as redis:
        run(story(redis))
    assert caplog.text.count("not loaded, the old ones stay") == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("IP:127.0.0.1", ()),
        (
            "DNS:localhost",
            ("--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname"),
        ),
    ],
)
def test_a_cluster_may_speak_nothing_but_tls(tmp_path: Path, name: str, options: tuple[str, ...]) -> None:
    certificates = secure(tmp_path, name)
    with start_cluster(tmp_path / "cluster", 0, *options, secured=certificates) as nodes:
        url = nodes.url.replace("127.0.0.1", name.partition(":")[2])

        async def story() -> None:
            environ = {"REDIS_TYPE": "cluster", "REDIS_TLS": "true", **certificates.settings}
            async with opened(url, wait=True, **environ) as store:
                answer = await charge(store, *(hit_of(rule(), str(number)) for number in range(30)))
                assert answer.allowed
            assert await cause(url, {**environ, "REDIS_TLS_CACERT": ""}) == "tls"

        run(story())
        assert all("user=" in redis.cli("KEYS", "*") for redis in nodes.redises)


DOCUMENT = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")
ACL_USER = re.findall(r"^ACL SETUSER (.*)$", DOCUMENT, re.MULTILINE)[0].split()
IN_A_CLUSTER = re.findall(r"A Cluster needs `([^`]*)` besides", DOCUMENT)[0].split()
ENVIRON = {"REDIS_AUTH": "limiter:password", "CACHE_KEY_PREFIX": "limits:"}
"""Of the user that the document makes."""


def calls(redis: Plain, command: str) -> int:
    """How often it was called."""
    return sum(map(int, re.findall(rf"cmdstat_{command}:calls=(\d+)", redis.cli("INFO", "commandstats"))))


def test_the_acl_user_of_the_document_is_enough(tmp_path: Path) -> None:
    with start_redis(tmp_path) as redis:
        redis.cli("ACL", "SETUSER", *ACL_USER, "+info")

        async def story() -> None:
            async with opened(f"redis://127.0.0.1:{redis.port}/1", wait=True, **ENVIRON) as store:
                assert (await charge(store, hit_of(rule()))).allowed
                before = calls(redis, "time")
                await until(lambda: calls(redis, "time") - before >= 3, "it is asked whether it is there")
                await until(lambda: calls(redis, "getex") > 0, "it is asked whether counters were reset")
                assert store.healthy
            assert await cause(f"127.0.0.1:{redis.port}", {**ENVIRON, "CACHE_KEY_PREFIX": "other:"}) == "noperm"

        run(story())
        assert redis.cli("ACL", "LOG").count("limits:") == 0
        assert set(re.findall(r"^object\n(.*)$", redis.cli("ACL", "LOG"), re.MULTILINE)) == {"other:rl2|probe"}


def test_the_acl_user_of_the_document_is_enough_in_a_cluster_and_no_less_is(tmp_path: Path) -> None:
    with start_cluster(tmp_path) as nodes:
        for redis in nodes.redises:
            redis.cli("ACL", "SETUSER", *ACL_USER, "+info", *IN_A_CLUSTER)

        async def story() -> None:
            async with opened(nodes.url, wait=True, REDIS_TYPE="cluster", **ENVIRON) as store:
                hit = hit_of(rule(), "moving")
                assert (await charge(store, hit)).allowed
                move = Move(nodes, slot_of(store._script.key(hit)))
                move.take(*move.keys())
                assert (await charge(store, hit_of(rule(), "moving"))).allowed
                assert "".join(redis.cli("ACL", "LOG") for redis in nodes.redises) == ""

                for redis in nodes.redises:
                    redis.cli("ACL", "SETUSER", "limiter", "-asking")
                assert (await charge(store, hit_of(rule(), "moving"))).error
                assert store.errors == {"noperm": 1}
                move.end()

        run(story())
