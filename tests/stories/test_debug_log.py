"""What LOG_LEVEL=debug logs: a line for each decision, and nothing that a caller sent besides what is decided on."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from ratelimit_service.api.generated.envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from ratelimit_service.api.ratelimit import ShouldRateLimit
from tests.ports import free_port
from tests.processes import Service, ask, start_service

pytestmark = pytest.mark.usefixtures("transport")

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: plan
    descriptors:
      - key: path
        rate_limit: {unit: year, requests_per_unit: 5}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: gone
    value: x
    rate_limit: {unit: year, requests_per_unit: 5, name: gone}
  - key: instead
    rate_limit: {unit: year, requests_per_unit: 5, replaces: [{name: gone}]}
  - key: strict
    rate_limit: {unit: year, requests_per_unit: 0, block_for: 2 years}
  - key: closed
    rate_limit: {deny: true}
"""

DEBUG: Mapping[str, str] = {"LOG_LEVEL": "debug"}


def request(*descriptors: Sequence[tuple[str, str]], domain: str = "shop") -> bytes:
    message = RateLimitRequest(domain=domain)
    for entries in descriptors:
        descriptor = message.descriptors.add()
        for key, value in entries:
            descriptor.entries.add(key=key, value=value)
    return message.SerializeToString()


def call(service: Service, *bodies: bytes, metadata: Sequence[tuple[str, str]] = ()) -> None:
    """One call after the other; one that fails is as good as another."""
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        method = channel.unary_unary(ShouldRateLimit.path, request_serializer=None, response_deserializer=None)
        for number, body in enumerate(bodies):
            with suppress(grpc.RpcError):
                method(body, timeout=60, metadata=(*metadata, ("x-request-id", str(number))))


def decisions(service: Service) -> list[str]:
    return re.findall(r"debug +(?:no )?decision: (.*)", service.log)


def test_headers_of_calls_are_in_no_log(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES, DEBUG) as service:
        call(
            service,
            *[request([("user", "ada")])] * 20,
            metadata=[("authorization", "Bearer a-secret"), ("cookie", "a-secret")],
        )
        ask(service.http_port, "/json", {"Authorization": "Bearer a-secret"}, method="POST", body="{}")
        log = service.log

    assert "a-secret" not in log
    assert len(decisions(service)) == 21
    assert log.count("\n") < 40


def test_every_descriptor_has_a_line_that_tells_the_rule_and_the_answer(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES, DEBUG) as service:
        call(
            service,
            request([("user", "ada")], [("free", "x")]),
            request([("user", "ada")]),
            request([("watched", "x")]),
            request([("user", "line\nbreak" + "x" * 500)]),
            request([("gone", "x")], [("instead", "x")]),
            request([("closed", "x")]),
            request([("strict", "x")]),
        )
        place = f"{service.rules}/rules.yaml"
        found = [re.sub(r"again in \d+ s", "again in SECONDS s", line) for line in decisions(service)]

    assert found == [
        f'"shop" user="ada": OK, 0 of 1 per year left, by the rule at {place}:4:5',
        f'"shop" free="x": OK, unlimited, by the rule at {place}:13:5',
        f'"shop" user="ada": OVER_LIMIT, 0 of 1 per year left, allowed again in SECONDS s, by the rule at {place}:4:5',
        f'"shop" watched="x": OK, 0 of 0 per year left, over the limit in shadow mode, by the rule at {place}:11:5',
        f'"shop" user="line\\nbreak{"x" * 69}…": OK, 0 of 1 per year left, by the rule at {place}:4:5',
        f'"shop" gone="x": OK, no rule: another limit of the request replaces the rule at {place}:16:5',
        f'"shop" instead="x": OK, 4 of 5 per year left, by the rule at {place}:18:5',
        f'"shop" closed="x": OVER_LIMIT, always denied, by the rule at {place}:22:5',
        f'"shop" strict="x": OVER_LIMIT, 0 of 0 per year left, blocked for 63072000 s, by the rule at {place}:20:5',
    ]


def test_a_descriptor_without_a_rule_has_a_line_that_tells_where_the_walk_ended(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES, DEBUG) as service:
        call(
            service,
            request([("login", "ada")]),
            request([("user", "ada"), ("path", "/x")]),
            request([("plan", "free")]),
            request([("plan", "free"), ("verb", "GET")]),
            request([("path", "/x"), ("plan", "free")]),
            request([("user", "ada")], domain="shopp"),
        )
        place = f"{service.rules}/rules.yaml"

    assert decisions(service) == [
        '"shop" login="ada": OK, no rule: entry 1 of 1, login="ada", fits nothing below domain "shop"',
        (
            f'"shop" user="ada" path="/x": OK, no rule: entry 2 of 2, path="/x", fits nothing below the descriptor at'
            f" {place}:3:5: the rule there ends 1 entry earlier"
        ),
        (
            f'"shop" plan="free": OK, no rule: the descriptor at {place}:5:5 has no limit, and the rules below it need'
            " further entries"
        ),
        (
            '"shop" plan="free" verb="GET": OK, no rule: entry 2 of 2, verb="GET", fits nothing below the descriptor'
            f" at {place}:5:5"
        ),
        (
            '"shop" path="/x" plan="free": OK, no rule: entry 1 of 2, path="/x", fits nothing below domain "shop"; in'
            f' the order plan="free" path="/x" the rule at {place}:8:9 applies'
        ),
        '"shopp" user="ada": OK, no rule: domain "shopp" has no rules',
    ]


def test_a_decision_without_the_store_tells_the_policy_and_what_is_wrong(tmp_path: Path) -> None:
    environ = {"REDIS_URL": f"127.0.0.1:{free_port()}", **DEBUG}
    rules = RULES.replace("1}", "1, on_store_failure: open}")
    with start_service(tmp_path / "service", rules, environ) as service:
        service.wait_until(lambda: "store lost" in service.log, "Redis is not there")
        call(service, request([("user", "ada")]), request([("plan", "free"), ("path", "/a")]), b"\xff")
        place = f"{service.rules}/rules.yaml"

    *answered, refused = decisions(service)
    assert answered == [
        (
            '"shop" user="ada": OK, 0 of 1 per year left, without the store by policy open (connection refused), by the'
            f" rule at {place}:4:5"
        ),
        '"shop" plan="free" path="/a": UNAVAILABLE, no answer from the store: connection refused',
    ]
    assert refused.startswith("1 bytes: INVALID_ARGUMENT, the message is not a RateLimitRequest: ")


def test_nothing_is_logged_for_decisions_at_the_default_level(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES) as service:
        call(service, *[request([("user", "ada")])] * 20)
        body = json.dumps({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "x"}]}]})
        ask(service.http_port, "/json", method="POST", body=body)

    assert "decision" not in service.log
