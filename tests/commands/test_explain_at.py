"""`ratelimit explain --at` asks a running service, whose counters it charges nothing."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.ports import free_port
from tests.processes import Service, ask, start_service
from tests.redis import start_redis
from tests.transports.certificates import authority, issue

RULES = """\
domain: shop
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 10, name: base}
  - key: vip
    rate_limit: {unit: year, requests_per_unit: 50, replaces: [{name: base}]}
  - key: free
    rate_limit: {unlimited: true}
  - key: login
    rate_limit: {unit: year, requests_per_unit: 2, block_for: 2 years}
  - key: model
    rate_limit: {unit: year, requests_per_unit: 1000, algorithm: token_bucket}
    descriptors:
      - key: id
        rate_limit: {unit: year, requests_per_unit: 1000, reserve: {id: id, hold: 1 hour, estimate: 100}}
settle: settled
"""

ELSEWHERE = "the debug port is 6070 unless DEBUG_PORT says otherwise"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[Service]:
    with start_service(tmp_path_factory.mktemp("service"), RULES, {"TRANSPORT": transport}) as started:
        yield started


def explain(port: int, *arguments: str, host: str = "127.0.0.1") -> Result:
    return CliRunner().invoke(main, ["explain", *arguments, "--at", f"{host}:{port}"])


def now(result: Result) -> list[str]:
    """What is in the counters, without the times."""
    return [re.sub(r" in .*", " in …", line) for line in result.stdout.splitlines() if line.startswith("  now")]


def charge(service: Service, user: str, hits: int, key: str = "user") -> None:
    descriptor = {"entries": [{"key": key, "value": user}]}
    body = json.dumps({"domain": "shop", "descriptors": [descriptor], "hitsAddend": hits})
    assert ask(service.http_port, "/json", method="POST", body=body).status in {200, 429}


def test_counters_in_the_memory_of_the_service_are_shown(service: Service) -> None:
    charge(service, "ada", 4)
    charge(service, "full", 11)

    first = explain(service.debug_port, "shop", "user=ada", "+", "user=full", "+", "user=new", "+", "free=x")
    again = explain(service.debug_port, "shop", "user=ada", "+", "user=full", "+", "user=new", "+", "free=x")

    assert first.exit_code == 0
    assert now(first) == [
        "  now      6 of 10 left, untouched in …",
        "  now      11 of 10 used, untouched in …",
        "  now      10 of 10 left",
    ]
    assert now(again) == now(first)
    assert f"The rule at {service.rules}/rules.yaml:5:5 applies: 10 requests per year." in first.stdout


def settle(service: Service, cost: int, *entries: tuple[str, str]) -> None:
    described = {"entries": [{"key": key, "value": value} for key, value in (*entries, ("settled", "1"))]}
    body = json.dumps({"domain": "shop", "descriptors": [described | {"hitsAddend": str(cost)}]})
    assert ask(service.http_port, "/json", method="POST", body=body).status in {200, 429}


def test_what_is_owed_is_shown_as_used_above_the_limit(service: Service) -> None:
    settle(service, 1700, ("model", "large"))
    settle(service, 1300, ("model", "large"), ("id", "1"))

    found = explain(service.debug_port, "shop", "model=large", "+", "model=large", "id=x")

    assert now(found) == [
        "  now      1,700 of 1,000 used, untouched in …",
        "  now      1,300 of 1,000 used, untouched in …",
    ]


def test_a_block_in_the_memory_of_the_service_is_shown(service: Service) -> None:
    charge(service, "blocked", 3, key="login")

    found = explain(service.debug_port, "shop", "login=blocked", "+", "login=free")
    as_json = json.loads(explain(service.debug_port, "shop", "login=blocked", "--json").stdout)

    assert now(found) == ["  now      blocked for 730 d", "  now      2 of 2 left"]
    assert 63_000_000 < as_json["descriptors"][0]["rules"][0]["state"]["blocked_for"] <= 63_072_000


def test_a_look_is_in_no_count(service: Service) -> None:
    charge(service, "eve", 1)

    def counted() -> list[str]:
        return [line for line in service.metrics().splitlines() if line.startswith("ratelimit_service_")]

    before = counted()
    explain(service.debug_port, "shop", "user=nobody-else", "+", "user=eve", "--limit", "3/year")
    explain(service.debug_port, "shop", "user=nobody-else", "+", "free=x", "+", "vip=ada")
    explain(service.debug_port, "shopp", "user=eve")

    assert counted() == before


def test_what_is_replaced_has_no_state_and_a_limit_may_be_sent(service: Service) -> None:
    replaced = explain(service.debug_port, "shop", "user=ada", "+", "vip=ada")
    sent = explain(service.debug_port, "shop", "vip=bob", "--limit", "7/5 years")

    assert now(replaced) == ["  now      50 of 50 left"]
    assert "  replaced by the rule at " in replaced.stdout
    assert "applies in place of the rule at" in sent.stdout
    assert now(sent) == ["  now      7 of 7 left"]


def test_an_unknown_domain_has_exit_code_1_and_a_hint(service: Service) -> None:
    result = explain(service.debug_port, "shopp", "user=ada")

    assert result.exit_code == 1
    assert 'there is no domain "shopp"; did you mean shop?' in result.stdout


def test_the_explanation_comes_as_json(service: Service) -> None:
    found = json.loads(explain(service.debug_port, "shop", "vip=json", "--json").stdout)

    assert found["store"] == {"name": "memory", "problem": ""}
    state = found["descriptors"][0]["rules"][0]["state"]
    assert (state["remaining"], state["capacity"]) == (50, 50)


def test_a_wrong_port_is_told_in_one_line(service: Service) -> None:
    for port, reason in (
        (service.http_port, f"that is the HTTP port; {ELSEWHERE}"),
        (service.grpc_port, f"it speaks gRPC, not HTTP; {ELSEWHERE}"),
        (free_port(), "nothing listens there"),
    ):
        result = explain(port, "shop", "user=ada")

        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr == f"ratelimit: 127.0.0.1:{port}: {reason}\n"


def test_a_port_with_tls_is_told(tmp_path: Path) -> None:
    environ = issue(authority(tmp_path), "server", "IP:127.0.0.1").environ
    with start_service(tmp_path / "service", RULES, environ) as service:
        result = explain(service.grpc_port, "shop", "user=ada")

    assert result.exit_code == 3
    assert result.stderr.endswith(f"it speaks TLS: write https:// before it; {ELSEWHERE}\n")


@contextmanager
def answering(status: int, text: str) -> Iterator[int]:
    """Another program's HTTP port, where everything is answered so."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (
            404,
            "there is nothing at this path; there is\n\nGET /rlconfig: the rules in force\n",
            "that service is older than this command: it has no POST /explain",
        ),
        (404, "no", f"it answers 404 to POST /explain: that is not a debug port of this service; {ELSEWHERE}"),
        (200, "<html>", f"it answers 200 to POST /explain: that is not a debug port of this service; {ELSEWHERE}"),
        (200, "{}", f"it answers 200 to POST /explain: that is not a debug port of this service; {ELSEWHERE}"),
        (503, "no rate limit configuration loaded\n", "no rate limit configuration loaded"),
    ],
)
def test_an_older_service_and_other_programs_are_told_in_one_line(status: int, text: str, reason: str) -> None:
    with answering(status, text) as port:
        result = explain(port, "shop", "user=ada")

    assert result.exit_code == 3
    assert result.stderr == f"ratelimit: 127.0.0.1:{port}: {reason}\n"


