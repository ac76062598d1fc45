"""`ratelimit status` tells whether a running service is well, by its exit code too."""

import json
import re
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.ports import free_port
from tests.processes import ask, start_service
from tests.redis import start_redis

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 2}}]\n"
BODY = json.dumps({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]})


def status(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ["status", *words], env=environ)


def test_a_healthy_service_has_exit_code_0_and_names_what_no_rule_limits(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        for _ in range(3):
            ask(service.http_port, "/json", method="POST", body=BODY)
        for body in (BODY.replace("shop", "web"), BODY.replace("user", "login")):
            ask(service.http_port, "/json", method="POST", body=body)
        ban = {"domain": "shop", "entries": [{"key": "user", "value": "eve"}], "for": "1h", "why": "x", "who": "x"}
        assert ask(service.debug_port, "/bans", method="POST", body=json.dumps(ban)).status == 200
        shown = status(DEBUG_PORT=str(service.debug_port))
        as_json = json.loads(status("--at", f"localhost:{service.debug_port}", "--json").stdout)

    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0
    assert lines[0].startswith(f"http://localhost:{service.debug_port}: version ")
    assert lines[1:3] == ["health   serving", "store    memory, healthy, 1 counter"]
    version = as_json["rules_version"]
    assert lines[3] == f"rules    1 rule in 1 domain, version {version}, from {service.rules}"
    assert re.fullmatch(r"loaded   .* ago; 1 load, 0 refused", lines[4])
    assert lines[5] == "calls    5, 0 answered by policy; errors: 0 of the store, 0 of the service"
    assert lines[6].startswith("no rule  2 requests since the start, domains without rules: web (1), descriptors ")
    assert lines[6].endswith(" that match no rule: shop › login (1)")
    assert lines[7:] == ["bans     1"]
    assert (as_json["healthy"], as_json["rules"], as_json["calls"]["total"]) == (True, 1, 5)
    assert re.fullmatch("[0-9a-f]{12}", version)


def test_queues_and_places_have_a_line(tmp_path: Path) -> None:
    rules = """
        domain: shop
        descriptors:
          - key: user
            rate_limit: {algorithm: leaky_bucket, unit: minute, requests_per_unit: 2, queue: {max_delay: 50s}}
          - {key: id, rate_limit: {concurrency: 5, hold: 60s, place: id}}
    """
    with start_service(tmp_path, dedent(rules)) as service:
        for number in range(3):
            ask(service.http_port, "/json", method="POST", body=BODY.replace("user", "id").replace("ada", str(number)))
        before = status(f"localhost:{service.debug_port}").stdout.splitlines()
        ask(service.http_port, "/json", method="POST", body=BODY)
        with closing(HTTPConnection("127.0.0.1", service.http_port)) as waiting:
            waiting.request("POST", "/json", BODY)

            def shown() -> list[str]:
                return status(f"localhost:{service.debug_port}").stdout.splitlines()

            service.wait_until(lambda: "queues   1 request waiting; turns were up to " in shown()[-2], "one waits")
            gauges = json.loads(status(f"localhost:{service.debug_port}", "--json").stdout)["gauges"]

    assert before[-1] == "places   up to 3 of one counter taken lately"
    assert not any(line.startswith("queues") for line in before)
    assert (gauges["waiting"], gauges["places_taken"]) == (1, 3)


def test_rules_that_could_not_be_loaded_are_told_with_exit_code_1(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        before = json.loads(status(f"localhost:{service.debug_port}", "--json").stdout)
        wrong = "domain: shop\ndescriptors:\n" + "  - {kye: a}\n" * 7
        service.write_rules(wrong)
        service.wait_until(lambda: "kye" in ask(service.debug_port, "/status").body, "the mistake is noticed")
        shown = status(f"localhost:{service.debug_port}")
        after = json.loads(status(f"localhost:{service.debug_port}", "--json").stdout)
        service.write_rules(RULES.replace("2", "3"))
        service.wait_until(lambda: "3 per year" in ask(service.debug_port, "/status").body, "the rules are loaded")
        mended = status(f"localhost:{service.debug_port}")
        new = json.loads(status(f"localhost:{service.debug_port}", "--json").stdout)

    assert shown.exit_code == 1
    assert "health   serving, something is wrong\n" in shown.stdout
    assert "The newest rules could not be loaded, for " in shown.stdout
    assert "  meanwhile  the old ones stay in force\n" in shown.stdout
    assert f"  {service.rules}/rules.yaml:3:6: " in shown.stdout
    assert re.search(r"^  and \d+ more$", shown.stdout, re.MULTILINE)
    assert after["healthy"] is False
    assert after["rules_version"] == before["rules_version"] != new["rules_version"]
    assert mended.exit_code == 0


def test_a_lost_redis_and_workers_are_told(tmp_path: Path) -> None:
    with start_redis(tmp_path / "redis") as redis:
        environ = {"REDIS_URL": str(redis.socket), "WORKERS": "2", "TRANSPORT": "http2", "STORE_DEADLINE": "10s"}
        with start_service(tmp_path / "service", RULES, environ) as service:
            url = f"localhost:{service.debug_port}"
            service.wait_until(lambda: " in its database" in status(url).stdout, "the keys are counted")
            well = status(url)
            redis.kill()
            service.wait_until(lambda: 'ratelimit_store_healthy{store="redis"} 0' in service.metrics(), "Redis is lost")
            lost = status(url)

    assert well.exit_code == 0
    assert re.search(r"^workers  2 of 2 ready \(pid \d+, \d+\), 0 connections$", well.stdout, re.MULTILINE)
    assert re.search(r"^store    redis, healthy, \d keys? in its database$", well.stdout, re.MULTILINE)
    assert lost.exit_code == 1
    assert "store    redis, not healthy" in lost.stdout
    assert f"Redis at unix:{redis.socket} is lost, for " in lost.stdout


def test_what_is_no_operators_port_has_exit_code_3(tmp_path: Path) -> None:
    free = free_port()
    with start_service(tmp_path, RULES) as service:
        for url, why in (
            (f"localhost:{free}", "nothing listens there"),
            (f"localhost:{service.http_port}", "that is the HTTP port; the debug port is 6070 unless DEBUG_PORT says"),
            (f"localhost:{service.grpc_port}", "it speaks gRPC, not HTTP; the debug port is 6070 unless"),
            ("http://host.invalid", "the name host.invalid is not known"),
        ):
            result = status(url)

            assert (result.exit_code, result.stdout) == (3, "")
            assert result.stderr.startswith(f"ratelimit: {url if '://' in url else f'http://{url}'}: {why}")


@pytest.mark.parametrize("url", ["limits..internal:6070", "http://[::1:6070", "http://a b:6070", "localhost:99999"])
def test_what_is_no_url_is_told(url: str) -> None:
    shown = status(url)

    assert shown.exit_code == 3
    assert shown.stderr.endswith(": not a URL such as http://localhost:6070\n")
