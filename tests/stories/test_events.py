"""The past of a service, and of one with workers: what happened to it, with begin, end, cause and who did it."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main
from tests.processes import Service, ask
from tests.redis import start_redis
from tests.workers.pool import RULES, start_pool

KEY: Final = "0123456789abcdef0123456789abcdef"
SECRET: Final = """\
domain: keys
descriptors: [{key: api_key, hash_values: true, rate_limit: {unit: day, requests_per_unit: 1}}]
"""
TYPO: Final = "domain: shop\ndescriptors: [{key: user, unti: 1}]\n"
BAN: Final = {
    "domain": "keys",
    "entries": [{"key": "api_key", "value": "hunter2"}],
    "for": "1h",
    "why": "no",
    "who": "me",
}


def past(service: Service) -> dict[str, list[dict[str, Any]]]:
    """The events by kind, the newest first."""
    reply = ask(service.debug_port, "/status/past")
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = json.loads(reply.body)["events"]
    assert sorted(found, key=lambda event: -event["from"]) == found
    assert "hunter2" not in json.dumps(found)
    return {kind: [event for event in found if event["kind"] == kind] for kind in {event["kind"] for event in found}}


def wait_for(service: Service, text: str, times: int = 1) -> None:
    """Wait until the log has a text, which each worker logs if several do."""
    service.wait_until(lambda: service.log.count(text) >= times, f"the log has {text}")


def run(environ: Mapping[str, str], *words: str) -> None:
    done = CliRunner().invoke(main, words, env=environ)
    assert done.exit_code == 0, done.output


def check_meanwhile(meanwhile: Mapping[str, list[dict[str, Any]]], rules: Path) -> None:
    """What was made and ended before the outage."""
    # Both were perhaps made within a second, and workers find them in any order.
    by_command, by_http = sorted(meanwhile["ban"], key=lambda ban: "user=ada" not in ban["what"])
    assert by_command["what"].startswith("banned: user=ada in domain shop until ")
    assert by_command["until"] >= by_command["from"]
    assert by_command["details"][0].startswith("lifted by ")
    assert (by_http["who"], by_http["until"]) == ("me from 127.0.0.1", None)
    refused, first = meanwhile["reload"]
    assert first["what"].startswith(f"rules loaded from {rules}: 2 rules in 2 domains")
    assert (refused["what"], refused["until"]) == ("rules not loaded, the old rules stay", None)
    assert [detail.startswith(f"{rules}/rules.yaml:2:27: ") for detail in refused["details"]] == [True]


def check_after(
    after: Mapping[str, list[dict[str, Any]]], meanwhile: Mapping[str, list[dict[str, Any]]], killed: int
) -> None:
    """What lasted and is over, acts, and the worker that was killed."""
    (lost,) = meanwhile["outage"]
    assert lost["what"].startswith("store lost: Redis at 127.0.0.1:")
    assert lost["until"] is None
    (over,) = after["outage"]
    assert (over["from"], over["what"]) == (lost["from"], lost["what"])
    assert over["until"] > over["from"]
    assert over["details"][-1].startswith("store regained: Redis at ")
    mended = next(event for event in after["reload"] if event["details"] == meanwhile["reload"][0]["details"])
    assert mended["until"] > mended["from"]
    assert [act["who"] for act in after["act"]] == ["SIGHUP", "127.0.0.1", "eve from 127.0.0.1"]
    dead = [event["what"].partition(" by SIGKILL")[0] for event in after.get("worker", [])]
    assert dead == ([f"worker 2 with pid {killed} was killed"] if killed else [])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_past_has_what_happened_and_who_did_it(tmp_path: Path, workers: int) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "rules.yaml").write_text(RULES)
    (rules / "keys.yaml").write_text(SECRET)
    with start_pool(tmp_path, workers, {"HASH_KEY": KEY, "DRAIN_SECONDS": "60"}, rules) as pool:
        service, redis = pool.service, pool.redis
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}", "RULES_PATH": str(rules), "HASH_KEY": KEY}

        headers = {"Content-Type": "application/json"}
        assert ask(service.debug_port, "/bans", headers, method="POST", body=json.dumps(BAN)).status == 200
        run(environ, "ban", "shop", "user=ada", "--for", "1h", "--why", "noisy")
        wait_for(service, " banned: user=ada", workers)
        run(environ, "unban", "shop", "user=ada")
        wait_for(service, "no longer banned: user=ada", workers)
        reset = '{"domain": "shop", "entries": [{"key": "user", "value": "ada"}], "who": "eve"}'
        assert ask(service.debug_port, "/counters/reset", headers, method="POST", body=reset).status == 200
        service.write_rules(TYPO)
        wait_for(service, "rules not loaded")
        redis.stop()
        wait_for(service, "store lost", workers)
        meanwhile = past(service)
        check_meanwhile(meanwhile, rules)

        service.write_rules(RULES)
        wait_for(service, "rules loaded from", 2)
        assert ask(service.debug_port, "/reload", method="POST", body="").status == 202
        wait_for(service, "rules loaded from", 3)
        os.kill(service.pid, signal.SIGHUP)
        wait_for(service, "rules loaded from", 4)
        with start_redis(tmp_path / "again", port=redis.port):
            wait_for(service, "store regained", workers)
            killed = pool.pids[workers] if workers > 1 else 0
            if killed:
                os.kill(killed, signal.SIGKILL)
                pool.wait_for_another(workers, killed)
            after = past(service)
            service.send(signal.SIGTERM)
            wait_for(service, "draining")
            draining = past(service)
            service.kill()

    check_after(after, meanwhile, killed)
    assert [(event["what"][:9], event["until"]) for event in draining["drain"]] == [("draining:", None)]
