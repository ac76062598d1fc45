"""Rules change and instances stop while requests go on through a real Envoy: not one of them may notice."""

import signal
from pathlib import Path
from typing import Final

import pytest

from tests.control_plane import start_control_plane
from tests.envoy.load import load
from tests.envoy.proxy import HEALTH_CHECK, Envoy, Json, bootstrap, by, rate_limit_filter, route, start_envoy
from tests.processes import Service, start_service

pytestmark = pytest.mark.usefixtures("transport")

DOMAINS: Final = ("shop", "policy-a", "policy-b")
USER: Final = by(("user", "=ada"))
DENY: Final = {"failure_mode_deny": True}
"""A call that fails is a 500, not a request that passes unseen."""
HEADERS: Final = {"LIMIT_RESPONSE_HEADERS_ENABLED": "true"}


def rules(limit: int) -> str:
    """One rule, of so many a year."""
    return f"domain: shop\ndescriptors: [{{key: user, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}]\n"


def test_a_reload_under_load_fails_no_request(tmp_path: Path) -> None:
    """Each new limit holds soon after its file is written, and one that is wrong changes nothing."""
    with (
        start_service(tmp_path / "service", rules(1_000_001), HEADERS) as service,
        start_envoy(
            tmp_path / "envoy", bootstrap([service.grpc_port], [route("/", USER)], filter_options=DENY)
        ) as envoy,
    ):
        with load(envoy.port, "/") as running:
            running.wait_for_value("1000001")
            for limit in (1_000_002, 1_000_003, 1_000_004):
                service.write_rules(rules(limit))
                running.wait_for_value(str(limit))
                running.wait_for(100)
            service.write_rules("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: fortnight}}]\n")
            service.wait_until(lambda: "rules not loaded, the old rules stay" in service.log, "refuses bad rules")
            running.wait_for(100)

        assert set(running.statuses) == {200}, running
        assert running.broken == []
        assert errors(envoy) == (0, 0)
        # While one book goes and the next comes, connections may see them in turn; what is gone for good stays gone.
        assert running.values[0] == "1000001"
        assert running.values[-1] == "1000004"
        assert set(running.values) == {"1000001", "1000002", "1000003", "1000004"}


def test_snapshots_of_a_control_plane_under_load_fail_no_request_of_three_filters(tmp_path: Path) -> None:
    """As Envoy Gateway has it: a filter for the route, and one for each shared policy, each with its domain."""

    def snapshot(limit: int) -> list[Json]:
        rules = [{"key": "user", "rate_limit": {"unit": "YEAR", "requests_per_unit": limit}}]
        return [{"name": domain, "domain": domain, "descriptors": rules} for domain in DOMAINS]

    with start_control_plane(tmp_path / "plane") as plane:
        plane.publish("1", snapshot(1_000_001))
        with (
            start_service(tmp_path / "service", "", HEADERS | plane.environ) as service,
            start_envoy(
                tmp_path / "envoy",
                bootstrap(
                    [service.grpc_port],
                    [route("/", USER)],
                    filter_options=DENY,
                    filters_before=[rate_limit_filter(domain, DENY) for domain in DOMAINS[1:]],
                ),
            ) as envoy,
            load(envoy.port, "/") as running,
        ):
            running.wait_for_value("1000001, 1000001, 1000001")
            for limit in (1_000_002, 1_000_003, 1_000_004):
                plane.publish(f"{limit}", snapshot(limit))
                running.wait_for_value(f"{limit}, {limit}, {limit}")
                running.wait_for(100)

            assert set(running.statuses) == {200}, running
            assert running.broken == []
            assert errors(envoy) == (0, 0)


def test_counters_go_on_across_a_reload(tmp_path: Path) -> None:
    """Two of three are used; of five, three are left."""
    with (
        start_service(tmp_path / "service", rules(3), HEADERS) as service,
        start_envoy(tmp_path / "envoy", bootstrap([service.grpc_port], [route("/", USER)])) as envoy,
    ):
        before = envoy.statuses(2, "/")
        service.write_rules(rules(5))
        service.wait_until(lambda: service.log.count("rules loaded") == 2, "loads the rules")
        after = envoy.get("/").headers

        assert before == [200, 200]
        assert (after["ratelimit-limit"], after["ratelimit-remaining"]) == ("5", "2")


