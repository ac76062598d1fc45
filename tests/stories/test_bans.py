"""Bans made by the commands, and by HTTP, while real services answer: with counters in Redis, and in memory."""

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path

from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.ports import free_port
from tests.processes import Service, ask, start_service
from tests.redis import Redis, start_redis
from tests.workers.pool import callers, start_pool

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n"
MORE_RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 7}}]\n"


def status(service: Service, user: str = "ada") -> int:
    """The HTTP status of one request."""
    body = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": user}]}]}
    return ask(service.http_port, "/json", method="POST", body=json.dumps(body)).status


def wait_for(service: Service, expected: int, user: str = "ada") -> None:
    """Wait until requests are answered so."""
    service.wait_until(lambda: status(service, user) == expected, f"{user} gets {expected}")


def metric(service: Service, line: str) -> str:
    """The value of the series whose line begins like this."""
    return next(text.rpartition(" ")[2] for text in service.metrics().splitlines() if text.startswith(line))


class Commands:
    """The command line, with the settings of an operator."""

    def __init__(self, **environ: str) -> None:
        self._environ = environ

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, words, env=self._environ)

    def ok(self, *words: str) -> str:
        """What it prints, without an error."""
        result = self.run(*words)
        assert result.exit_code == 0, result.output
        return result.stdout


def environ_of(redis: Redis, folder: Path, rules: str = RULES) -> dict[str, str]:
    """Settings of services and commands; the rules are a folder for the commands alone."""
    (folder / "rules").mkdir()
    (folder / "rules" / "shop.yaml").write_text(rules, encoding="utf-8")
    return {
        "RULES_PATH": str(folder / "rules"),
        "REDIS_URL": f"127.0.0.1:{redis.port}",
        "CACHE_KEY_PREFIX": f"{folder.name}:",
        "STORE_DEADLINE": "10s",
    }


def without_rules(environ: dict[str, str]) -> dict[str, str]:
    """For a service, which has a folder of its own."""
    return {name: value for name, value in environ.items() if name != "RULES_PATH"}


def test_all_instances_enforce_a_ban_until_it_is_lifted_and_it_outlasts_reload_and_restart(
    redis: Redis, tmp_path: Path
) -> None:
    environ = environ_of(redis, tmp_path)
    commands = Commands(**environ)
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(start_service(tmp_path / name, RULES, without_rules(environ)))
            for name in ("one", "other")
        )
        said = commands.ok("ban", "shop", "user=ada", "--for", "1h", "--why", "scrapes, ticket 4711")
        for service in (one, other):
            wait_for(service, 429)
            assert status(service, "eve") == 200
            assert "user=ada in domain shop until 2" in service.log
            assert "scrapes, ticket 4711" in service.log
            assert metric(service, "ratelimit_bans") == "1"
            assert float(metric(service, 'ratelimit_banned_descriptors_total{domain="shop"}')) >= 1
        assert "banned: user=ada in domain shop until 2" in said
        assert "Every instance enforces it within a second" in said

        one.write_rules(MORE_RULES)
        one.wait_until(lambda: metric(one, "ratelimit_service_config_load_success") == "2", "it is loaded again")
        assert status(one) == 429

        one.stop()
        with start_service(tmp_path / "third", RULES, without_rules(environ)) as third:
            wait_for(third, 429)
            assert "1 ban in force, as Redis has them" in third.log

            listed = json.loads(commands.ok("bans", "--json"))
            assert listed["total"] == 1
            assert listed["bans"][0]["entries"] == [{"key": "user", "value": "ada"}]

            assert commands.ok("unban", "shop", "user=ada") == "no longer banned: user=ada in domain shop\n"
            for service in (other, third):
                wait_for(service, 200)
                assert "no longer banned: user=ada in domain shop, lifted by " in service.log
    assert commands.ok("bans", "shop") == "there are no bans of domain shop\n"
    again = commands.run("unban", "shop", "user=ada")
    assert (again.exit_code, again.stderr) == (
        1,
        "ratelimit: there is no ban of exactly these entries in domain shop; `ratelimit bans` lists those in force\n",
    )


def test_a_ban_ends_by_itself_and_redis_forgets_it(redis: Redis, tmp_path: Path) -> None:
    environ = environ_of(redis, tmp_path)
    with start_service(tmp_path / "service", RULES, without_rules(environ)) as service:
        Commands(**environ).ok("ban", "*", "user=ada", "--for", "10s", "--why", "cool down")
        wait_for(service, 429)
        wait_for(service, 200)

        assert "no longer banned: user=ada in every domain, its time is over" in service.log
        assert Commands(**environ).ok("bans") == "there are no bans\n"
        assert 0 < int(redis.cli("PTTL", f"{tmp_path.name}:rl2|{{bans}}")) <= 3_620_000


def test_explain_says_who_is_banned_why_and_until_when(redis: Redis, tmp_path: Path) -> None:
    environ = environ_of(redis, tmp_path)
    commands = Commands(**environ)
    with start_service(tmp_path / "service", RULES, without_rules(environ)) as service:
        commands.ok("ban", "shop", "user=ada", "--for", "ever", "--why", "asked to stay away")
        wait_for(service, 429)
        here = commands.ok("explain", "shop", "user=ada", "--rules", str(service.rules))
        there = commands.ok("explain", "shop", "user=ada", "--at", f"127.0.0.1:{service.debug_port}")
        other = commands.ok("explain", "shop", "user=eve", "--rules", str(service.rules))
        call = commands.run("call", f"127.0.0.1:{service.grpc_port}", "shop", "user=ada").stdout

    for text in (here, there):
        assert "\nBut it is banned for ever, by " in text
        assert ", because: asked to stay away (the ban of user=ada in domain shop)\n" in text
    assert "banned" not in other
    assert "OVER_LIMIT" in call
    assert "    by a ban; `ratelimit bans` says who made it, and why\n" in call


