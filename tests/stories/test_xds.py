"""Rules from a control plane: go-control-plane's own server, and the service as an operator starts it."""

import json
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from click.testing import CliRunner

from ratelimit_service.api.generated.envoy.service.ratelimit.v3 import rls_pb2
from ratelimit_service.cli import main
from tests import peers
from tests.clocks import stay_within
from tests.control_plane import ControlPlane, start_control_plane
from tests.envoyproxy import start_envoyproxy
from tests.ports import free_port
from tests.processes import ROOT, Process, Service, ask, start_service
from tests.redis import start_redis
from tests.transports.certificates import authority, issue
from tests.workers.pool import PATH, start_pool

FORCE = {"FORCE_START_WITHOUT_INITIAL_CONFIG": "true"}


def config(domain: str, requests: int, unit: str = "YEAR") -> dict[str, Any]:
    """A limit for each user of a domain."""
    limit = {"unit": unit, "requests_per_unit": requests}
    return {"name": domain, "domain": domain, "descriptors": [{"key": "user", "rate_limit": limit}]}


def left(service: Service, domain: str = "shop", user: str = "ada") -> Any:
    """What the limit of a user has left after one more request; None without a limit."""
    question = {"domain": domain, "descriptors": [{"entries": [{"key": "user", "value": user}]}]}
    answer = ask(service.http_port, "/json", method="POST", body=json.dumps(question))
    (status,) = json.loads(answer.body)["statuses"]
    return status.get("limitRemaining", 0) if "currentLimit" in status else None


def test_a_service_is_well_before_its_first_rules_and_follows_its_control_plane(tmp_path: Path) -> None:
    with start_control_plane(tmp_path / "plane") as plane:
        port = plane.port
        with start_service(tmp_path / "service", "", plane.environ | FORCE) as service:
            assert ask(service.http_port, "/healthcheck").status == 200
            plane.publish("41", [config("shop", 5)])
            plane.wait_for_ack("41")
            assert left(service) == 4
            plane.publish("42", [config("shop", 9, "UNKNOWN"), config("mail", 9)])
            service.wait_until(lambda: "rules not loaded" in service.log, "it is refused")
            assert left(service) == 3
            # go-control-plane answers a NACK with the same again, at once.
            plane.wait_until(lambda: len([each for each in plane.requests if each["code"]]) >= 2, "it is refused again")
            assert service.log.count("rules not loaded") == 1
            assert ask(service.http_port, "/metrics").body.count("\nratelimit_xds_connected 1\n") == 1
            plane.stop()
            service.wait_until(lambda: "is lost" in service.log, "it notices")
            assert left(service) == 2
            shown = CliRunner().invoke(main, ["status", f"localhost:{service.debug_port}"])
            assert shown.exit_code == 1
            assert f"The control plane localhost:{port} is lost, for " in shown.stdout
            assert f"plane    localhost:{port}, lost for " in shown.stdout
            assert ", version 41; 1 snapshot accepted, " in shown.stdout

            with start_control_plane(tmp_path / "plane", port=port) as again:
                again.publish("1", [config("shop", 20)])
                again.wait_for_ack("1")
                assert left(service) == 16
                first, *_ = again.requests
                assert (first["version"], first["nonce"]) == ("", "")
            reload = json.loads(ask(service.debug_port, "/status").body)["reload"]
            assert reload["sources"][0]["connection"]["version"] == "1"
            assert service.stop() == 0


def test_without_force_start_no_port_opens_before_the_first_rules_and_sigterm_ends_the_wait(tmp_path: Path) -> None:
    environ = {
        "CONFIG_TYPE": "GRPC_XDS_SOTW",
        "CONFIG_GRPC_XDS_SERVER_URL": f"localhost:{free_port()}",
        "DRAIN_SECONDS": "600",
        "PYTHONPATH": str(ROOT),
    }
    (tmp_path / "service").mkdir()
    with Process([sys.executable, "-m", "ratelimit_service", "serve"], tmp_path / "service", environ) as service:
        service.wait_until(lambda: "waiting for the first rules" in service.log, "it waits")
        service.wait_until(lambda: "is lost" in service.log, "it has dialled")
        assert "listening" not in service.log

        assert service.stop() == 0


