"""deploy/grafana: each query of the dashboards has data in a real Prometheus, after a run in which all of it happened.

What compose deploys runs natively, with two instances for what that one has not: TLS, counters in memory, rules of
three levels; and a home Redis of several regions. Prometheus scrapes all three and Envoy, with the alerts.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests import peers
from tests.deploy.dashboards import DASHBOARDS, dashboard, filled, queries, walk
from tests.deploy.deployed import DEPLOY, Deployed, compose, deployed, load
from tests.processes import Service, ask, start_service
from tests.prometheus import Prometheus, start_prometheus
from tests.redis import Redis, start_redis
from tests.transports.certificates import authority, issue

pytestmark = pytest.mark.extended

OWN_PANELS: Final = {"row", "stat", "table", "timeseries"}
"""Grafana's, without a plugin."""

SOMETIMES: Final = {"key2", "key3"}
"""Labels that only rules with so many levels have."""

SECOND_RULES: Final = """
domain: default/eg/http
descriptors:
  - key: httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example
    value: httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example
    descriptors:
      - key: rule-0-match-0
        value: rule-0-match-0
        rate_limit: { unit: year, requests_per_unit: 1 }
  - key: tenant
    descriptors:
      - key: user
        descriptors:
          - key: path
            rate_limit: { unit: year, requests_per_unit: 1 }
"""

REGIONAL_RULES: Final = """
domain: regional
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 6000, regions: leased } }
"""

THROUGH_TYPES: Final = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
register_default_plugins()
with open(sys.argv[1], encoding="utf-8") as board:
    print(JSONEncoder().encode(Dashboard.from_json(json.load(board))))
"""
"""A dashboard, read and written by Grafana's types; in a process of its own, as its package is not the virtualenv's."""

TRIAL: Final = (DEPLOY / "rules" / "web-trial.yaml").read_text(encoding="utf-8").replace("\n", "\n\n")
"""A file that the first instance has too, at other lines."""

EG_KEY: Final = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example"
EG_RULE: Final = f'{{domain="default/eg/http", key1="{EG_KEY}_{EG_KEY}", key2="rule-0-match-0_rule-0-match-0"}}'
ENVOY_GATEWAY: Final = (
    '(process_resident_memory_bytes{app_kubernetes_io_component="ratelimit"})/1000000',
    '(process_virtual_memory_bytes{app_kubernetes_io_component="ratelimit"})/1000000',
    f"ratelimit_service_rate_limit_total_hits{EG_RULE}",
    f"ratelimit_service_rate_limit_near_limit{EG_RULE}",
    f"ratelimit_service_rate_limit_over_limit{EG_RULE}",
)
"""What the dashboard "Global Ratelimit" of Envoy Gateway asks, but for `go_memstats_gc_cpu_fraction`: that is Go's."""


def variables(path: Path) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in dashboard(path)["templating"]["list"]}