def test_while_redis_is_away_known_bans_hold_and_it_is_logged_once(tmp_path: Path) -> None:
    with start_redis(tmp_path / "redis") as redis:
        environ = environ_of(redis, tmp_path) | {"ON_STORE_FAILURE": "open", "STORE_DEADLINE": "1s"}
        with start_service(tmp_path / "service", RULES, without_rules(environ)) as service:
            Commands(**environ).ok("ban", "shop", "user=ada", "--for", "1h", "--why", "spam")
            Commands(**environ).ok("ban", "shop", "user=eve", "--for", "20s", "--why", "spam")
            wait_for(service, 429)
            wait_for(service, 429, "eve")
            redis.send(signal.SIGSTOP)
            service.wait_until(lambda: "bans cannot be read" in service.log, "it is logged")
            wait_for(service, 200, "eve")
            stopped = [status(service) for _ in range(3)]
            redis.kill()
            service.wait_until(lambda: "store lost" in service.log, "it is lost")
            killed = [status(service) for _ in range(3)]

        assert stopped + killed == [429] * 6
        assert service.log.count("bans cannot be read: ") == 1
        assert "those known stay" in service.log
        assert service.log.index("bans cannot be read: ") < service.log.index("no longer banned: user=eve")


def test_every_worker_enforces_a_ban_that_came_by_http_also_one_that_is_started_later(tmp_path: Path) -> None:
    with start_pool(tmp_path, 2) as pool, callers(pool.service.grpc_port, 4) as made:
        body = {"domain": "shop", "entries": [{"key": "user", "value": "ada"}], "for": "1h", "why": "spam", "who": "me"}
        reply = ask(pool.service.debug_port, "/bans", method="POST", body=json.dumps(body))
        assert (reply.status, json.loads(reply.body)["who"]) == (200, "me from 127.0.0.1")

        def refused() -> bool:
            return all(caller.ask().overall_code == 2 for caller in made)

        pool.service.wait_until(refused, "all workers enforce it")
        assert pool.metric("ratelimit_bans") == 1
        assert "by me from 127.0.0.1: spam" in pool.service.log
        pool.service.wait_until(lambda: pool.status["bans"]["total"] == 1, "the page shows it")
        assert pool.status["bans"]["newest"][0]["entries"] == "user=ada"
        assert json.loads(ask(pool.service.debug_port, "/bans").body)["total"] == 1

        pid = pool.pids[1]
        os.kill(pid, signal.SIGKILL)
        pool.wait_for_another(1, pid)
        with callers(pool.service.grpc_port, 4) as fresh:
            assert min(pool.connections.values()) > 0
            pool.service.wait_until(
                lambda: all(caller.ask().overall_code == 2 for caller in fresh), "so does the new one"
            )


def test_bans_in_memory_outlast_a_reload_and_end_with_the_service(tmp_path: Path) -> None:
    port = free_port()
    commands = Commands(DEBUG_PORT=str(port))
    with start_service(tmp_path / "service", RULES, {"DEBUG_PORT": str(port)}) as service:
        said = commands.ok("ban", "shop", "user=ada", "--for", "15 minutes", "--why", "spam")
        assert f"in the memory of the service at http://localhost:{port}: it outlasts a reload, and ends with" in said
        assert status(service) == 429
        service.write_rules(MORE_RULES)
        service.wait_until(lambda: metric(service, "ratelimit_service_config_load_success") == "2", "it is reloaded")
        assert status(service) == 429
        assert "until" in commands.ok("bans", "shop")
        assert commands.ok("unban", "shop", "user=ada", "--at", f"localhost:{port}").startswith("no longer banned")
        assert status(service) == 200
        commands.ok("ban", "shop", "user=ada", "--for", "week", "--why", "spam")
        assert "banned: user=ada in domain shop until 2" in service.log
    with start_service(tmp_path / "again", RULES, {"DEBUG_PORT": str(port)}) as service:
        assert status(service) == 200
        assert commands.ok("bans") == "there are no bans\n"


SECRET = "hunter2-of-the-operator"
SECRET_RULES = """
domain: shop
descriptors:
  - {key: user, hash_values: true, rate_limit: {unit: year, requests_per_unit: 1000000}}
"""


def test_no_secret_value_reaches_redis_the_log_or_a_page_by_a_ban(redis: Redis, tmp_path: Path) -> None:
    environ = environ_of(redis, tmp_path, SECRET_RULES) | {"HASH_KEY": "k" * 40, "LOG_LEVEL": "debug"}
    with start_service(tmp_path / "service", SECRET_RULES, without_rules(environ)) as service:
        commands = Commands(**environ)
        said = commands.ok("ban", "shop", f"user={SECRET}", "--for", "1h", "--why", "spam")
        wait_for(service, 429, SECRET)
        said += commands.ok("bans") + commands.ok("bans", "--json")
        said += commands.ok("explain", "shop", f"user={SECRET}")
        said += ask(service.debug_port, "/bans").body + ask(service.debug_port, "/status").body + service.metrics()
        said += service.log + redis.cli("HGETALL", f"{tmp_path.name}:rl2|{{bans}}")
        digest = json.loads(commands.ok("bans", "--json"))["bans"][0]["entries"][0]["value"]

        assert "\nBut it is banned until " in said
        assert SECRET not in said
        assert status(service, digest) == 200
        commands.ok("unban", "shop", f"user={digest}")
        wait_for(service, 200, SECRET)