def test_sighup_loads_the_rules_at_once(tmp_path: Path) -> None:
    """However seldom the files are looked at."""
    environ = {**HEADERS, "RULES_POLL_INTERVAL": "1h"}
    with (
        start_service(tmp_path / "service", rules(3), environ) as service,
        start_envoy(tmp_path / "envoy", bootstrap([service.grpc_port], [route("/", USER)])) as envoy,
    ):
        service.write_rules(rules(5))
        service.send(signal.SIGHUP)
        service.wait_until(lambda: service.log.count("rules loaded") == 2, "loads the rules")

        assert envoy.get("/").headers["ratelimit-limit"] == "5"


def test_a_drain_under_load_fails_no_request(tmp_path: Path) -> None:
    """One of two instances is told to stop: Envoy hears of it in time, and the other one answers everything."""
    environ = {"DRAIN_SECONDS": "8"}
    with (
        start_service(tmp_path / "leaving", rules(1_000_000), {**HEADERS, **environ}) as leaving,
        start_service(tmp_path / "staying", rules(2_000_000), {**HEADERS, **environ}) as staying,
    ):
        configuration = bootstrap(
            [leaving.grpc_port, staying.grpc_port],
            [route("/", USER)],
            filter_options=DENY,
            health_checks=[HEALTH_CHECK],
        )
        with start_envoy(tmp_path / "envoy", configuration) as envoy:
            envoy.wait_until(lambda: len(envoy.healthy_ports()) == 2, "both are healthy")
            with load(envoy.port, "/") as running:
                running.wait_for_value("1000000")
                running.wait_for_value("2000000")
                left = drain(leaving, envoy, {staying.grpc_port})
                running.values.clear()
                running.wait_for(500)

            assert left == 0
            assert set(running.statuses) == {200}, running
            assert running.broken == []
            assert set(running.values) == {"2000000"}
            assert errors(envoy) == (0, 0)


def test_a_rolling_restart_under_load_fails_no_request(tmp_path: Path) -> None:
    """Each of two instances is drained, one comes back on its port before the other goes.

    Envoy puts together what happens to a cluster within a second of the last change (update_merge_window), so it acts
    on the second drain that much later than on the first: a drain of one second is too short, and was seen to be.
    """
    environ = {"DRAIN_SECONDS": "8"}
    with (
        start_service(tmp_path / "a", rules(1_000_000), environ) as one,
        start_service(tmp_path / "b", rules(1_000_000), environ) as other,
    ):
        ports = {one.grpc_port, other.grpc_port}
        configuration = bootstrap(sorted(ports), [route("/", USER)], filter_options=DENY, health_checks=[HEALTH_CHECK])
        with start_envoy(tmp_path / "envoy", configuration) as envoy:
            envoy.wait_until(lambda: envoy.healthy_ports() == ports, "both are healthy")
            with load(envoy.port, "/") as running:
                running.wait_for(100)
                first = drain(one, envoy, ports - {one.grpc_port})
                again = environ | {"GRPC_PORT": str(one.grpc_port)}
                with start_service(tmp_path / "c", rules(1_000_000), again):
                    envoy.wait_until(lambda: envoy.healthy_ports() == ports, "both are healthy again")
                    second = drain(other, envoy, ports - {other.grpc_port})
                    running.wait_for(100)
                    running.finish()

            assert (first, second) == (0, 0)
            assert set(running.statuses) == {200}, running
            assert running.broken == []
            assert errors(envoy) == (0, 0)


def drain(service: Service, envoy: Envoy, staying: set[int]) -> int:
    """SIGTERM, and the exit code; the service must not be gone before Envoy goes elsewhere."""
    service.send(signal.SIGTERM)
    envoy.wait_until(lambda: envoy.healthy_ports() == staying, "Envoy has heard of the drain")
    assert service.running, "DRAIN_SECONDS were over before Envoy had heard of it: this machine is too busy to tell"
    return service.wait()


def errors(envoy: Envoy) -> tuple[int, int]:
    """Calls of Envoy's that had no answer, and requests that passed for that reason."""
    return envoy.stat("cluster.echo.ratelimit.error"), envoy.stat("cluster.echo.ratelimit.failure_mode_allowed")
