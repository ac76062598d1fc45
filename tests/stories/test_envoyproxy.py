"""Random rules and calls: envoyproxy/ratelimit and this service answer alike, each with counters of its own.

Limits are by the year, or each counter is used once, so nothing depends on when the calls come.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import grpc
import pytest
from click.testing import CliRunner

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from ratelimit_service.api.generated.envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit
from ratelimit_service.api.ratelimit import ShouldRateLimit
from ratelimit_service.cli import main
from ratelimit_service.errors import RulesError
from ratelimit_service.model import Unit
from ratelimit_service.system.clock import SECOND
from tests.books import book
from tests.clocks import stay_within
from tests.envoyproxy import Envoyproxy, start_envoyproxy
from tests.processes import Service, ask, start_service
from tests.redis import start_redis

recent = pytest.mark.skipif(
    "ENVOYPROXY" not in os.environ,
    reason="the version that Go's proxy has is older than this: ENVOYPROXY=/path/to/its/program of 2026-04-19 or later",
)


class Pair(NamedTuple):
    """Both services, and what calls them by gRPC."""

    theirs: Envoyproxy
    ours: Service
    call_theirs: Callable[[bytes], RateLimitResponse]
    call_ours: Callable[[bytes], RateLimitResponse]
    leased: Service | None = None
    """Another one of ours, which leases from a Redis."""
    call_leased: Callable[[bytes], RateLimitResponse] | None = None

    def answers(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What each answers, but for the time until the window ends."""
        return _answer(self.theirs.http_port, request), _answer(self.ours.http_port, request)

    def response(self, request: RateLimitRequest) -> RateLimitResponse:
        """The response of both, which must be the same in every field; the times until windows end within a second."""
        body = request.SerializeToString()
        theirs = self.call_theirs(body)
        their_waits = _take_waits(theirs)
        _take_accidents(theirs)
        for call in filter(None, (self.call_ours, self.call_leased)):
            ours = call(body)
            our_waits = _take_waits(ours)
            assert ours == theirs, request
            for status, their_wait, our_wait in zip(ours.statuses, their_waits, our_waits, strict=True):
                window = _window(status)  # a second, or a window's end, may have come between the two
                assert (our_wait - their_wait) % window in {0, 1, window - 1}, request
        return theirs


def _take_waits(response: RateLimitResponse) -> list[int]:
    """The seconds until windows end, which become 0 in the response where there are any."""
    waits = [status.duration_until_reset.seconds for status in response.statuses]
    for status in response.statuses:
        if status.HasField("duration_until_reset"):
            status.duration_until_reset.seconds = 0
    if response.response_headers_to_add:
        reset = response.response_headers_to_add[2]
        # Theirs reads the clock once more for the header.
        found = zip(response.statuses, waits, strict=True)
        assert any((wait - int(reset.value)) % _window(status) in {0, 1} for status, wait in found)
        reset.value = ""
    return waits


def _take_accidents(response: RateLimitResponse) -> None:
    """Take out of a response of theirs what is of one version, or of chance."""
    fields = response.dynamic_metadata.fields
    fields.pop("quotaModeEnabled", None)
    for described in fields["descriptors"].list_value.values:
        if "limit" in described.struct_value.fields:  # as Go's protobuf prints it, with a space too many at random
            limit = described.struct_value.fields["limit"]
            limit.string_value = " ".join(limit.string_value.split())


def _window(status: RateLimitResponse.DescriptorStatus) -> int:
    """In seconds; of no window, any."""
    unit = status.current_limit.unit
    return Unit(unit).window // SECOND if unit else 60


def _answer(port: int, request: Mapping[str, Any]) -> dict[str, Any]:
    reply = ask(port, "/json", method="POST", body=json.dumps(request))
    answer: dict[str, Any] = json.loads(reply.body)
    for status in answer["statuses"]:
        status.pop("durationUntilReset", None)
    return {"http": reply.status, **answer}


