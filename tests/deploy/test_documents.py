"""What README.md and docs/deploy.md give for Envoy works in a real one, and the picture shows what a table says."""

import re
import runpy
from pathlib import Path
from typing import Any

import yaml

from tests.envoy.proxy import address, bootstrap, endpoint, route, start_envoy
from tests.processes import ROOT, start_service

RULES = "domain: shop\ndescriptors: [{key: login, rate_limit: {unit: year, requests_per_unit: 2}}]\n"


def blocks(document: str) -> list[Any]:
    """Its blocks of YAML."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def with_filter(configuration: dict[str, Any], rate_limit: Any) -> dict[str, Any]:
    """The document's filter in place of the tests' own."""
    manager = configuration["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"][0] = rate_limit
    return configuration


def test_the_filter_the_route_and_the_cluster_limit(tmp_path: Path) -> None:
    """With the service's address, and time for a busy machine."""
    [rate_limit], actions = blocks("README.md")
    _, clusters, _, checks = blocks("docs/deploy.md")
    rate_limit["typed_config"]["timeout"] = "10s"
    with start_service(tmp_path / "service", RULES) as service:
        cluster = clusters["clusters"][0] | checks
        cluster["load_assignment"]["endpoints"] = [endpoint(address(service.grpc_port))]
        configuration = bootstrap([], [route("/", *actions["rate_limits"])])
        configuration["static_resources"]["clusters"][1] = cluster
        with start_envoy(tmp_path / "envoy", with_filter(configuration, rate_limit)) as envoy:
            envoy.wait_until(lambda: envoy.healthy_ports() == {service.grpc_port}, "the service is healthy")

            assert envoy.statuses(3, "/", **{"x-user": "ada"}) == [200, 200, 429]


def test_the_filter_with_its_options_limits_and_tells_what_is_left(tmp_path: Path) -> None:
    filters, _, asked, _ = blocks("docs/deploy.md")
    rate_limit = filters["http_filters"][0]
    rate_limit["typed_config"]["timeout"] = "10s"
    with start_service(tmp_path / "service", RULES.replace("login", "user")) as service:
        configuration = bootstrap([service.grpc_port], [route("/", *asked["route"]["rate_limits"])])
        with start_envoy(tmp_path / "envoy", with_filter(configuration, rate_limit)) as envoy:
            answer = envoy.get("/", **{"x-user": "ada"})

            assert answer.headers["x-ratelimit-remaining"] == "1"


def test_the_picture_of_the_benchmark_is_that_of_the_table() -> None:
    """If this fails: python docs/benchmark.py."""
    drawn = runpy.run_path(str(ROOT / "docs" / "benchmark.py"))["drawn"]()

    assert (ROOT / "docs" / "pictures" / "benchmark.svg").read_text(encoding="utf-8") == drawn
