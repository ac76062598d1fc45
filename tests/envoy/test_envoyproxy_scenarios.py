"""The scenarios of envoyproxy/ratelimit's integration scripts, with limits by the year so that nothing has to wait."""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.envoy.proxy import (
    Envoy,
    abstract_socket,
    bootstrap,
    by,
    cluster,
    echo,
    endpoint,
    http_filter,
    route,
    start_envoy,
)
from tests.processes import Service, eventually, start_service

RULES: Final = """
domain: rl
descriptors:
  - {key: kind, value: account, rate_limit: {unit: year, requests_per_unit: 4, replaces: [{name: rare}, {name: fake}]}}
  - key: source_cluster
    value: proxy
    descriptors:
      - key: destination_cluster
        value: rare
        rate_limit: {unit: year, requests_per_unit: 2, replaces: [{name: rare}]}
      - key: destination_cluster
        value: override
        rate_limit: {unit: year, requests_per_unit: 2, replaces: [{name: banned}]}
      - {key: destination_cluster, value: fake, rate_limit: {unit: year, requests_per_unit: 2, name: fake}}
      - {key: destination_cluster, value: echo, rate_limit: {unit: year, requests_per_unit: 1}}
  - key: foo
    descriptors:
      - {key: bar, value: rare, rate_limit: {unit: year, requests_per_unit: 1, name: rare}}
      - {key: bar, value: banned, rate_limit: {unit: year, requests_per_unit: 0, name: banned}}
      - {key: baz, value: bright, rate_limit: {unit: year, requests_per_unit: 3}}
      - {key: baz, value: shady, rate_limit: {unit: year, requests_per_unit: 3}, shadow_mode: true}
  - {key: any, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}
"""
QUOTAS: Final = "".join(
    f"""
  - key: {key}
    value: {name}
    quota_mode: true
    rate_limit: {{unit: year, requests_per_unit: {limit}}}
    metadata: {{chosen: {{name: {name}}}}}"""
    for key in ("passing", "service", "chosen")
    for name, limit in (("first", 1), ("second", 2))
)

_CHOSEN: Final = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:chosen:name)%"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[Service]:
    """The service as those scripts start it, one for each transport: the limits are used up afterwards."""
    rules = RULES + QUOTAS.lstrip("\n") + "\n"
    environ = {"TRANSPORT": transport, "RESPONSE_DYNAMIC_METADATA": "true"}
    with start_service(tmp_path_factory.mktemp("service"), rules, environ) as service:
        yield service