@contextmanager
def start_pair(folder: Path, environ: Mapping[str, str], *rules: str) -> Iterator[Pair]:
    """Both with these files of rules, and with these settings."""
    config = folder / "root" / "config"
    config.mkdir(parents=True)
    for number, text in enumerate(rules):
        (config / f"{number}.yaml").write_text(text, encoding="utf-8")
    with start_redis(folder / "redis") as redis:
        where = {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{redis.port}"}
        with (
            start_envoyproxy(folder / "theirs", config, {**where, **environ}) as theirs,
            start_service(folder / "ours", config, environ) as ours,
            grpc.insecure_channel(f"127.0.0.1:{theirs.grpc_port}") as to_theirs,
            grpc.insecure_channel(f"127.0.0.1:{ours.grpc_port}") as to_ours,
        ):
            yield Pair(theirs, ours, _method(to_theirs), _method(to_ours))


def _method(channel: grpc.Channel) -> Callable[[bytes], RateLimitResponse]:
    call = channel.unary_unary(ShouldRateLimit.path, bytes, RateLimitResponse.FromString)
    return partial(call, timeout=60)


def descriptor(*entries: tuple[str, str], **more: Any) -> dict[str, Any]:
    """As `/json` takes it."""
    return {"entries": [{"key": key, "value": value} for key, value in entries], **more}


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
    with start_pair(tmp_path, {"QUOTA_MODE": quota_mode}, MODES) as pair:
        for number in range(300):
            asked = [descriptor((key, f"v{number // 10}")) for key in random.choices(keys, k=random.randint(1, 3))]
            theirs, ours = pair.answers({"domain": "shop", "descriptors": asked})

            assert ours == theirs, asked
            refused += theirs["http"] == 429
    assert 20 < refused < 280


CALLED = "domain: called\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 5}}]\n"

OVERRIDDEN = """
domain: overridden
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 7}}
  - {key: plan, value: free, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: plan, value: "p*", rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: all, value: "*", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 30}}
  - {key: week, rate_limit: {unit: week, requests_per_unit: 5}}
  - {key: watched, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: open}
"""

WHOLE = """
domain: whole
descriptors:
  - {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: one, rate_limit: {unit: year, requests_per_unit: 1, name: only}}
  - {key: ten, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: most, rate_limit: {unit: year, requests_per_unit: 4294967295}}
  - {key: hot, rate_limit: {unit: year, requests_per_unit: 2000}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: no_shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: base, rate_limit: {unit: year, requests_per_unit: 2, name: base}}
  - {key: vip, rate_limit: {unit: year, requests_per_unit: 3, replaces: [{name: base}]}}
  - {key: open}
  - {key: second, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: week, rate_limit: {unit: week, requests_per_unit: 5}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 5}}
"""
RECENT = """
  - {key: quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {plan: {quota: 1}}}
  - {key: no_quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 0}, metadata: {plan: none}}
  - {key: told, rate_limit: {unit: year, requests_per_unit: 4}, metadata: {told: [1, yes, {a: b}], plan: other}}
"""
"""What only a recent version of theirs knows."""

UNITS = ("second", "minute", "hour", "day", "week", "month")
KEYS = (
    "none",
    "one",
    "ten",
    "most",
    "hot",
    "hot",
    "hot",
    "shadow",
    "no_shadow",
    "free",
    "base",
    "vip",
    "open",
    "nothing",
    *UNITS,
)
RECENT_KEYS = ("quota", "no_quota", "told")
COSTS = (None, None, None, 0, 1, 2, 3, 5, 9, 10, 11, 300, 1_000_000, 2**32 - 1, 2**32, 10**12, 2**53)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """With all that they add to an answer."""
    environ = {"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "RESPONSE_DYNAMIC_METADATA": "true"}
    whole = WHOLE + RECENT if "ENVOYPROXY" in os.environ else WHOLE
    folder = tmp_path_factory.mktemp("pair")
    with (
        start_pair(folder, environ, CALLED, OVERRIDDEN, whole) as pair,
        start_redis(folder / "redis of leases") as redis,
        start_service(
            folder / "leased",
            folder / "root" / "config",
            {**environ, "REDIS_URL": f"127.0.0.1:{redis.port}", "LEASES": "auto", "STORE_DEADLINE": "10s"},
        ) as leased,
        grpc.insecure_channel(f"127.0.0.1:{leased.grpc_port}") as channel,
    ):
        yield pair._replace(leased=leased, call_leased=_method(channel))


def test_call_asks_a_service_that_gives_no_reasons(pair: Pair) -> None:
    target = f"127.0.0.1:{pair.theirs.grpc_port}"
    known, unknown = (
        CliRunner().invoke(main, ["call", target, domain, "user=ada"]).output for domain in ("called", "shopp")
    )

    assert re.match(r"OK\n  user=ada: OK, limit 5 per year, 4 left, reset in [0-9]+ s\n", known)
    assert unknown.startswith("OK\n  user=ada: OK, no limit applies, or there is no domain shopp\n")


def test_a_limit_sent_with_a_request_counts_with_the_rule_that_it_stands_for(pair: Pair) -> None:
    random = Random(13)  # noqa: S311 - the same every time
    keys = ["user", "plan", "all", "week", "watched", "open", "nothing"]
    refused = 0
    stay_within(86_400, 120)  # windows of weeks, months and years end at midnight
    for number in range(400):
        request = RateLimitRequest(domain="overridden", hits_addend=random.choice([1, 1, 2]))
        asked = request.descriptors.add()
        asked.entries.add(key=random.choice(keys), value=random.choice(["free", "paid", f"v{number // 20}"]))
        if random.random() < 0.4:
            asked.limit.requests_per_unit = random.randint(0, 6)
            asked.limit.unit = RateLimitUnit.Value(random.choice(["YEAR", "MONTH"]))
        refused += pair.response(request).overall_code == RateLimitResponse.OVER_LIMIT
    assert 40 < refused < 360


def test_a_whole_response_is_envoyproxys(pair: Pair) -> None:
    random = Random(13)  # noqa: S311 - the same every time
    fresh = (f"fresh{number}" for number in count())
    requests = [some_request(random, f"v{number // 20}", fresh) for number in range(500)]
    responses = [pair.response(request) for request in requests]

    assert 100 < sum(response.overall_code == RateLimitResponse.OVER_LIMIT for response in responses) < 400
    assert pair.leased is not None
    assert "ratelimit_lease_units_granted_total 0\n" not in pair.leased.metrics(), "it leases"


def test_256_descriptors_are_answered_as_by_envoyproxy(pair: Pair) -> None:
    request = RateLimitRequest(domain="whole")
    for number in range(256):
        asked = request.descriptors.add()
        asked.entries.add(key=("one", "ten", "none", "open")[number % 4], value=f"many{number}")

    assert len(pair.response(request).statuses) == 256


def test_what_was_given_back_changes_no_answer(pair: Pair) -> None:
    """Only ours are charged and refunded: the version of theirs that Go's proxy has charges a refund."""
    random = Random(13)  # noqa: S311 - the same every time
    given_back = 0
    for number in range(100):
        entry = random.choice(["ten", "hot", "shadow"]), f"back{number // 10}"
        left = pair.response(costing(entry, random.choice([0, 0, 1, 2, 7, 2**40]))).statuses[0].limit_remaining
        if left:
            cost = random.randint(1, left)
            given_back += cost
            for call in filter(None, (pair.call_ours, pair.call_leased)):
                for negative in (False, True):
                    body = costing(entry, cost, negative=negative).SerializeToString()
                    assert call(body).overall_code == RateLimitResponse.OK
    assert given_back > 1000


def costing(entry: tuple[str, str], cost: int, *, negative: bool = False) -> RateLimitRequest:
    """With one descriptor."""
    request = RateLimitRequest(domain="whole")
    asked = request.descriptors.add(hits_addend={"value": cost}, is_negative_hits=negative)
    asked.entries.add(key=entry[0], value=entry[1])
    return request


@pytest.mark.parametrize("cost", [2**63, 2**64 - 1])
def test_what_is_more_than_they_can_count_is_over_the_limit_here(pair: Pair, cost: int) -> None:
    request = RateLimitRequest(domain="whole")
    for _ in range(3):
        request.descriptors.add(hits_addend={"value": cost}).entries.add(key="ten", value=f"{cost}")

    response = pair.call_ours(request.SerializeToString())

    assert [status.code for status in response.statuses] == [RateLimitResponse.OVER_LIMIT] * 3


def some_request(random: Random, value: str, fresh: Iterator[str]) -> RateLimitRequest:
    """With a few descriptors; one with a window that may end meanwhile has a counter that no other request has."""
    request = RateLimitRequest(domain="whole", hits_addend=random.choice([0, 0, 0, 1, 3, 2**32 - 1]))
    keys = KEYS + RECENT_KEYS if "ENVOYPROXY" in os.environ else KEYS
    for key in random.choices(keys, k=random.choice([1, 1, 1, 2, 3, 5])):
        asked = request.descriptors.add()
        asked.entries.add(key=key, value=next(fresh) if key in UNITS else value[:-1] if key == "hot" else value)
        cost = random.choice(COSTS[:12] if key == "hot" else COSTS)
        if cost is not None:
            asked.hits_addend.value = cost
        if random.random() < 0.15:
            # With 4294967295 left a response of theirs has no headers.
            asked.limit.requests_per_unit = random.choice([0, 0, 1, 5, 2**32 - 2])
            unit = random.choice(["SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"])
            asked.limit.unit = RateLimitUnit.Value(unit)
            if unit != "YEAR":
                asked.entries[0].value = next(fresh)
    return request


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
    with start_pair(tmp_path, {"RESPONSE_DYNAMIC_METADATA": "true"}, rules) as pair:
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