class Asked:
    """Queries, until each has had data; and all labels that any had."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self.seen: set[str] = set()

    def until_all_have_data(self, wanted: Mapping[str, set[str]]) -> None:
        left = dict(wanted)

        def look() -> bool:
            for query, labels in list(left.items()):
                found = {label for series in self._prometheus.labels(filled(query)) for label in (*series, "")}
                self.seen |= found
                if found and labels - SOMETIMES <= found:
                    del left[query]
            return not left

        try:
            self._prometheus.wait_until(look, "each query has data")
        except AssertionError as error:
            raise AssertionError(f"without data, or without these labels: {left}") from error


class Run(NamedTuple):
    """What is scraped, and Prometheus."""

    first: Deployed
    second: Service
    regional: Service
    home: Redis
    prometheus: Prometheus


def call(service: Service, domain: str, *entries: str, refund: bool = False) -> int:
    """The status of one request with one descriptor, its entries as `key=value`."""
    pairs = [dict(zip(("key", "value"), entry.split("="), strict=True)) for entry in entries]
    body = json.dumps({"domain": domain, "descriptors": [{"entries": pairs, "isNegativeHits": refund}]})
    return ask(service.http_port, "/json", method="POST", body=body).status


@contextmanager
def started(folder: Path) -> Iterator[Run]:
    """All of it; Prometheus with deploy/prometheus.yaml, other targets, and shorter intervals."""
    peers.prometheus()
    config = load("prometheus.yaml") | {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}
    more = {"WORKERS": "2", "ON_STORE_FAILURE": "error", "LEASES": "auto"}  # Envoy is not answered without Redis
    tls = issue(authority(folder), "server", "DNS:localhost").environ
    with (
        deployed(folder, more) as first,
        start_service(folder / "second", SECOND_RULES, tls) as second,
        start_redis(folder / "home") as home,
        start_redis(folder / "region") as redis,
        start_service(folder / "regional", REGIONAL_RULES, in_a_region(redis, home)) as regional,
    ):
        ours, envoys = config["scrape_configs"]
        targets = [f"127.0.0.1:{service.http_port}" for service in (first.service, second, regional)]
        ours["static_configs"] = [{"targets": targets, "labels": {"app_kubernetes_io_component": "ratelimit"}}]
        envoys["static_configs"] = [{"targets": [f"127.0.0.1:{first.envoy.admin_port}"]}]
        (folder / "prometheus").mkdir()
        shutil.copy(DEPLOY / "alerts.yaml", folder / "prometheus")
        with start_prometheus(folder / "prometheus", config) as prometheus:
            yield Run(first, second, regional, home, prometheus)


def in_a_region(redis: Redis, home: Redis) -> dict[str, str]:
    """Settings."""
    of_home = {"REGIONS": "eu,us", "REGION": "eu", "HOME_REDIS_URL": f"127.0.0.1:{home.port}"}
    return {"REDIS_URL": f"127.0.0.1:{redis.port}", "STORE_DEADLINE": "10s", **of_home}


def happen(run: Run) -> None:
    """What the panels are about; Redis is gone at the end."""
    service, second = run.first.service, run.second
    run.first.envoy.statuses(4, "/tenant")
    call(second, "default/eg/http", f"{EG_KEY}={EG_KEY}", "rule-0-match-0=rule-0-match-0")
    call(second, "default/eg/http", "tenant=a", "user=b", "path=c")
    call(second, "unknown", "a=b")
    socket.create_connection(("127.0.0.1", second.grpc_port)).close()
    for _ in range(30):  # 20 pass, Redis denies the next, and what it has denied each worker knows
        call(service, "shop", "user=ada")
    call(service, "web", "user=ada", refund=True)
    for more in ((), ("settled=1",)):
        call(service, "every-option", "model=large", "request_id=1", *more)

    def leased() -> bool:
        """Units are held while hits come."""
        for _ in range(20):
            call(service, "every-option", "any=thing")
        return bool(run.prometheus.labels("ratelimit_rule_lease_units_held > 0"))

    run.prometheus.wait_until(leased, "some units are held")
    call(run.regional, "regional", "user=ada")
    run.home.kill()
    call(run.regional, "regional", "user=bob")
    second.write_rules(TRIAL, "trial.yaml")
    run.first.redis.kill()
    call(service, "every-option", "trial=ada")  # its rule says on_store_failure: open
    run.first.envoy.get("/")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """All of it, after it has happened."""
    with started(tmp_path_factory.mktemp("dashboards")) as run:
        run.prometheus.wait_until(lambda: len(run.prometheus.labels("up == 1")) == 4, "all are scraped")
        happen(run)
        yield run


def test_every_query_has_data_in_a_real_run(run: Run) -> None:
    """Metrics and labels in it exist."""
    asked = Asked(run.prometheus)

    asked.until_all_have_data(queries())

    assert asked.seen >= SOMETIMES


def test_every_variable_has_values_in_a_real_run(run: Run) -> None:
    """As Grafana looks them up: the values that a label has had in some series."""
    found = {}
    for path in DASHBOARDS:
        for name, variable in variables(path).items():
            if variable["type"] == "query":
                query = re.fullmatch(r"label_values\((.+), (\w+)\)", filled(variable["query"]["query"]))
                assert query, variable["query"]
                found[name] = run.prometheus.api(f"label/{query[2]}/values", **{"match[]": query[1]})

    assert found.keys() == {"job", "instance", "domain", "key1", "key2"}
    assert found["job"] == ["ratelimit"]
    assert len(found["instance"]) == 3
    assert {"web", "default/eg/http"} <= set(found["domain"])
    assert {"tenant", "remote_address"} <= set(found["key1"])
    assert "path_/users/export*" in found["key2"]


def test_every_alert_can_be_evaluated_on_real_series(run: Run) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in run.prometheus.api("rules")["groups"] for rule in group["rules"]]

    run.prometheus.wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), "all were evaluated")

    assert len(rules()) == len(load("alerts.yaml")["groups"][0]["rules"])
    assert [rule["lastError"] for rule in rules() if rule["health"] != "ok"] == []


def test_a_rule_at_two_places_has_one_row(run: Run) -> None:
    """While a rollout replaces the rules, instances have a rule at different lines."""
    (query,) = [query for query in queries() if "ratelimit_rule_info" in query]

    def places(query: str) -> list[str]:
        return [series["place"] for series in run.prometheus.labels(query)]

    run.prometheus.wait_until(lambda: len(places('ratelimit_rule_info{domain="web-trial"}')) == 2, "both have it")
    assert len(places(filled(query).replace('domain=~".+"', 'domain="web-trial"'))) == 1


@pytest.mark.parametrize("query", ENVOY_GATEWAY)
def test_envoy_gateways_own_dashboard_has_data(run: Run, query: str) -> None:
    """Metrics and labels have envoyproxy's names, and a rule that Envoy Gateway writes has the levels it looks for."""
    run.prometheus.wait_until(lambda: len(run.prometheus.labels(query)) >= 1, "has data")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported_anywhere(path: Path) -> None:
    """By a uid that stays, with Grafana's own panels, and the datasource as a variable; no database's ids."""
    board = dashboard(path)
    sources = [node["datasource"] for node in walk(board) if "datasource" in node]
    panels = [node for node in walk(board) if "gridPos" in node]

    assert board["uid"] == path.stem
    assert board["id"] is None
    assert board["schemaVersion"] == 41
    assert "datasource" in variables(path)
    assert {source["uid"] for source in sources} == {"${datasource}", "-- Grafana --"}
    assert {panel["type"] for panel in panels} <= OWN_PANELS
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)
    assert all(panel["description"].endswith(".") for panel in panels if panel["type"] != "row")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_grafana_knows_every_option(path: Path) -> None:
    """Its own types drop what they do not know, and so would its panels; but for four keys that its exports have."""
    command = [sys.executable, "-c", THROUGH_TYPES, str(path)]
    environ = {"PYTHONPATH": str(peers.grafana_types())}
    through = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True).stdout

    assert dropped(dashboard(path), json.loads(through)) <= {"id", "definition", "step", "textFormat", "titleFormat"}


