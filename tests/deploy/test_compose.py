"""deploy/compose.yaml and what it mounts.

Envoy's configuration runs in a real Envoy before the service, as compose would start both, but for names and ports.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.files import read_files
from tests import peers
from tests.clocks import stay_within
from tests.deploy.deployed import DEPLOY, compose, deployed, load
from tests.deploy.known import max_stop, understood
from tests.envoy.proxy import Envoy
from tests.processes import ROOT, ask, start_service
from tests.redis import start_redis
from tests.transports.certificates import authority, issue

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def envoy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    """Envoy as deployed; each test has a route of its own."""
    with deployed(tmp_path_factory.mktemp("compose")) as running:
        yield running.envoy


def test_compose_says_nothing_that_the_service_does_not_understand() -> None:
    """And it has time to drain before it is killed."""
    settings = understood(compose()["ratelimit"]["environment"])

    assert max_stop(settings) < seconds(compose()["ratelimit"]["stop_grace_period"])


def test_what_compose_mounts_is_there() -> None:
    """And nothing may be written there; but what Prometheus has seen outlives its container."""
    volumes = [volume for service in compose().values() for volume in service.get("volumes", [])]
    mounted = [volume for volume in volumes if volume["type"] == "bind"]
    kept = [volume for volume in volumes if volume not in mounted]

    assert len(mounted) == 9
    assert all(volume["read_only"] and Path(volume["source"]).exists() for volume in mounted)
    assert [(volume["type"], volume["target"]) for volume in kept] == [("volume", "/prometheus")]
    assert "--storage.tsdb.path=/prometheus" in compose()["prometheus"]["command"]
    assert Path(compose()["ratelimit"]["build"]["context"], "Dockerfile").exists()


def test_both_instances_are_the_same_but_for_their_ports() -> None:
    """Of one image, which is built once."""
    first, second = compose()["ratelimit"], compose()["ratelimit-2"]

    assert {key for key in first if first[key] != second.get(key)} == {"build", "ports"}


def test_every_image_has_a_version() -> None:
    """And Envoy's is the one that the tests run."""
    images = {name: service["image"] for name, service in compose().items()}

    assert images.pop("ratelimit") == images.pop("ratelimit-2") == "ratelimit-service"
    assert images.keys() == {"envoy", "grafana", "prometheus", "redis"}
    assert all(re.search(r":v?\d+\.\d+", image) for image in images.values())
    assert images["envoy"] == f"envoyproxy/envoy:v{peers.ENVOY[0].partition('==')[2]}"


def test_others_start_when_both_instances_are_healthy() -> None:
    """Their health is the image's HEALTHCHECK."""
    healthy = {"condition": "service_healthy", "required": True}

    for name in ("envoy", "prometheus"):
        assert compose()[name]["depends_on"] == {"ratelimit": healthy, "ratelimit-2": healthy}


def test_counters_are_in_redis_which_forgets_none() -> None:
    """An evicted counter is a fresh allowance."""
    assert understood(compose()["ratelimit"]["environment"]).backend_type == "redis"
    assert compose()["ratelimit"]["depends_on"] == {"redis": {"condition": "service_healthy", "required": True}}
    assert "noeviction" in compose()["redis"]["command"]


def test_prometheus_reads_where_the_service_and_envoy_answer() -> None:
    """By compose's names, on the ports that compose publishes."""
    targets = {
        job["job_name"]: (job["static_configs"][0]["targets"], job["metrics_path"])
        for job in load("prometheus.yaml")["scrape_configs"]
    }

    assert targets == {
        "ratelimit": (["ratelimit:8080", "ratelimit-2:8080"], "/metrics"),
        "envoy": (["envoy:9901"], "/stats/prometheus"),
    }
    assert load("prometheus.yaml")["rule_files"] == ["alerts.yaml"]


def test_envoy_hears_of_a_drain_before_it_is_over() -> None:
    """An interval, a timeout, and the second in which Envoy gathers changes."""
    clusters = {cluster["name"]: cluster for cluster in load("envoy.yaml")["static_resources"]["clusters"]}
    (check,) = clusters["ratelimit"]["health_checks"]
    hears = seconds(check["interval"]) * check["unhealthy_threshold"] + seconds(check["timeout"]) + 1

    assert hears < understood(compose()["ratelimit"]["environment"]).drain_seconds
    assert check["grpc_health_check"] == {"service_name": "ratelimit"}