def test_the_environment_of_envoy_gateways_deployment_is_all_that_is_needed(tmp_path: Path) -> None:
    """Mutual TLS 1.3 with certificates that change, its probes, its metrics, and what egctl asks for."""
    ca = authority(tmp_path)
    server, client = issue(ca, "gateway", "DNS:localhost"), issue(ca, "ratelimit", "DNS:envoy-ratelimit")
    metrics_port = free_port()
    with start_control_plane(tmp_path / "plane", node="envoy-ratelimit", cert=server, ca=ca.cert) as plane:
        port = plane.port
        here = {
            "/certs/tls.crt": str(client.cert),
            "/certs/tls.key": str(client.key),
            "/certs/ca.crt": str(ca.cert),
            "envoy-gateway:18001": f"localhost:{port}",
            ":19001": f"127.0.0.1:{metrics_port}",
        }
        deployment = yaml.safe_load((peers.envoy_gateway_rules() / "default-env.yaml").read_text(encoding="utf-8"))
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        environ = {each["name"]: here.get(each["value"], each["value"]) for each in container["env"]}
        # What a user adds: no Redis, to which Envoy Gateway wants a URL all the same.
        environ |= {"BACKEND_TYPE": "memory", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true"}
        flags = ["--as-envoyproxy", "--quotaRateLimitServiceAddr=x"]
        with start_service(tmp_path / "service", "", environ, flags, wait_until_healthy=False) as service:
            assert ask(service.http_port, "/healthcheck").status == 500
            plane.publish("1", [config("shop", 5)])
            plane.wait_for_ack("1")
            service.wait_until(lambda: service.healthy, "it is healthy")
            assert "\nratelimit_rules 1\n" in ask(metrics_port, "/metrics").body
            assert "shop.user: unit=YEAR requests_per_unit=5" in ask(service.debug_port, "/rlconfig").body
            plane.stop()

            (tmp_path / "new").mkdir()
            other = authority(tmp_path / "new")
            anew = issue(other, "gateway", "DNS:localhost")
            with start_control_plane(
                tmp_path / "plane", node="envoy-ratelimit", port=port, cert=anew, ca=other.cert
            ) as again:
                again.publish("2", [config("shop", 50)])
                service.wait_until(lambda: "is lost" in service.log, "it refuses the new one")
                mine = issue(other, "ratelimit", "DNS:envoy-ratelimit")
                for new, old in ((mine.cert, client.cert), (mine.key, client.key), (other.cert, ca.cert)):
                    old.write_bytes(new.read_bytes())
                again.wait_for_ack("2")
                assert left(service) == 49


def test_all_workers_have_the_rules_of_one_stream_and_lose_them_with_an_empty_snapshot(tmp_path: Path) -> None:
    with start_control_plane(tmp_path / "plane") as plane:
        plane.publish("1", [config("shop", 5000)])
        with start_pool(tmp_path, 2, plane.environ, rules="") as pool:
            assert {each["stream"] for each in plane.requests} == {1}
            assert left(pool.service) == 4999
            number, pid = next(iter(pool.pids.items()))
            os.kill(pid, signal.SIGKILL)
            pool.wait_for_another(number, pid)
            assert left(pool.service) == 4998
            plane.publish("2", [])
            plane.wait_for_ack("2")
            for _ in range(20):  # a connection each, so that both workers are asked
                pool.service.wait_until(lambda: left(pool.service) is None, "nothing is limited")
            assert {each["stream"] for each in plane.requests} == {1}


# Beside envoyproxy's own, on the same snapshot


class Beside:
    """Ours and envoyproxy's own with the same rules."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._asks = [
            grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(
                PATH,
                request_serializer=rls_pb2.RateLimitRequest.SerializeToString,
                response_deserializer=rls_pb2.RateLimitResponse.FromString,
            )
            for port in ports
        ]

    def answers(self, request: rls_pb2.RateLimitRequest) -> list[Any]:
        """What each of them answers, as far as it is not the time."""
        return [_answered(ask(request)) for ask in self._asks]


def _answered(response: rls_pb2.RateLimitResponse) -> Any:
    return response.overall_code, [
        (each.code, each.limit_remaining, each.current_limit.requests_per_unit, each.current_limit.unit)
        for each in response.statuses
    ]


@pytest.fixture(scope="module")
def plane_and_both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Beside]]:
    folder = tmp_path_factory.mktemp("beside")
    (folder / "none").mkdir()
    with start_redis(folder / "redis") as redis, start_control_plane(folder / "plane") as plane:
        environ = plane.environ | FORCE | {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": f"127.0.0.1:{redis.port}"}
        with (
            start_envoyproxy(folder / "theirs", folder / "none", environ) as theirs,
            start_service(folder / "ours", folder / "none", environ | {"STORE_DEADLINE": "10s"}) as ours,
        ):
            yield plane, Beside([theirs.grpc_port, ours.grpc_port])


def request(domain: str, *descriptors: Sequence[tuple[str, str]]) -> rls_pb2.RateLimitRequest:
    """A request with these descriptors."""
    found = rls_pb2.RateLimitRequest(domain=domain)
    for entries in descriptors:
        descriptor = found.descriptors.add()
        for key, value in entries:
            descriptor.entries.add(key=key, value=value)
    return found


def test_random_rules_decide_as_envoyproxys_own_does(plane_and_both: tuple[ControlPlane, Beside]) -> None:
    plane, both = plane_and_both
    chance = random.Random(1)  # noqa: S311 - a test

    def descriptors(depth: int) -> list[dict[str, Any]]:
        found = []
        for key in chance.sample(("a", "b", "c"), chance.randint(1, 3)):
            for value in chance.sample(("", "x", "y", "x*"), chance.randint(1, 3)):
                each: dict[str, Any] = {"key": key, "value": value, "shadow_mode": chance.random() < 0.1}
                if chance.random() < 0.7:
                    unit = chance.choice(("DAY", "HOUR", "MONTH", "YEAR"))
                    each["rate_limit"] = {"unit": unit, "requests_per_unit": chance.randint(0, 4)}
                if chance.random() < 0.1:
                    each["rate_limit"] = {"unlimited": True}
                if depth and chance.random() < 0.6:
                    each["descriptors"] = descriptors(depth - 1)
                found.append(each)
        return found

    domains = [f"d{number}" for number in range(12)]
    plane.publish("random", [{"name": name, "domain": name, "descriptors": descriptors(2)} for name in domains])
    plane.wait_for_ack("random", streams=2)
    stay_within(3600, 60)
    for _ in range(400):
        asked = [
            [(chance.choice("abc"), chance.choice(("x", "y", "xx", "z"))) for _ in range(chance.randint(1, 3))]
            for _ in range(chance.randint(1, 3))
        ]
        theirs, ours = both.answers(request(chance.choice(domains), *asked))
        assert theirs == ours, asked


def test_every_rule_of_envoy_gateways_own_tests_decides_as_envoyproxys_own_does(
    plane_and_both: tuple[ControlPlane, Beside],
) -> None:
    plane, both = plane_and_both
    folder = peers.envoy_gateway_rules()
    configs: list[Any] = []
    for name in peers.ENVOY_GATEWAY_RULES:
        text = (folder / f"{name}.yaml").read_text(encoding="utf-8")
        made = filter(None, yaml.safe_load_all(text))
        configs.extend(_of_message(each | {"domain": f"{name}:{each['domain']}"}) for each in made)
    plane.publish("gateway", configs)
    plane.wait_for_ack("gateway", streams=2)
    stay_within(3600, 60)
    limits = 0
    for each in configs:
        for entries, number in _limits(each["descriptors"]):
            limits += 1
            for _ in range(min(number, 10) + 2):
                theirs, ours = both.answers(request(each["domain"], entries))
                assert theirs == ours, (each["domain"], entries)
    assert limits > 40


def test_256_rules_of_a_policy_are_256_descriptors_of_a_call(plane_and_both: tuple[ControlPlane, Beside]) -> None:
    plane, both = plane_and_both
    names = [f"default/policy/rule/{number}" for number in range(256)]
    limits = [{"unit": "DAY", "requests_per_unit": 1 + number % 4} for number in range(256)]
    rules = [
        {"key": name, "value": name, "descriptors": [{"key": "rule-0-match-0", "rate_limit": limit}]}
        for name, limit in zip(names, limits, strict=True)
    ]
    plane.publish("256", [{"name": "default/policy", "domain": "default/policy", "descriptors": rules}])
    plane.wait_for_ack("256", streams=2)
    stay_within(3600, 60)
    asked = request("default/policy", *([(name, name), ("rule-0-match-0", "x")] for name in names))
    for _ in range(5):
        theirs, ours = both.answers(asked)
        assert theirs == ours
        assert len(ours[1]) == 256


def _quota(key: str, value: str = "", requests: int = 0, unit: str = "HOUR", **more: Any) -> dict[str, Any]:
    """A leaf of what Agent Router makes of a QuotaPolicy; without requests, a level above."""
    limit = {"rate_limit": {"unit": unit, "requests_per_unit": requests}, "quota_mode": True} if requests else {}
    return {"key": key, "value": value} | limit | more


TENANT, USER, REST = "rule-0-x-tenant|premium/eu-match-0", "rule-0-x-user-match-1", "rule-1-match--1"
MODELS = ("gpt-4", "gpt-5", "o/1|mini")
QUOTAS = [
    _quota(
        "backend_name",
        "default/openai",
        descriptors=[
            _quota("model_name_override", "gpt-4", 40),
            _quota(
                "model_name_override",
                "gpt-5",
                descriptors=[
                    _quota(TENANT, TENANT, descriptors=[_quota(USER, requests=30)]),
                    _quota(REST, REST, 60, "DAY"),
                ],
            ),
            _quota(
                "model_name_override",
                "o/1|mini",
                descriptors=[_quota("rule-0-match-0", "rule-0-match-0", 20, shadow_mode=True)],
            ),
        ],
    ),
    _quota("backend_name", "team-a/bedrock", descriptors=[_quota("model_name_override", requests=4_000_000_000)]),
]


def test_agent_routers_quotas_decide_as_envoyproxys_own_does_with_costs_at_the_end_of_a_response(
    tmp_path: Path,
) -> None:
    """With the environment and the argument of its manifest; ports and Redis are those of here."""
    chance = random.Random(1)  # noqa: S311 - a test
    (tmp_path / "none").mkdir()
    with (
        start_redis(tmp_path / "redis") as redis,
        start_control_plane(tmp_path / "plane", node="envoy-ai-gateway-ratelimit") as plane,
    ):
        plane.publish("1", [{"name": "ai-gateway-quota", "domain": "ai-gateway-quota", "descriptors": QUOTAS}])
        environ = {
            "LOG_LEVEL": "debug",
            "REDIS_SOCKET_TYPE": "tcp",
            "REDIS_URL": f"127.0.0.1:{redis.port}",
            "RUNTIME_ROOT": "/data",
            "RUNTIME_SUBDIRECTORY": "ratelimit",
            "USE_STATSD": "false",
            "CONFIG_TYPE": "GRPC_XDS_SOTW",
            "CONFIG_GRPC_XDS_NODE_ID": "envoy-ai-gateway-ratelimit",
            "CONFIG_GRPC_XDS_SERVER_URL": f"localhost:{plane.port}",
        }
        flags = ["--as-envoyproxy", "--quotaRateLimitServiceAddr=envoy-ai-gateway-ratelimit.envoy-gateway-system:8081"]
        with (
            start_envoyproxy(tmp_path / "theirs", tmp_path / "none", environ) as theirs,
            start_service(tmp_path / "ours", tmp_path / "none", environ | {"STORE_DEADLINE": "10s"}, flags) as ours,
        ):
            both = Beside([theirs.grpc_port, ours.grpc_port])
            stay_within(3600, 60)
            refused = 0
            for _ in range(300):
                backend, model = chance.choice(("default/openai", "team-a/bedrock")), chance.choice(MODELS)
                base = [("backend_name", backend), ("model_name_override", model)]
                user = (USER, chance.choice(("ada", "bob")))
                matched = chance.sample([[(TENANT, TENANT), user], [(REST, REST)], [("rule-0-match-0",) * 2]], 2)
                asked = request("ai-gateway-quota", base, *([*base, *each] for each in matched))
                if agreed(both, asked):
                    for descriptor in asked.descriptors:
                        (descriptor.hits_addend.value,) = chance.choices((0, 1, 3, 1_000_000_000), (9, 9, 9, 1))
                    agreed(both, asked)
                else:
                    refused += 1
            assert 0 < refused < 300


def agreed(both: Beside, asked: rls_pb2.RateLimitRequest) -> bool:
    """Whether quotas let it pass, of which one must have room; envoyproxy's own knows quotas since 2026-04-19."""
    (their_code, theirs), (our_code, ours) = both.answers(asked)
    over = [code == rls_pb2.RateLimitResponse.OVER_LIMIT for code, _, _, unit in ours if unit]
    passes = not (over and all(over))
    assert theirs == ours, asked
    assert (our_code == rls_pb2.RateLimitResponse.OK) == passes, asked
    assert our_code == their_code or "ENVOYPROXY" not in os.environ, asked
    return passes


def _of_message(node: Any) -> Any:
    """What the message has of what Envoy Gateway's tests write as YAML; by hours, as a second may end between calls."""
    if isinstance(node, list):
        return [_of_message(each) for each in node]
    if not isinstance(node, dict):
        return "HOUR" if node == "SECOND" else node
    dropped = ("value_to_metric", "share_threshold")
    return {key: _of_message(each) for key, each in node.items() if key not in dropped and each is not None}


def _limits(
    descriptors: Sequence[Mapping[str, Any]], above: Sequence[tuple[str, str]] = ()
) -> Iterator[tuple[Sequence[tuple[str, str]], int]]:
    """The entries that lead to each limit, and what it allows."""
    for each in descriptors:
        entries = (*above, (each["key"], each.get("value") or "any"))
        if "rate_limit" in each:
            yield entries, each["rate_limit"].get("requests_per_unit", 0)
        yield from _limits(each.get("descriptors", ()), entries)