def dropped(node: Any, through: Any) -> set[str]:
    """The keys of ours that are missing there; an AssertionError says which value is another one there."""
    if isinstance(node, dict):
        missing: set[str] = node.keys() - through.keys()
        return missing.union(*(dropped(value, through[key]) for key, value in node.items() if key not in missing))
    if isinstance(node, list):
        return set().union(*(dropped(*pair) for pair in zip(node, through, strict=True)))
    assert node == through
    return set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_lie_side_by_side(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for grid in (node["gridPos"] for node in walk(dashboard(path)) if "gridPos" in node):
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }

        assert grid["x"] + grid["w"] <= 24
        assert not cells & taken, grid
        taken |= cells


def test_a_query_uses_no_variable_that_its_dashboard_lacks() -> None:
    for path in DASHBOARDS:
        used = set(re.findall(r"\$(\w+)", " ".join(node["expr"] for node in walk(dashboard(path)) if "expr" in node)))

        assert {name for name in used if not name.startswith("__")} <= variables(path).keys()


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    """Where compose mounts them, and by compose's name for Prometheus."""
    grafana = compose()["grafana"]
    mounted = {volume["source"]: volume["target"] for volume in grafana["volumes"]}
    (source,) = load("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    (provider,) = load("grafana/provisioning/dashboards/ratelimit.yaml")["providers"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])

    assert mounted[str(DEPLOY / "grafana/provisioning")] == "/etc/grafana/provisioning"
    assert mounted[str(DEPLOY / "grafana/dashboards")] == provider["options"]["path"] == str(home.parent)
    assert home.name in {path.name for path in DASHBOARDS}
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert source["jsonData"]["timeInterval"] == load("prometheus.yaml")["global"]["scrape_interval"]
