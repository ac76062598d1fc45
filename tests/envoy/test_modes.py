"""What the service's modes and Envoy's do to a refusal, and to a service that is away."""

import signal
from pathlib import Path
from typing import Final

import pytest

from tests.envoy.proxy import HEALTH_CHECK, Envoy, bootstrap, by, route, start_envoy
from tests.processes import start_service
from tests.redis import start_redis

pytestmark = pytest.mark.usefixtures("transport")

RULES: Final = """
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: page, rate_limit: {unit: year, requests_per_unit: 2}}
"""
USER: Final = by(("user", "x-user"))
PAGE: Final = by(("page", "x-page"))


def test_in_shadow_mode_nobody_is_refused(tmp_path: Path) -> None:
    """Statuses and headers say what would have been."""
    with (
        start_service(
            tmp_path / "service", RULES, {"SHADOW_MODE": "true", "LIMIT_RESPONSE_HEADERS_ENABLED": "true"}
        ) as service,
        start_envoy(tmp_path / "envoy", bootstrap([service.grpc_port], [route("/", USER)])) as envoy,
    ):
        replies = [envoy.get("/", x_user="ada") for _ in range(3)]

        assert [reply.status for reply in replies] == [200, 200, 200]
        assert replies[2].headers["ratelimit-remaining"] == "0"
        assert "ratelimit_service_global_shadow_mode 2\n" in service.metrics()


def test_in_quota_mode_all_limits_must_be_used_up(tmp_path: Path) -> None:
    """One for the user, two for the page: the third is refused."""
    with (
        start_service(tmp_path / "service", RULES, {"QUOTA_MODE": "true"}) as service,
        start_envoy(tmp_path / "envoy", bootstrap([service.grpc_port], [route("/", USER, PAGE)])) as envoy,
    ):
        assert envoy.statuses(3, "/", x_user="ada", x_page="cart") == [200, 200, 429]


def test_redis_has_three_quarters_of_the_time_that_envoy_grants(tmp_path: Path) -> None:
    """Envoy sends its timeout, 20 ms by default, as grpc-timeout."""
    with start_redis(tmp_path / "redis") as redis:
        environ = {"REDIS_URL": f"127.0.0.1:{redis.port}"}
        with start_service(tmp_path / "service", RULES, environ) as service:
            settings = bootstrap([service.grpc_port], [route("/", USER)], filter_options={"timeout": "0.02s"})
            with start_envoy(tmp_path / "envoy", settings) as envoy:
                envoy.statuses(3, "/", x_user="ada")
            metrics = service.metrics()

    def figure(name: str) -> float:
        return float(metrics.partition(f"\nratelimit_store_granted_seconds_{name} ")[2].partition("\n")[0])

    # On a busy machine, Envoy may give up a request before it has sent it.
    assert 0 < figure("count") <= 3
    assert figure('bucket{le="0.025"}') == figure("count")
    assert 0 < figure("sum") <= figure("count") * 0.015


def test_without_the_service_envoy_decides(tmp_path: Path) -> None:
    """failure_mode_deny is Envoy's answer to no answer, and both are seen in its statistics."""
    with start_service(tmp_path / "service", RULES) as service:
        port = service.grpc_port
        with (
            start_envoy(tmp_path / "open", bootstrap([port], [route("/", USER)])) as opened,
            start_envoy(tmp_path / "closed", closed([port])) as closing,
        ):
            with_it = (opened.get("/", x_user="ada").status, closing.get("/", x_user="ada").status)
            service.kill()
            without_it = (opened.statuses(3, "/", x_user="ada"), closing.statuses(3, "/", x_user="ada"))

            assert with_it == (200, 429)
            assert without_it == ([200, 200, 200], [500, 500, 500])
            assert allowed_and_errors(opened) == (3, 3)
            assert allowed_and_errors(closing) == (0, 3)


def test_without_rules_the_service_is_as_good_as_away(tmp_path: Path) -> None:
    """Calls end with UNAVAILABLE until there are rules: nothing passes by mistake."""
    empty = tmp_path / "rules"
    empty.mkdir()
    with (
        start_service(tmp_path / "service", empty, wait_until_healthy=False) as service,
        start_envoy(tmp_path / "envoy", closed([service.grpc_port])) as envoy,
    ):
        before = (service.healthy, envoy.get("/", x_user="ada").status)
        service.write_rules(RULES)
        service.wait_until(lambda: service.healthy, "is healthy")

        assert before == (False, 500)
        assert envoy.statuses(2, "/", x_user="ada") == [200, 429]


def test_the_service_that_comes_back_is_asked_again(tmp_path: Path) -> None:
    """On the same port; its counters were in memory and begin anew."""
    with start_service(tmp_path / "first", RULES) as first:
        port = first.grpc_port
        with start_envoy(tmp_path / "envoy", closed([port])) as envoy:
            before = envoy.statuses(2, "/", x_user="ada")
            stopped = first.stop()
            away = envoy.get("/", x_user="ada").status
            with start_service(tmp_path / "second", RULES, {"GRPC_PORT": str(port)}):
                envoy.wait_until(lambda: envoy.get("/", x_user="nobody").status != 500, "asks the service")
                back = envoy.statuses(2, "/", x_user="ada")

            assert (before, stopped, away, back) == ([200, 429], 0, 500, [200, 429])


def test_envoy_s_health_check_hears_of_a_drain(tmp_path: Path) -> None:
    """grpc.health.v1; until the drain is over, whoever calls all the same is answered."""
    with start_service(tmp_path / "service", RULES, {"DRAIN_SECONDS": "60"}) as service:
        port = service.grpc_port
        configuration = bootstrap([port], [route("/", USER)], health_checks=[HEALTH_CHECK])
        with (
            start_envoy(tmp_path / "envoy", configuration) as envoy,
            start_envoy(tmp_path / "deaf", closed([port])) as deaf,
        ):
            envoy.wait_until(lambda: envoy.healthy_ports() == {port}, "the service is healthy")
            service.send(signal.SIGTERM)
            envoy.wait_until(lambda: envoy.healthy_ports() == set(), "the service is unhealthy")

            assert not service.healthy
            assert deaf.statuses(2, "/", x_user="ada") == [200, 429]


def closed(ports: list[int]) -> dict[str, object]:
    """An Envoy that lets nothing pass unasked."""
    return bootstrap(ports, [route("/", USER)], filter_options={"failure_mode_deny": True})


def allowed_and_errors(envoy: Envoy) -> tuple[int, int]:
    """Requests that passed without an answer, and calls without one."""
    return envoy.stat("cluster.echo.ratelimit.failure_mode_allowed"), envoy.stat("cluster.echo.ratelimit.error")