@pytest.fixture(scope="module")
def envoy(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    """Envoy with the routes of those scripts; what stands behind /chosen is chosen by what the service answers."""
    on_done: dict[str, Any] = {"hits_addend": {"number": 1}, "apply_on_stream_done": True}
    served_by = {
        "descriptor_key": "chosen",
        "source": "CLUSTER_LOCALITY_ENTRY",
        "metadata_key": {"key": "instance", "path": [{"key": "name"}]},
    }
    routes = [
        route("/cluster", {"actions": [{"source_cluster": {}}, {"destination_cluster": {}}]}),
        route("/two", by(("foo", "x-foo"), ("bar", "x-bar")), by(("foo", "x-foo"), ("baz", "x-baz"))),
        route(
            "/five",
            by(("foo", "x-foo"), ("bar", "x-bar")),
            by(("source_cluster", "x-from"), ("destination_cluster", "x-to")),
            by(("kind", "x-kind")),
        ),
        route("/any", by(("any", "x-any"))),
        route("/quota", by(("passing", "=first")), by(("passing", "=second"))),
        route(
            "/tokens",
            per_route={
                "rate_limits": [
                    by(("service", "=second"), hits_addend={"number": 0}),
                    by(("service", "=second"), **on_done),
                ]
            },
        ),
        {
            **route(
                "/chosen",
                per_route={
                    "rate_limits": [
                        by(("chosen", "=first"), hits_addend={"number": 0}),
                        by(("chosen", "=second"), hits_addend={"number": 0}),
                        {"actions": [{"metadata": served_by}], **on_done},
                    ]
                },
            ),
            "route": {"cluster": "instances"},
        },
    ]
    tell = {"append": {"header": {"key": "x-chosen", "value": _CHOSEN}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
    choose = {
        "header": "x-chosen",
        "on_header_present": {"metadata_namespace": "envoy.lb", "key": "name", "type": "STRING"},
    }
    filters = [
        http_filter(
            "tell", "filters.http.header_mutation.v3.HeaderMutation", {"mutations": {"request_mutations": [tell]}}
        ),
        http_filter("choose", "filters.http.header_to_metadata.v3.Config", {"request_rules": [choose]}),
    ]
    options = {"domain": "rl", "failure_mode_deny": True}
    configuration = bootstrap([service.grpc_port], routes, filter_options=options, filters_after=filters)
    instances = []
    for name in ("first", "second"):
        at = abstract_socket()
        configuration["static_resources"]["listeners"].append(echo(name, at))
        instances.append(
            endpoint(
                at,
                locality={"region": name},
                metadata={"filter_metadata": {"instance": {"name": name}}},
                host={"metadata": {"filter_metadata": {"envoy.lb": {"name": name}}}},
            )
        )
    subsets = {"fallback_policy": "ANY_ENDPOINT", "subset_selectors": [{"keys": ["name"]}]}
    configuration["static_resources"]["clusters"].append(cluster("instances", instances, lb_subset_config=subsets))
    with start_envoy(tmp_path_factory.mktemp("envoy"), configuration) as envoy:
        yield envoy


def test_a_request_without_limits_passes(envoy: Envoy) -> None:
    """simple-get."""
    assert envoy.get("/two", x_foo="test", x_baz="none").status == 200


def test_the_clusters_of_a_request_can_be_limited(envoy: Envoy) -> None:
    """Envoy's own (`--service-cluster proxy`), and that of what stands behind."""
    assert envoy.statuses(2, "/cluster") == [200, 429]


def test_a_limit_triggers(envoy: Envoy) -> None:
    """trigger-ratelimit."""
    assert envoy.statuses(4, "/two", x_foo="pelle", x_baz="bright") == [200, 200, 200, 429]


def test_a_shadow_key_does_not_trigger(envoy: Envoy) -> None:
    """trigger-shadow-mode-key."""
    assert envoy.statuses(5, "/two", x_foo="pelle", x_baz="shady") == [200] * 5


def test_replacing_raises_a_limit(envoy: Envoy) -> None:
    """replaces, its first part: nobody is banned who goes to `override`."""
    assert envoy.statuses(1, "/two", x_foo="a", x_bar="banned") == [429]
    assert envoy.statuses(1, "/five", x_foo="a", x_bar="banned", x_from="proxy", x_to="nowhere") == [429]
    assert envoy.statuses(3, "/five", x_foo="a", x_bar="banned", x_from="proxy", x_to="override") == [200, 200, 429]


def test_a_replaced_limit_is_not_used_up(envoy: Envoy) -> None:
    """replaces, its second part: the counter of `rare` begins when it is no longer replaced."""
    rare = {"x_foo": "b", "x_bar": "rare"}

    assert envoy.statuses(3, "/five", **rare, x_from="proxy", x_to="rare") == [200, 200, 429]
    assert envoy.statuses(2, "/five", **rare, x_from="proxy", x_to="nowhere") == [200, 429]
    assert envoy.statuses(1, "/five", **rare, x_from="proxy", x_to="rare") == [429]


def test_several_limits_can_be_replaced_at_once(envoy: Envoy) -> None:
    """replaces, its third part: an account has four, whatever `rare` and `fake` say."""
    account = {"x_foo": "c", "x_bar": "rare", "x_from": "proxy", "x_to": "fake", "x_kind": "account"}

    assert envoy.statuses(5, "/five", **account) == [200, 200, 200, 200, 429]


def test_a_value_is_in_the_metrics_when_asked_for(envoy: Envoy, service: Service) -> None:
    """value-included-in-stats-key-when-unspecified."""
    assert envoy.statuses(3, "/any", x_any="unspecified_value") == [200, 200, 429]
    assert counted(service, "over_limit", "any_unspecified_value") == 1


def test_a_request_passes_while_one_of_its_quotas_is_left(envoy: Envoy) -> None:
    """quota: one and two."""
    assert envoy.statuses(3, "/quota") == [200, 200, 429]


def test_tokens_can_be_charged_when_the_response_is_done(envoy: Envoy, service: Service) -> None:
    """token-quota: the request only looks, so the one that crosses the limit of two still passes."""
    statuses = []
    for charged in (1, 2, 3):
        statuses.append(envoy.get("/tokens").status)
        wait_until_charged(service, "service_second", charged)
    statuses.append(envoy.get("/tokens").status)

    assert statuses == [200, 200, 200, 429]


def test_the_quota_that_is_left_chooses_who_answers(envoy: Envoy, service: Service) -> None:
    """multiservice-tokenquota: two of the first, three of the second, then nobody."""
    answers = []
    for key, charged in (("first", 1), ("first", 2), ("second", 1), ("second", 2), ("second", 3)):
        answers.append(envoy.get("/chosen").body)
        wait_until_charged(service, f"chosen_{key}", charged)
    refused = envoy.get("/chosen")

    assert answers == ["first", "first", "second", "second", "second"]
    assert refused.status == 429


def wait_until_charged(service: Service, key: str, hits: int) -> None:
    """Envoy does it after the response, and nobody waits for it."""
    eventually(lambda: counted(service, "total_hits", key) == hits, f"{key} is charged {hits} times")


def counted(service: Service, stat: str, key: str) -> int:
    """What has been counted for a rule of the first level."""
    name = re.escape(f'ratelimit_service_rate_limit_{stat}{{domain="rl",key1="{key}"}}')
    found = re.search(rf"^{name} (\d+)", service.metrics(), re.MULTILINE)
    return int(found[1]) if found else 0