def test_an_address_may_be_a_url_and_lack_the_port() -> None:
    result = CliRunner().invoke(main, ["explain", "shop", "a=b", "--at", "http://host.invalid/"])

    assert result.exit_code == 3
    assert result.stderr == "ratelimit: http://host.invalid/: the name host.invalid is not known\n"


def test_rules_of_here_and_of_a_service_at_once_are_bad_usage() -> None:
    result = CliRunner().invoke(main, ["explain", "shop", "a=b", "--at", "localhost", "--rules", "config"])

    assert result.exit_code == 2
    assert "--at asks a service for its own rules" in result.stderr


_LATE = 'ratelimit_rule_reservations_late_total{domain="shop",key1="model",key2="id"} 1'


@pytest.mark.parametrize("workers", ["1", "2"])
def test_counters_in_redis_are_shown_by_one_worker_or_several(tmp_path: Path, workers: str) -> None:
    with start_redis(tmp_path / "redis") as redis:
        environ = {
            "REDIS_URL": str(redis.socket),
            "WORKERS": workers,
            "TRANSPORT": "http2",
            "STORE_DEADLINE": "10s",  # looked at, not timed: a busy machine may take longer than the default
        }
        with start_service(tmp_path / "service", RULES, environ) as service:
            charge(service, "ada", 4)
            shown = explain(service.debug_port, "shop", "user=ada", "+", "vip=x")
            for number in (1, 2):
                entries = [{"key": "model", "value": "m"}, {"key": "id", "value": f"{number}"}]
                body = json.dumps({"domain": "shop", "descriptors": [{"entries": entries}]})
                ask(service.http_port, "/json", method="POST", body=body)
            settle(service, 150, ("model", "m"), ("id", "1"))
            settle(service, 30, ("model", "m"), ("id", "9"))
            service.wait_until(lambda: _LATE in service.metrics(), "all is reported")
            reserved = explain(service.debug_port, "shop", "model=m", "id=x").stdout
            rows = json.loads(explain(service.debug_port, "shop", "vip=x", "--json").stdout)
            redis.kill()
            service.wait_until(lambda: 'ratelimit_store_healthy{store="redis"} 0' in service.metrics(), "Redis is lost")
            lost = explain(service.debug_port, "shop", "vip=x")

    assert now(shown) == ["  now      50 of 50 left"]
    assert "  reserved 1 open with 100 units" in reserved
    settled = "p95 of 1 lately: 143, p50 143, the most 150; estimate 100: 100 % overran"
    assert f"  settled  {settled}; 1 late, of ids without a reservation\n" in reserved
    assert rows["store"] == {"name": "redis", "problem": ""}
    assert lost.exit_code == 0
    assert "  now      not known: no answer from the store: " in lost.stdout


