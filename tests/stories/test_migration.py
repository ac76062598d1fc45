"""Replacing envoyproxy/ratelimit instance by instance: the real one and ours count on one Redis as one service.

It tags no releases; the version is the one that Go's proxy has. Its `quota_mode` is older than the one that we answer
like, and left out.
"""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, NamedTuple

import pytest

from tests.clocks import stay_within
from tests.envoyproxy import start_envoyproxy
from tests.processes import ask, start_service
from tests.redis import Redis, start_redis

RULES = """
domain: shop
descriptors:
  - {key: second, rate_limit: {unit: second, requests_per_unit: 7}}
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 7}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 7}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 7}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 7}}
  - {key: wild, value: "v*", rate_limit: {unit: hour, requests_per_unit: 7}}
  - key: group
    descriptors:
      - key: user
        value: ada
        rate_limit: {unit: hour, requests_per_unit: 7}
        descriptors:
          - {key: path, rate_limit: {unit: minute, requests_per_unit: 7}}
"""

THEIRS, OURS = 0, 1
JITTER = 1_000_000
"""Seconds: of so many hardly ever none are drawn, with which a key might expire before it is looked at."""
MIXED = (THEIRS, OURS, OURS, THEIRS, THEIRS, OURS, THEIRS, OURS, OURS, THEIRS)

SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}

fresh = (f"v{number}" for number in count())
"""Values that nobody has used."""


class Pair(NamedTuple):
    """Both services, and their Redises."""

    ports: tuple[int, int]
    redis: Redis
    per_second: Redis


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("migration")
    rules = folder / "root" / "config"
    rules.mkdir(parents=True)
    (rules / "rules.yaml").write_text(RULES, encoding="utf-8")
    with start_redis(folder / "redis") as redis, start_redis(folder / "per_second") as per_second:
        environ = {
            "REDIS_SOCKET_TYPE": "tcp",
            "REDIS_URL": f"127.0.0.1:{redis.port}",
            "REDIS_PERSECOND": "true",
            "REDIS_PERSECOND_SOCKET_TYPE": "tcp",
            "REDIS_PERSECOND_URL": f"127.0.0.1:{per_second.port}",
            "CACHE_KEY_PREFIX": "limits:",
            "EXPIRATION_JITTER_MAX_SECONDS": str(JITTER),
        }
        new = {"KEY_FORMAT": "envoyproxy", "STORE_DEADLINE": "5s"}
        with (
            start_envoyproxy(folder / "theirs", rules, environ) as theirs,
            start_service(folder / "ours", rules, environ | new) as ours,
        ):
            yield Pair((theirs.http_port, ours.http_port), redis, per_second)


def charge(port: int, cost: int, entries: Sequence[Sequence[str]]) -> dict[str, Any]:
    """One request; what it was answered, but for the time until the window ends."""
    descriptor = {"entries": [{"key": key, "value": value} for key, value in entries]}
    body = json.dumps({"domain": "shop", "descriptors": [descriptor], "hitsAddend": cost})
    reply = ask(port, "/json", method="POST", body=body)
    answer: dict[str, Any] = json.loads(reply.body)
    for status in answer["statuses"]:
        status.pop("durationUntilReset", None)
    return {"http": reply.status, **answer}


def in_one_window(
    ports: Sequence[int], unit: str, names: Sequence[str], costs: Sequence[int]
) -> tuple[str, list[dict[str, Any]]]:
    """A fresh counter, charged by one after the other within one window: a pattern of its name, and the answers."""
    while True:
        value = next(fresh)
        entries = [(name, "ada" if name == "user" else value) for name in names]
        begin = time.time() // SECONDS[unit]
        answers = [charge(port, cost, entries) for port, cost in zip(ports, costs, strict=True)]
        if time.time() // SECONDS[unit] == begin:
            return f"{value}*_{int(begin) * SECONDS[unit]}", answers


@pytest.mark.parametrize(
    ("costs", "total"),
    [([1] * 10, 10), ([3, 1, 2, 4, 1, 1, 0, 9, 1, 1], 24)],  # 0 is 1, for the sake of old clients
    ids=["ones", "several"],
)
@pytest.mark.parametrize(
    ("unit", "names"),
    [
        ("second", ["second"]),
        ("minute", ["minute"]),
        ("hour", ["hour"]),
        ("day", ["day"]),
        ("hour", ["shadow"]),
        ("hour", ["wild"]),
        ("hour", ["group", "user"]),
        ("minute", ["group", "user", "path"]),
    ],
    ids=lambda names: names if isinstance(names, str) else "-".join(names),
)
def test_counters_go_on_exactly_whoever_is_asked(
    pair: Pair, unit: str, names: list[str], costs: list[int], total: int
) -> None:
    _, theirs = in_one_window([pair.ports[THEIRS]] * 10, unit, names, costs)
    _, ours = in_one_window([pair.ports[OURS]] * 10, unit, names, costs)
    end, mixed = in_one_window([pair.ports[who] for who in MIXED], unit, names, costs)

    assert mixed == theirs
    assert ours == theirs
    assert any(status.get("limitRemaining", 0) == 0 for answer in theirs for status in answer["statuses"])
    redis = pair.per_second if unit == "second" else pair.redis
    (key,) = redis.cli("KEYS", f"limits:shop_{names[0]}_*{end}").split()
    assert int(redis.cli("GET", key)) == total
    assert 0 < int(redis.cli("TTL", key)) <= SECONDS[unit] + JITTER


def test_asked_both_at_once_they_admit_the_limit(pair: Pair) -> None:
    entries = [("day", next(fresh))]
    stay_within(SECONDS["day"])
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda port: charge(port, 1, entries), pair.ports * 100)]

    assert sum(answer["http"] == 200 for answer in answers) == 7
