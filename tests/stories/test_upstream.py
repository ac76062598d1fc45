"""Random rules and calls: envoyproxy/ratelimit and this service answer alike, each with counters of its own.

Limits are by the year, so nothing depends on when the calls come.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main
from ratelimit_service.errors import RulesError
from tests.books import book
from tests.clocks import stay_within
from tests.processes import ask, start_service
from tests.redis import start_redis
from tests.upstream import start_upstream

recent = pytest.mark.skipif(
    "UPSTREAM" not in os.environ,
    reason="the version that Go's proxy has is older than this: UPSTREAM=/path/to/its/program of 2026-04-19 or later",
)


class Pair(NamedTuple):
    """The HTTP ports of both services."""

    theirs: int
    ours: int

    def answers(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What each answers, but for the time until the window ends."""
        return _answer(self.theirs, request), _answer(self.ours, request)


def _answer(port: int, request: Mapping[str, Any]) -> dict[str, Any]:
    reply = ask(port, "/json", method="POST", body=json.dumps(request))
    answer: dict[str, Any] = json.loads(reply.body)
    for status in answer["statuses"]:
        status.pop("durationUntilReset", None)
    return {"http": reply.status, **answer}


@contextmanager
def start_pair(folder: Path, rules: str, environ: Mapping[str, str]) -> Iterator[Pair]:
    """Both with these rules, and with these settings."""
    config = folder / "root" / "config"
    config.mkdir(parents=True)
    (config / "rules.yaml").write_text(rules, encoding="utf-8")
    with start_redis(folder / "redis") as redis:
        where = {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{redis.port}"}
        with (
            start_upstream(folder / "theirs", config, {**where, **environ}) as theirs,
            start_service(folder / "ours", config, environ) as ours,
        ):
            yield Pair(theirs.http_port, ours.http_port)


def descriptor(*entries: tuple[str, str], **more: Any) -> dict[str, Any]:
    """As `/json` takes it."""
    return {"entries": [{"key": key, "value": value} for key, value in entries], **more}


def test_call_asks_a_service_that_gives_no_reasons(tmp_path: Path) -> None:
    config = tmp_path / "root" / "config"
    config.mkdir(parents=True)
    rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 5}}]\n"
    (config / "rules.yaml").write_text(rules, encoding="utf-8")
    with start_redis(tmp_path / "redis") as redis:
        where = {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{redis.port}"}
        with start_upstream(tmp_path / "theirs", config, where) as theirs:
            target = f"127.0.0.1:{theirs.grpc_port}"
            known, unknown = (
                CliRunner().invoke(main, ["call", target, domain, "user=ada"]).output for domain in ("shop", "shopp")
            )

    assert re.fullmatch(r"OK\n  user=ada: OK, limit 5 per year, 4 left, reset in [0-9]+ s\n", known)
    assert unknown == "OK\n  user=ada: OK, no limit applies, or there is no domain shopp\n"


MODES = """
domain: shop
descriptors:
  - {key: one, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: two, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: base, rate_limit: {unit: year, requests_per_unit: 1, name: base}}
  - {key: vip, rate_limit: {unit: year, requests_per_unit: 3, replaces: [{name: base}]}}
  - {key: open}
"""


@recent
@pytest.mark.parametrize("quota_mode", ["false", "true"])
def test_quotas_are_used_up_in_the_same_requests(tmp_path: Path, quota_mode: str) -> None:
    random = Random(13)  # noqa: S311 - the same every time
    keys = ["one", "two", "quota", "shadow", "free", "base", "vip", "open", "nothing"]
    refused = 0
    with start_pair(tmp_path, MODES, {"QUOTA_MODE": quota_mode}) as pair:
        for number in range(300):
            asked = [descriptor((key, f"v{number // 10}")) for key in random.choices(keys, k=random.randint(1, 3))]
            theirs, ours = pair.answers({"domain": "shop", "descriptors": asked})

            assert ours == theirs, asked
            refused += theirs["http"] == 429
    assert 20 < refused < 280


OVERRIDDEN = """
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 7}}
  - {key: plan, value: free, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: plan, value: "p*", rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: all, value: "*", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 30}}
  - {key: week, rate_limit: {unit: week, requests_per_unit: 5}}
  - {key: watched, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: open}
"""


def test_a_limit_sent_with_a_request_counts_with_the_rule_that_it_stands_for(tmp_path: Path) -> None:
    random = Random(13)  # noqa: S311 - the same every time
    keys = ["user", "plan", "all", "week", "watched", "open", "nothing"]
    refused = 0
    stay_within(86_400, 120)  # windows of weeks, months and years end at midnight
    with start_pair(tmp_path, OVERRIDDEN, {}) as pair:
        for number in range(400):
            key, value = random.choice(keys), random.choice(["free", "paid", f"v{number // 20}"])
            asked = descriptor((key, value))
            if random.random() < 0.4:
                asked["limit"] = {"requestsPerUnit": random.randint(0, 6), "unit": random.choice(["YEAR", "MONTH"])}
            theirs, ours = pair.answers(
                {"domain": "shop", "descriptors": [asked], "hitsAddend": random.choice([1, 1, 2])}
            )

            assert ours == theirs, (number, asked)
            refused += theirs["http"] == 429
    assert 40 < refused < 360


SCALARS = [
    "1", "-1", "+1", "0", "-0", "007", "08", "0x1F", "0o17", "0b11", "1_000", "18446744073709551615",
    "-9223372036854775808", "100000000000000000000", "1.5", "1.50", ".5", "5.", "1e3", "1e20", "1e21", "1.25e21",
    "123456789.125", "1e-4", "1e-5", "1.5e-7", "-2.5", "-0.0", "1e400", "yes", "n", "True", "off", "~", "null", "NULL",
    '""', '"1"', "'~'", "2024-01-31", "2024-01-31 10:00:00", "text", "a b", "12:30", "1.2.3", ".inf", "-.Inf", ".NaN",
    "!!str 1", "!!float 1", "ö", "<nil>", "false",
]  # fmt: skip
"""What YAML 1.1 reads as numbers, booleans, nothing, moments and texts."""


def some_metadata(random: Random, deep: int) -> str:
    """A map in braces."""
    fields = []
    for name in random.sample(SCALARS, random.randint(1, 4)):
        values = ["x", "7", "[1, {2: 3, yes: no}, [~: y]]"]
        value = random.choice(values) if random.random() < 0.5 or not deep else some_metadata(random, deep - 1)
        fields.append(f"? {name} : {value}")
    return "{" + ", ".join(fields) + "}"


@recent
def test_keys_of_metadata_that_are_no_text_become_the_same_names(tmp_path: Path) -> None:
    random = Random(13)  # noqa: S311 - the same every time
    drawn = (some_metadata(random, 3) for _ in range(400))
    texts = [text for text in drawn if _is_good(text)]
    rules = "domain: shop\ndescriptors:\n" + "".join(
        f"- key: k{number}\n  rate_limit: {{unit: year, requests_per_unit: 9}}\n  metadata: {text}\n"
        for number, text in enumerate(texts)
    )
    with start_pair(tmp_path, rules, {"RESPONSE_DYNAMIC_METADATA": "true"}) as pair:
        for number, text in enumerate(texts):
            theirs, ours = pair.answers({"domain": "shop", "descriptors": [descriptor((f"k{number}", "v"))]})

            assert theirs["dynamicMetadata"]["metadata"], text
            assert ours["dynamicMetadata"]["metadata"] == theirs["dynamicMetadata"]["metadata"], text
    assert len(texts) > 200


def _is_good(metadata: str) -> bool:
    """Some names come out alike: here that is an error, and there chance decides which of them counts."""
    try:
        book(f"domain: d\ndescriptors:\n- key: a\n  metadata: {metadata}\n")
    except RulesError:
        return False
    return True