def test_rules_of_the_deployment_and_the_examples_get_along() -> None:
    """They are one rulebook."""
    book = parse([*read_files(ROOT / "config"), *read_files(DEPLOY / "rules")])

    assert {"shop", "web", "web-trial"} <= book.domains.keys()


def test_a_client_is_limited_by_its_address(envoy: Envoy) -> None:
    """With the service's headers and Envoy's."""
    reply = envoy.get("/")

    assert (reply.status, reply.body) == (200, "Hello from behind Envoy\n")
    assert reply.headers["ratelimit-limit"] == "1000"
    assert reply.headers["x-ratelimit-limit"] == "1000, 1000;w=3600"


def test_a_user_is_limited_and_so_are_exports(envoy: Envoy) -> None:
    """Three descriptors of one request."""
    stay_within(3600)

    assert envoy.statuses(3, "/users/export", x_user="ada") == [200, 200, 429]
    assert envoy.statuses(3, "/users", x_user="ada") == [200, 200, 429]


def test_tokens_are_charged_as_the_request_says(envoy: Envoy) -> None:
    """A hundred a day."""
    stay_within(86_400)

    assert envoy.statuses(3, "/tokens", x_tokens="40") == [200, 200, 429]


def test_a_tenant_has_the_limit_that_envoy_brings_along(envoy: Envoy) -> None:
    """Three, not the rules' one."""
    stay_within(3600)

    assert envoy.statuses(4, "/tenant") == [200, 200, 200, 429]


def test_rules_on_trial_refuse_nobody(envoy: Envoy) -> None:
    """In a domain of their own."""
    assert envoy.statuses(5, "/trial", x_user="ada") == [200] * 5


def test_the_example_rules_are_there_too(envoy: Envoy) -> None:
    """Five logins a minute; the reset says it is a minute's window, whose end may fall between two requests."""
    statuses = envoy.statuses(11, "/login", x_user="ada")

    assert statuses[:5] == [200] * 5
    assert 429 in statuses


WITH_PLACES = """
domain: shop
descriptors: [{key: request_id, rate_limit: {concurrency: 2, hold: 60s, place: request_id}}]
"""


def test_alerts_are_about_metrics_that_exist(tmp_path: Path) -> None:
    """Each name in each expression is in what the service or Envoy tell Prometheus, once it has happened."""
    rules = [rule for group in load("alerts.yaml")["groups"] for rule in group["rules"]]
    names = {name for rule in rules for name in re.findall(r"\b(?:ratelimit|envoy)_\w+", rule["expr"])}
    unknown = '{"domain": "nobody", "descriptors": [{"entries": [{"key": "a", "value": "b"}]}]}'
    known = unknown.replace("nobody", "web")
    with deployed(tmp_path, {"WORKERS": "2"}) as (service, envoy, _):
        asked = [ask(service.http_port, "/json", method="POST", body=body).status for body in (unknown, known)]
        told = service.metrics()
        service.kill()
        passed = envoy.get("/").status
        told += ask(envoy.admin_port, "/stats/prometheus").body
    with start_redis(tmp_path / "redis") as redis:
        url = f"127.0.0.1:{redis.port}"
        regions = {"REDIS_URL": url, "HOME_REDIS_URL": url, "REGION": "eu", "REGIONS": "eu,us"}
        with start_service(tmp_path / "rest", WITH_PLACES, regions | own_tls(tmp_path)) as rest:
            told += rest.metrics()
    missing = {name for name in names if not re.search(rf"^{name}[{{ ]", told, re.MULTILINE)}

    assert (asked, passed) == ([200, 200], 200)
    assert len(names) == 30
    assert missing == set()


def own_tls(folder: Path) -> dict[str, str]:
    """TLS, which compose leaves out, on the gRPC port, and on the debug port."""
    own = issue(authority(folder), "server", "DNS:localhost")
    return own.environ | {"ADMIN_TLS_CERT": str(own.cert), "ADMIN_TLS_KEY": str(own.key)}


def seconds(text: str) -> float:
    """`20s` and `0.25s`."""
    assert text.endswith("s")
    return float(text[:-1])
