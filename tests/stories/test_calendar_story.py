"""Quotas by a calendar in a service as it runs: instances and workers count together, and the tools show the window."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main
from tests.processes import Service, ask, start_service
from tests.redis import Redis, start_redis

RULES = """
domain: shop
descriptors:
  - key: quota
    rate_limit: {calendar: {unit: year, zone: Europe/Berlin}, requests_per_unit: 10, count_refused: false}
  - key: plain
    rate_limit: {unit: year, requests_per_unit: 10}
"""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    with start_redis(tmp_path / "redis") as redis:
        yield redis


def left(service: Service, key: str) -> int:
    """What remains after one more hit; -1 when it is refused."""
    descriptor = {"entries": [{"key": key, "value": "ada"}]}
    answer = ask(
        service.http_port, "/json", method="POST", body=json.dumps({"domain": "shop", "descriptors": [descriptor]})
    )
    [status] = json.loads(answer.body)["statuses"]
    return int(status.get("limitRemaining", 0)) if answer.status == 200 else -1


@pytest.mark.parametrize("key_format", ["own", "envoyproxy"])
def test_instances_and_workers_count_one_quota_and_the_tools_show_its_window(
    tmp_path: Path, redis: Redis, key_format: str
) -> None:
    """In envoyproxy's format too it has a counter of our own, since envoyproxy has no such windows."""
    settings = {
        "BACKEND_TYPE": "redis",
        "REDIS_URL": str(redis.socket),
        "REDIS_SOCKET_TYPE": "unix",
        "KEY_FORMAT": key_format,
        "STORE_DEADLINE": "10s",
    }
    with (
        start_service(tmp_path / "one", RULES, {**settings, "WORKERS": "2"}) as one,
        start_service(tmp_path / "other", RULES, settings) as other,
    ):
        counted = [left(service, "quota") for _ in range(6) for service in (one, other)]
        left(one, "plain")
        rules = str(tmp_path / "one" / "rules")
        shown, explained = (
            CliRunner().invoke(main, [verb, "shop", "quota=ada", "--json", "--rules", rules], env=settings)
            for verb in ("counters", "explain")
        )

    assert counted == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, -1, -1]
    [counter] = json.loads(shown.stdout)["counters"]
    assert counter["key"] == "rl2|shop|quota=ada|fixed_window/31536000000000/year/01-01/Europe/Berlin"
    assert (counter["used"], counter["limit"]) == (10, "10 requests per calendar year, Europe/Berlin")
    [rule] = json.loads(explained.stdout)["descriptors"][0]["rules"]
    assert rule["window"]["begins"].endswith("-01-01 00:00:00+01:00")
    assert rule["state"]["remaining"] == 0
