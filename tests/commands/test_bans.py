"""`ratelimit ban`, `unban` and `bans`: what they need, and what they say when it is not there."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from click.testing import CliRunner

from ratelimit_service.cli import main
from ratelimit_service.rules.bans import Bans
from ratelimit_service.stores.redis.bans import ALLOWED
from ratelimit_service.stores.redis.keys import bans_keys, slot_of
from tests.ports import free_port
from tests.processes import start_service
from tests.redis import Redis
from tests.stores.redis_groups import Move, start_cluster
from tests.stores.redis_stores import opened, until

run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run

BAN = ("ban", "shop", "user=ada", "--for", "1h", "--why", "spam")


def rules_in(folder: Path) -> Path:
    """A file of rules, which tell the commands that no value is secret."""
    path = folder / "shop.yaml"
    path.write_text("domain: shop\ndescriptors: [{key: user}]\n", encoding="utf-8")
    return path


CUT = "a\u20260123456789abcdef"


def invoke(words: tuple[str, ...], **environ: str) -> tuple[int, str]:
    """The exit code, and what is said."""
    result = CliRunner().invoke(main, words, env=environ)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("words", "code", "wrong"),
    [
        (("ban", "shop", "user=ada", "--for", "1h"), 2, "Missing option '--why'"),
        (("ban", "shop", "user=ada", "--why", "spam"), 2, "Missing option '--for'"),
        (("ban", "shop", "--for", "1h", "--why", "spam"), 2, "Missing argument 'KEY=VALUE...'"),
        (("ban", "shop", "ada", "--for", "1h", "--why", "spam"), 2, "'ada' has no =; write ada=VALUE"),
        (("ban", "shop", "user=ada", "+", "ip=1", "--for", "1h", "--why", "x"), 2, "ban takes one descriptor"),
        (("unban", "shop"), 2, "Missing argument 'KEY=VALUE...'"),
        (("bans", "localhost:6070"), 2, "localhost:6070 is an address, not a domain: write --at localhost:6070"),
        (("ban", "shop", "user=ada", "--for", "soon", "--why", "x"), 1, '"soon" is not a duration such as 10s'),
        (("ban", "", "user=ada", "--for", "1h", "--why", "x"), 1, "the domain is empty"),
        (("ban", "shop", "user=ada", "--for", "1h", "--why", "a\nb"), 1, "why is one line of at most 200"),
        (("ban", "shop", f"user={CUT}", "--for", "1h", "--why", "x"), 1, "is cut, because it is too long to show"),
    ],
)
def test_a_wrong_argument_is_told(redis: Redis, tmp_path: Path, words: tuple[str, ...], code: int, wrong: str) -> None:
    environ = {"REDIS_URL": str(redis.socket), "RULES_PATH": str(rules_in(tmp_path)), "CACHE_KEY_PREFIX": "wrong:"}
    found, said = invoke(words, **environ)

    assert (found, wrong in said) == (code, True), said
    assert redis.cli("EXISTS", bans_keys("wrong:")[0]) == "0"


def test_where_nothing_answers_it_says_what_is_missing(redis: Redis, tmp_path: Path) -> None:
    port = free_port()
    for words in (BAN, ("unban", "shop", "user=ada"), ("bans",)):
        code, said = invoke(words, DEBUG_PORT=str(port))
        assert code == 3
        assert said == (
            f"ratelimit: http://localhost:{port}: nothing listens there. BACKEND_TYPE is memory: the service itself "
            "has the bans. Name it by --at, or set REDIS_URL as for the service\n"
        )
    code, said = invoke((*BAN, "--at", "ftp://localhost"))
    assert (code, said) == (3, "ratelimit: ftp://localhost: not a URL such as http://localhost:6070\n")
    code, said = invoke((*BAN, "--url", f"localhost:{redis.port}"))  # as --at was called
    assert (code, "does not speak HTTP" in said) == (3, True)
    code, said = invoke(BAN, REDIS_URL=str(redis.socket), RULES_PATH=str(tmp_path / "none"))
    assert (code, "none does not exist" in said) == (1, True), said
    code, said = invoke(BAN, REDIS_URL=f"127.0.0.1:{port}", RULES_PATH=str(rules_in(tmp_path)))
    assert (code, said) == (1, f"ratelimit: Redis at 127.0.0.1:{port}: connection refused\n")


def test_in_a_cluster_bans_follow_their_slot(tmp_path: Path) -> None:
    async def story(url: str, move: Callable[[], Move]) -> None:
        async with opened(url, REDIS_TYPE="cluster", STORE_DEADLINE="10s") as store:
            bans = Bans()
            store.keep_bans(bans).start()
            environ = {"REDIS_URL": url, "REDIS_TYPE": "cluster", "RULES_PATH": str(rules_in(tmp_path))}
            code, said = await asyncio.to_thread(invoke, BAN, **environ)
            assert code == 0, said
            await until(lambda: len(bans) == 1, "the ban is known")
            await asyncio.to_thread(lambda: move().end())
            code, said = await asyncio.to_thread(invoke, (*BAN, "ip=1"), **environ)
            assert code == 0, said
            await until(lambda: len(bans) == 2, "one that is written after the slot has moved is known")

    keys = bans_keys("")
    assert slot_of(keys[0]) == slot_of(keys[1])
    with start_cluster(tmp_path) as nodes:
        run(story(nodes.url, lambda: Move(nodes, slot_of(keys[0]))))


def test_the_rights_that_are_named_are_enough_and_a_missing_one_is_named(redis: Redis, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}:"
    look, change, _ = ALLOWED.replace("~<CACHE_KEY_PREFIX>*", f"~{prefix}*").split(", ")
    environ = {"REDIS_URL": str(redis.socket), "REDIS_AUTH": "banner:hunter2", "CACHE_KEY_PREFIX": prefix}
    environ["RULES_PATH"] = str(rules_in(tmp_path))
    redis.cli("ACL", "SETUSER", "banner", "on", ">hunter2", *look.split())
    code, said = invoke(BAN, **environ)
    assert code == 1
    assert "the ACL user must be allowed: ~<CACHE_KEY_PREFIX>* +time +hget" in said

    redis.cli("ACL", "SETUSER", "banner", *re.findall(r"\+\S+", change))
    assert invoke(BAN, **environ)[0] == 0
    assert "user=ada" in invoke(("bans",), **environ)[1]
    assert json.loads(invoke(("bans", "--json"), **environ)[1])["total"] == 1
    assert invoke(("unban", "shop", "user=ada"), **environ)[0] == 0


def test_an_explanation_needs_no_right_to_read_bans(redis: Redis, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}:"
    environ = {"REDIS_URL": str(redis.socket), "REDIS_AUTH": "looker:hunter2", "CACHE_KEY_PREFIX": prefix}
    environ["RULES_PATH"] = str(rules_in(tmp_path))
    redis.cli("ACL", "SETUSER", "looker", "on", ">hunter2", f"~{prefix}*", "+scan", "+get", "+pttl", "+time")

    code, said = invoke(("explain", "shop", "user=ada"), **environ)

    assert code == 0, said
    assert "compared as user_ada" in said
    assert "Whether it is banned is not known: Redis at unix:" in said


def test_bans_change_at_a_service_with_its_token_alone(tmp_path: Path) -> None:
    token = "0123456789abcdef0123456789abcdef"
    (tmp_path / "token").write_text(f"{token}\n")
    rules = "domain: shop\ndescriptors: [{key: user}]\n"
    with start_service(tmp_path, rules, {"ADMIN_TOKEN_FILE": str(tmp_path / "token")}) as service:
        at = ("--at", f"http://127.0.0.1:{service.debug_port}")
        without = invoke((*BAN, *at))
        wrong = invoke((*BAN, *at), ADMIN_TOKEN=token[::-1])
        by_variable = invoke((*BAN, *at), ADMIN_TOKEN=token)
        listed = invoke(("bans", *at))
        by_file = invoke(("unban", "shop", "user=ada", *at, "--token-file", str(tmp_path / "token")))

    assert (without[0], wrong[0]) == (1, 1)
    assert "set ADMIN_TOKEN as for the service, or name a file with it by --token-file" in without[1]
    assert "that is not the token of this service" in wrong[1]
    assert token[::-1] not in wrong[1]
    assert (by_variable[0], by_file[0]) == (0, 0)
    assert "user=ada" in listed[1]


def test_a_token_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("hunter2")
    for file, wrong in (("short", "has fewer than 32 characters"), ("missing", "No such file or directory")):
        code, said = invoke(("bans", "--at", "http://localhost:1", "--token-file", str(tmp_path / file)))
        assert (code, wrong in said, "hunter2" in said) == (2, True, False), said
