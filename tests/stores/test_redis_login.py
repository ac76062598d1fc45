"""Who gets in where: TLS, users and passwords, on a real server."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from tests.ports import free_port
from tests.redis import start_redis
from tests.stores.redis_stores import charge, hit_of, opened, rule
from tests.transports.certificates import Issued, authority, issue

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run


class Secured(NamedTuple):
    """A Redis that speaks TLS only with clients of its authority."""

    port: int
    authority: Issued
    client: Issued


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    ca = authority(folder)
    server = issue(ca, "redis", "DNS:localhost")
    port = free_port()
    files = ("--tls-cert-file", str(server.cert), "--tls-key-file", str(server.key), "--tls-ca-cert-file", str(ca.cert))
    with start_redis(folder / "redis", "--tls-port", str(port), *files, "--requirepass", "hunter2"):
        yield Secured(port, ca, issue(ca, "limiter"))


def files_of(secured: Secured) -> dict[str, str]:
    """The variables of one who may come in."""
    return {
        "REDIS_AUTH": "hunter2",
        "REDIS_TLS_CACERT": str(secured.authority.cert),
        "REDIS_TLS_CLIENT_CERT": str(secured.client.cert),
        "REDIS_TLS_CLIENT_KEY": str(secured.client.key),
    }


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
def test_tls_trusts_whom_it_is_told_to(secured: Secured, url: str, changed: dict[str, str], expected: str) -> None:
    async def story() -> None:
        assert await cause(url.format(port=secured.port), {**files_of(secured), **changed}) == expected

    run(story())


def test_a_client_without_a_certificate_is_not_let_in(secured: Secured) -> None:
    async def story() -> None:
        environ = {**files_of(secured), "REDIS_TLS_CLIENT_CERT": "", "REDIS_TLS_CLIENT_KEY": ""}

        assert await cause(f"rediss://localhost:{secured.port}", environ) in {"tls", "reset"}

    run(story())


def test_an_acl_user_with_its_prefix_is_enough(tmp_path: Path) -> None:
    with start_redis(tmp_path) as redis:
        redis.cli("ACL", "SETUSER", "limiter", "on", ">a:b", "~mine:*", "+@scripting", "+@read", "+@write", "+time")
        redis.cli("ACL", "SETUSER", "default", "off")

        async def story() -> None:
            environ = {"REDIS_AUTH": "limiter:a:b", "CACHE_KEY_PREFIX": "mine:"}

            assert await cause(f"127.0.0.1:{redis.port}", environ) == ""
            async with opened(f"127.0.0.1:{redis.port}", REDIS_AUTH="limiter:a:b", CACHE_KEY_PREFIX="mine:") as store:
                await asyncio.sleep(1.5)  # it is asked whether it is there, which this user may not
                assert store.healthy
            assert await cause(f"127.0.0.1:{redis.port}", {**environ, "CACHE_KEY_PREFIX": "other:"}) == "noperm"

        run(story())
