"""A Redis that is gone, as callers and operators see it: answers say by which policy they are given, and why."""

import json
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.processes import ask, start_service

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: path
    rate_limit: {unit: year, requests_per_unit: 3, on_store_failure: closed}
  - key: free
    rate_limit: {unlimited: true}
  - key: banned
    rate_limit: {deny: true}
"""


def body(*keys: str) -> str:
    return json.dumps({"domain": "shop", "descriptors": [{"entries": [{"key": key, "value": "x"}]} for key in keys]})


@pytest.mark.parametrize("workers", ["1", "2"])
def test_json_and_metrics_say_by_which_policy_a_request_is_answered(tmp_path: Path, workers: str) -> None:
    environ = {"REDIS_URL": f"127.0.0.1:{free_port()}", "ON_STORE_FAILURE": "open", "WORKERS": workers}
    with start_service(tmp_path / "service", RULES, environ) as service:
        service.wait_until(lambda: service.log.count("store lost") == int(workers), "Redis is not there")

        open_, closed, free = (
            ask(service.http_port, "/json", method="POST", body=body(*keys))
            for keys in (["user"], ["user", "path"], ["free"])
        )
        service.wait_until(
            lambda: 'ratelimit_requests_total{domain="shop",outcome="policy_refused"} 1' in service.metrics(), "counted"
        )
        metrics = service.metrics()
        refusals = json.loads(ask(service.debug_port, "/status/refusals").body)["refusals"]

    assert [(one["entries"], one["words"]) for one in refusals] == [
        ([["path", "x"]], "closed, because: connection refused")
    ]
    assert (open_.status, open_.headers["x-ratelimit-by-policy"]) == (200, "open (connection refused)")
    assert closed.status == 429
    assert closed.headers["x-ratelimit-by-policy"] == "open (connection refused), closed (connection refused)"
    assert "x-ratelimit-by-policy" not in free.headers
    assert (
        'ratelimit_rule_policy_answers_total{domain="shop",key1="user",policy="open",outcome="allowed"} 2\n' in metrics
    )
    assert (
        'ratelimit_rule_policy_answers_total{domain="shop",key1="path",policy="closed",outcome="refused"} 1\n'
        in metrics
    )
    assert 'ratelimit_service_rate_limit_within_limit{domain="shop",key1="user"} 0\n' in metrics
    assert 'ratelimit_requests_total{domain="shop",outcome="policy_allowed"} 1\n' in metrics
    assert 'ratelimit_requests_total{domain="shop",outcome="allowed"} 1\n' in metrics


def test_what_a_rule_denies_always_is_refused_without_redis_too(tmp_path: Path) -> None:
    """Beside a limit whose request would end with an error."""
    environ = {"REDIS_URL": f"127.0.0.1:{free_port()}", "ON_STORE_FAILURE": "error"}
    with start_service(tmp_path / "service", RULES, environ) as service:
        service.wait_until(lambda: "store lost" in service.log, "Redis is not there")

        failed, refused, alone = (
            ask(service.http_port, "/json", method="POST", body=body(*keys))
            for keys in (["user"], ["user", "banned"], ["banned"])
        )

    assert (failed.status, refused.status, alone.status) == (503, 429, 429)
    assert refused.headers["x-ratelimit-by-policy"].startswith("error (")
    assert json.loads(refused.body)["overallCode"] == "OVER_LIMIT"
