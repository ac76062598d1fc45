"""Elastic limits through running services: what operators and callers see of loans, and two instances on one Redis."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main
from tests.processes import Reply, Service, ask, start_service
from tests.redis import Redis, start_redis

RULES = """\
domain: shop
headers: [ietf, x_ratelimit]
pools:
  - {name: checkout, unit: year, requests_per_unit: 1000, burst: 100}
descriptors:
  - key: tenant
    rate_limit: {unit: year, requests_per_unit: 20, elastic: {pool: checkout, ceiling: 300%}}
"""
"""Within a year the pool gets next to nothing back: its level is the sum of all that was admitted."""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with start_redis(tmp_path_factory.mktemp("redis")) as redis:
        yield redis


@pytest.fixture(scope="module", params=["memory", "redis"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, redis: Redis
) -> Iterator[Service]:
    """One that has lent: `loud` has 60, 40 of them on loan, `quiet` its right of 20 of a pool that has 20 left."""
    environ = {} if request.param == "memory" else {"REDIS_URL": str(redis.socket), "CACHE_KEY_PREFIX": "one:"}
    with start_service(tmp_path_factory.mktemp("service"), RULES, environ) as started:
        allowed = [call(started, "loud") for _ in range(60)]
        assert {reply.status for reply in allowed} == {200}
        assert not any("X-RateLimit-Exceeded" in reply.body for reply in allowed)
        assert call(started, "loud").status == 429
        assert call(started, "quiet", 20).status == 200
        yield started


def call(service: Service, tenant: str, hits: int = 1) -> Reply:
    body = {"domain": "shop", "descriptors": [{"entries": [{"key": "tenant", "value": tenant}]}], "hitsAddend": hits}
    return ask(service.http_port, "/json", method="POST", body=json.dumps(body))


def test_a_tenants_status_counts_down_its_right_and_headers_have_its_ceiling(service: Service) -> None:
    found = json.loads(call(service, "loud").body)
    headers = {each["key"]: each["value"] for each in found["responseHeadersToAdd"]}

    assert found["overallCode"] == "OVER_LIMIT"
    status = found["statuses"][0]
    assert status["currentLimit"] == {"requestsPerUnit": 20, "unit": "YEAR"}
    assert "limitRemaining" not in status
    assert headers["RateLimit-Policy"] == '"tenant";q=20;w=31536000, "tenant ceiling";q=60;w=31536000'
    assert headers["RateLimit"].startswith('"tenant";r=0;t=')
    assert headers["X-RateLimit-Limit"] == '20, 20;w=31536000, 60;w=31536000;name="ceiling"'
    assert headers["X-RateLimit-Remaining"] == "0"


def test_what_was_by_right_and_on_loan_is_counted(service: Service) -> None:
    call(service, "loud")
    metrics = ask(service.debug_port, "/metrics").body
    counts = dict(
        re.findall(
            r'^ratelimit_elastic_total\{domain="shop",key1="tenant",outcome="(\w+)"\} (\d+)$', metrics, re.MULTILINE
        )
    )
    [rule] = [each for each in json.loads(ask(service.debug_port, "/status").body)["rules"] if each["domain"] == "shop"]

    assert (counts["by_right"], counts["on_loan"]) == ("40", "40")
    assert rule["on_loan"] == 40
    assert 'ratelimit_rule_on_loan{domain="shop",key1="tenant"} 40\n' in metrics
    assert int(counts["refused"]) >= 1
    assert (rule["within"], rule["exceeded"]) == (40, 40)
    assert rule["options"] == [
        "sub windows",
        "10 parts",
        "up to 60 on loan from pool checkout of 1,000 per year with burst 100",
    ]


def test_explain_tells_what_a_tenant_has_on_loan_and_what_the_pool_has(service: Service) -> None:
    asked = ["explain", "shop", "tenant=loud", "+", "tenant=new", "--at", f"127.0.0.1:{service.debug_port}"]

    text = CliRunner().invoke(main, asked).stdout
    found: Any = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)
    rules = [each["rules"][0] for each in found["descriptors"]]

    assert "  now      0 of 20 left, 40 on loan, untouched in " in text
    assert text.count("  pool     checkout, shop|checkout|pool/31536000000000: 20 of 100 left, 20 to lend\n") == 2
    assert [rule["state"]["on_loan"] for rule in rules] == [40, 0]
    assert rules[0]["elastic"] == {
        "ceiling": 60,
        "strict": False,
        "pool": {
            "name": "checkout",
            "requests_per_unit": 1000,
            "burst": 100,
            "reserve": 0,
            "counter": "shop|checkout|pool/31536000000000",
        },
    }


def test_counters_and_explain_see_the_pool_in_redis(tmp_path: Path, redis: Redis) -> None:
    rules = tmp_path / "shop.yaml"
    rules.write_text(RULES)
    environ = {"REDIS_URL": str(redis.socket), "CACHE_KEY_PREFIX": "seen:", "RULES_PATH": str(rules)}
    with start_service(tmp_path, RULES, environ) as service:
        for tenant in ("a", "b", "c", "d", "e", "f"):
            call(service, tenant, 20)

    def shown(*arguments: str) -> str:
        done = CliRunner().invoke(main, [*arguments], env=environ)
        assert done.exit_code == 0, done.output
        return done.stdout

    table = re.sub(r"  +", "  ", shown("counters", "shop"))
    print(table)
    row = r"^120 of 100  0  .*  token bucket  shop\.pool checkout  \(pool checkout\)$"
    assert re.search(row, table, re.MULTILINE), table
    assert "7 counters" in table
    assert "6 counters" in shown("counters", "shop", "--rule", "tenant")
    [pool] = [each for each in json.loads(shown("counters", "shop", "--json"))["counters"] if "pool" in each["key"]]
    assert (pool["used"], pool["remaining"], pool["capacity"], pool["limit"]) == (
        120,
        0,
        100,
        "1,000 requests per year",
    )
    explained = shown("explain", "shop", "tenant=a")
    assert "  now      0 of 20 left, untouched in " in explained
    assert ": 20 in debt, until it is paid nothing is lent\n" in explained
    assert "7 counters of domain shop reset" in shown("counters", "shop", "--reset", "--yes")
    assert "100 of 100 left, 100 to lend" in shown("explain", "shop", "tenant=a")


def test_two_instances_with_many_callers_admit_exactly_what_a_strict_pool_has(tmp_path: Path, redis: Redis) -> None:
    tenants = [f"t{number}" for number in range(5)]
    rules = RULES.replace("300%", "300%, strict: true")
    environ = {"REDIS_URL": str(redis.socket), "CACHE_KEY_PREFIX": "many:"}
    with ExitStack() as stack:
        services = [
            stack.enter_context(start_service(tmp_path / str(number), rules, environ | {"WORKERS": str(number + 1)}))
            for number in range(2)
        ]
        callers = stack.enter_context(ThreadPoolExecutor(16))

        def one(number: int) -> tuple[str, bool]:
            tenant = tenants[number % 5]
            return tenant, call(services[number // 5 % 2], tenant).status == 200

        answers = [*callers.map(one, range(500))]

    admitted = {tenant: sum(allowed for who, allowed in answers if who == tenant) for tenant in tenants}
    assert sum(admitted.values()) == 100
    assert all(count <= 60 for count in admitted.values())