TOKEN = "0123456789abcdef0123456789abcdef"


def test_a_service_that_needs_a_token_to_read_explains_with_it(tmp_path: Path) -> None:
    environ = {"ADMIN_TOKEN": TOKEN, "ADMIN_READ_NEEDS_TOKEN": "true"}
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with start_service(tmp_path, RULES, environ) as service:
        words = ["explain", "shop", "user=ada", "--at", f"127.0.0.1:{service.debug_port}"]
        without = CliRunner().invoke(main, words)
        wrong = CliRunner().invoke(main, words, env={"ADMIN_TOKEN": TOKEN[::-1]})
        right = CliRunner().invoke(main, words, env={"ADMIN_TOKEN": TOKEN})
        status = [CliRunner().invoke(main, ["status", words[-1]], env={"ADMIN_TOKEN": each}) for each in ("", TOKEN)]
        by_file = CliRunner().invoke(main, [*words, "--token-file", str(tmp_path / "token")], env={"ADMIN_TOKEN": "x"})

    assert [each.exit_code for each in (without, wrong, right, by_file)] == [3, 3, 0, 0]
    assert [each.exit_code for each in status] == [3, 0]
    assert "this needs the header Authorization: Bearer" in without.stderr
    assert "that is not the token of this service; set ADMIN_TOKEN as for the service" in wrong.stderr
    assert TOKEN[::-1] not in wrong.output
    assert "10 of 10 left" in right.stdout
    assert by_file.stdout == right.stdout
