"""deploy/helm/ratelimit: what Helm makes of it is what Kubernetes, Prometheus's operator and the service take.

There is no cluster here. Each file of tests/deploy/helm is somebody's values: it is rendered, held to the API server's
schemas, and its environment given to the service's own reader of settings.
"""

import copy
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import ratelimit_service
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import Backend, RedisType
from tests import peers
from tests.deploy.manifests import OF_OPERATOR, Manifest, applied, container, invalid, of_kind, pod, read_all, settings
from tests.processes import ROOT, start_service

pytestmark = pytest.mark.extended

CHART: Final = ROOT / "deploy" / "helm" / "ratelimit"
CASES: Final = sorted((ROOT / "tests" / "deploy" / "helm").glob("*.yaml"))
SECRETS_OF_OPERATORS: Final = {"ADMIN_TOKEN": "0123456789abcdef0123456789abcdef"}
SECRETS: Final = {
    "redis": {"REDIS_AUTH": "p"},
    "sentinel": dict.fromkeys(
        ("REDIS_AUTH", "REDIS_SENTINEL_AUTH", "REDIS_PERSECOND_AUTH", "REDIS_PERSECOND_SENTINEL_AUTH"), "p"
    ),
    "cluster-tls": {"REDIS_AUTH": "p"},
    "everything": {"REDIS_AUTH": "p", "REDIS_PERSECOND_AUTH": "p", "HOME_REDIS_AUTH": "p", **SECRETS_OF_OPERATORS},
}


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(peers.helm()), *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def template(*words: str, release: str = "ratelimit") -> subprocess.CompletedProcess[str]:
    """Helm asks no cluster, so it is told its version."""
    return helm("template", release, str(CHART), "--kube-version", peers.KUBERNETES[-1], *words)


def rendered(*words: str, release: str = "ratelimit") -> list[Manifest]:
    """Without what `helm test` starts."""
    done = template("--skip-tests", *words, release=release)
    assert done.returncode == 0, done.stderr
    return read_all(done.stdout)


def case(name: str) -> list[Manifest]:
    return rendered("--values", f"tests/deploy/helm/{name}.yaml")


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def test_helm_has_nothing_against_the_chart() -> None:
    linted = helm("lint", "--strict", "--kube-version", peers.KUBERNETES[-1], str(CHART))

    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert {chart["version"], chart["appVersion"]} == {ratelimit_service.__version__}
    assert chart["kubeVersion"] == f">={peers.KUBERNETES[0]}.0-0"


@pytest.mark.parametrize("file", CASES, ids=[file.stem for file in CASES])
def test_kubernetes_and_the_service_take_what_is_rendered(file: Path, tmp_path: Path) -> None:
    manifests = case(file.stem)

    assert invalid(manifests, tmp_path) == ""
    settings(manifests, secrets=SECRETS.get(file.stem))


def test_the_schemas_refuse_a_field_that_kubernetes_does_not_know(tmp_path: Path) -> None:
    manifests = rendered()
    pod(manifests)["spec"]["enableServiceLink"] = False

    assert "'enableServiceLink' was unexpected" in invalid(manifests, tmp_path)


@pytest.mark.parametrize("monitor", ["podMonitor", "serviceMonitor"])
def test_the_schemas_of_prometheus_s_operator_take_both_monitors_and_refuse_what_it_does_not_know(
    monitor: str, tmp_path: Path
) -> None:
    manifests = rendered("--set", f"{monitor}.enabled=true,prometheusRule.enabled=true")
    taken = invalid(manifests, tmp_path)
    of_kind(manifests, f"{monitor[0].upper()}{monitor[1:]}")["spec"]["job"] = "ratelimit"
    of_kind(manifests, "PrometheusRule")["spec"]["groups"][0]["rules"][0]["for"] = 5

    refused = invalid(manifests, tmp_path)

    assert taken == ""
    assert "'job' was unexpected" in refused
    assert "PrometheusRule $.spec.groups[0].rules[0].for 5 is not of type 'string'" in refused


def test_with_no_values_it_is_what_deploy_kubernetes_is(tmp_path: Path) -> None:
    """But for the labels that say which release it is, the tag that kustomize gives, and names in Secrets' order."""

    def plain(manifests: list[Manifest]) -> dict[str, Any]:
        found = {}
        for manifest in copy.deepcopy(manifests):
            manifest["metadata"].pop("labels", None)
            match manifest["kind"]:
                case "Deployment":
                    manifest["spec"].pop("selector")
                    manifest["spec"]["template"].pop("metadata")
                    (only,) = manifest["spec"]["template"]["spec"]["containers"]
                    only["env"].sort(key=lambda variable: variable["name"])
                    only["image"] = only["image"].partition(":")[0]
                case "ConfigMap":
                    manifest["data"] = {name: yaml.safe_load(text) for name, text in manifest["data"].items()}
                case _:
                    manifest["spec"].pop("selector")
            found[manifest["kind"]] = manifest
        return found

    assert plain(rendered()) == plain(applied())
    assert invalid(applied(), tmp_path) == ""
    assert container(rendered())["image"] == f"ratelimit-service:{ratelimit_service.__version__}"


@pytest.mark.parametrize("name", ["redis", "everything"])
def test_everything_selects_the_pods_of_the_release(name: str) -> None:
    manifests = case(name)
    labels = pod(manifests)["metadata"]["labels"]
    selectors = [
        of_kind(manifests, "Deployment")["spec"]["selector"]["matchLabels"],
        of_kind(manifests, "Service")["spec"]["selector"],
        of_kind(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ]
    if name == "everything":
        (spread,) = pod(manifests)["spec"]["topologySpreadConstraints"]
        selectors += [
            of_kind(manifests, "PodMonitor")["spec"]["selector"]["matchLabels"],
            of_kind(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
            spread["labelSelector"]["matchLabels"],
        ]

    for selector in selectors:
        assert selector == {"app.kubernetes.io/name": "ratelimit", "app.kubernetes.io/instance": "ratelimit"}
        assert selector.items() <= labels.items()


def test_every_resource_has_the_labels_of_all_and_a_name_of_the_release() -> None:
    manifests = case("everything")

    assert {manifest["metadata"]["name"] for manifest in manifests} == {"limits"}
    assert all(manifest["metadata"]["labels"]["team"] == "edge" for manifest in manifests)
    assert {manifest["metadata"]["name"] for manifest in rendered(release="eu")} == {
        "eu-ratelimit",
        "eu-ratelimit-rules",
    }


def test_labels_of_the_pods_win_over_those_of_all_and_none_over_what_selects() -> None:
    labels = "commonLabels.a=all,podLabels.a=pods,podLabels.app\\.kubernetes\\.io/name=other"
    manifests = rendered("--set", labels)

    assert of_kind(manifests, "Deployment")["metadata"]["labels"]["a"] == "all"
    assert pod(manifests)["metadata"]["labels"]["a"] == "pods"
    assert pod(manifests)["metadata"]["labels"]["app.kubernetes.io/name"] == "ratelimit"


def test_values_have_the_defaults_of_the_settings() -> None:
    """Format of the log and the drain differ on purpose, as in deploy/kubernetes."""
    ours, theirs = values(), Settings.model_fields
    redis = ours["redis"]
    fields = {
        "workers": ours["workers"],
        "redis_tls": redis["tls"]["enabled"],
        "redis_tls_skip_hostname_verification": redis["tls"]["skipHostnameVerification"],
        "redis_health_check_active_connection": redis["healthCheck"],
        "on_store_failure": redis["onStoreFailure"],
        "cache_key_prefix": redis["keyPrefix"],
        "log_level": ours["logging"]["level"],
        "instances": ours["replicaCount"],
    }

    assert {name: str(value).lower() for name, value in fields.items()} == {
        name: str(theirs[name].default).lower() for name in fields
    }
    assert (redis["type"], ours["store"]) == (RedisType.SINGLE, Backend.MEMORY)


def test_what_the_values_do_not_say_is_the_default_of_the_service() -> None:
    """With one Redis, nothing but where it is differs from a service that is told no more than that."""
    found = settings(rendered("--set", "store=redis,redis.url=redis:6379"))
    told = {"backend_type", "redis_url", "log_format", "drain_seconds", "drain_timeout"}
    default = settings(rendered())

    differs = {name for name in Settings.model_fields if getattr(found, name) != getattr(default, name)}
    assert differs <= told


def test_the_service_finds_sentinels_clusters_files_and_sidecars() -> None:
    sentinel = settings(case("sentinel"), secrets=SECRETS["sentinel"])
    cluster = settings(case("cluster-tls"), secrets=SECRETS["cluster-tls"])
    manifests = case("sidecar")

    assert sentinel.redis_type is RedisType.SENTINEL
    assert sentinel.redis_health_check_active_connection
    assert cluster.redis_type is RedisType.CLUSTER
    assert cluster.redis_tls
    for file in (cluster.redis_tls_cacert, cluster.redis_tls_client_cert, cluster.redis_tls_client_key):
        assert {"name": "redis-tls", "mountPath": str(Path(file).parent), "readOnly": True} in container(
            case("cluster-tls")
        )["volumeMounts"]
    mount, _ = container(manifests)["volumeMounts"]
    assert str(settings(manifests).rules_path) == f"{mount['mountPath']}/current/rules"
    volume, _ = pod(manifests)["spec"]["volumes"]
    assert volume == {"name": "rules", "emptyDir": {"sizeLimit": "64Mi"}}
    assert not [manifest for manifest in manifests if manifest["kind"] == "ConfigMap"]


def test_limits_per_second_have_a_redis_of_their_own_where_the_values_name_one() -> None:
    sentinel = settings(case("sentinel"), secrets=SECRETS["sentinel"]).second_redis
    plain = settings(case("everything"), secrets=SECRETS["everything"]).second_redis

    assert sentinel is not None
    assert plain is not None
    assert (sentinel.type, sentinel.tls) == (RedisType.SENTINEL, False)
    assert sentinel.url.get_secret_value().startswith("persecond,")
    assert sentinel.sentinel_auth.get_secret_value() == "p"
    assert (plain.type, plain.tls) == (RedisType.SINGLE, True)
    assert settings(case("redis"), secrets=SECRETS["redis"]).second_redis is None


def test_regions_and_the_redis_that_they_share_are_named_by_the_values() -> None:
    found = settings(case("everything"), secrets=SECRETS["everything"])

    assert (found.region, found.regions) == ("us", ("eu", "us"))
    assert found.home_redis is not None
    assert found.home_redis.url.get_secret_value() == "home:6379"
    assert (found.home_redis.type, found.home_redis.tls) == (RedisType.SINGLE, True)
    assert found.home_redis.auth.get_secret_value() == "p"


def test_agent_router_gets_the_service_that_its_controller_expects(tmp_path: Path) -> None:
    """As the Deployment of docs/control-planes.md, for those without Helm, starts it."""
    preset = str(CHART / "agent-router.yaml")
    manifests = rendered("--values", preset, "--set", "redis.url=redis.redis.svc:6379", release="quotas")
    text = (ROOT / "docs" / "control-planes.md").read_text(encoding="utf-8")
    (block,) = (each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: Deployment" in each)
    documented = read_all(block)
    service, expected = of_kind(manifests, "Service"), of_kind(documented, "Service")
    environ = {each["name"]: each.get("value") for each in container(manifests)["env"]}

    assert invalid(manifests, tmp_path) == invalid(documented, tmp_path) == ""
    assert settings(manifests).config_grpc_xds_server_url == "ai-gateway-controller.envoy-ai-gateway-system:18002"
    assert {each["name"]: each["value"] for each in container(documented)["env"]}.items() <= environ.items()
    assert service["metadata"]["name"] == expected["metadata"]["name"] == "envoy-ai-gateway-ratelimit"
    assert {"grpc": 8081}.items() <= {port["name"]: port["port"] for port in service["spec"]["ports"]}.items()
    assert not [each for each in manifests if each["kind"] == "ConfigMap"]
    assert [volume["name"] for volume in pod(manifests)["spec"]["volumes"]] == ["tmp"]


def test_each_pod_grants_its_share_when_redis_is_lost() -> None:
    """Under the autoscaler, that of the most pods: less than the limit, and never more."""
    assert settings(case("redis"), secrets=SECRETS["redis"]).instances == 3
    assert settings(case("everything"), secrets=SECRETS["everything"]).instances == 9


def test_numbers_and_booleans_of_env_reach_the_service_as_written() -> None:
    found = settings(case("everything"), secrets=SECRETS["everything"])

    assert found.refused_max_counters == 2_000_000
    assert found.near_limit_ratio == 0.9
    assert found.response_retry_after is True


def test_the_operators_port_has_tls_by_the_secret_that_is_mounted() -> None:
    found = settings(case("everything"), secrets=SECRETS["everything"])
    manifests = case("everything")
    files = found.admin_tls_cert, found.admin_tls_key, found.admin_client_tls_cacert

    assert [Path(file).name for file in files] == ["tls.crt", "tls.key", "ca.crt"]
    for file in files:
        mount = {"name": "admin-tls", "mountPath": str(Path(file).parent), "readOnly": True}
        assert mount in container(manifests)["volumeMounts"]
    assert {"name": "admin-tls", "secret": {"secretName": "operators-tls"}} in pod(manifests)["spec"]["volumes"]
    assert settings(case("redis"), secrets=SECRETS["redis"]).admin_tls_cert == ""


def test_behind_tls_readiness_is_asked_over_http() -> None:
    """The kubelet's gRPC probe speaks no TLS: it would find no pod ready, ever."""
    probe = container(case("everything"))["readinessProbe"]

    assert "grpc" not in probe
    assert probe["httpGet"] == {"path": "/healthcheck", "port": "http"}
    assert settings(case("everything"), secrets=SECRETS["everything"]).grpc_server_use_tls


def test_liveness_is_asked_where_no_token_is_known() -> None:
    """A probe that got 401 from 6070 would have the pod restarted for ever.

    That it is answered there shows `test_a_draining_pod_is_alive_and_not_ready`, with the manifests' probe.
    """
    probe = container(case("everything"))["livenessProbe"]

    assert settings(case("everything"), secrets=SECRETS["everything"]).admin_read_needs_token
    assert probe["httpGet"] == {"path": "/livez", "port": "http"}


def test_the_network_policy_closes_the_operator_s_port() -> None:
    """To all but whom the values name: a rule without `from` lets everything in."""
    closed = of_kind(rendered("--set", "networkPolicy.enabled=true"), "NetworkPolicy")["spec"]
    opened = of_kind(case("everything"), "NetworkPolicy")["spec"]
    names = {port["name"] for port in container(rendered())["ports"]}

    assert closed["policyTypes"] == ["Ingress"]
    assert closed["ingress"] == [{"ports": [{"port": "grpc"}]}, {"ports": [{"port": "http"}]}]
    assert opened["ingress"] == [
        {"ports": [{"port": "grpc"}], "from": [{"podSelector": {"matchLabels": {"app": "envoy"}}}]},
        {"ports": [{"port": "http"}]},
        {
            "ports": [{"port": "debug"}],
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "operators"}}}],
        },
    ]
    assert names == {"grpc", "http", "debug"}


def test_other_pods_reach_the_operator_s_port_only_where_the_values_say_so() -> None:
    assert settings(rendered()).debug_host == ("127.0.0.1",)
    assert settings(case("everything"), secrets=SECRETS["everything"]).debug_host == ("::",)


def test_prometheus_has_the_same_alerts_and_the_job_that_they_ask_for() -> None:
    """The chart's file is a copy, because a chart cannot have files from elsewhere."""
    alerts = (ROOT / "deploy" / "alerts.yaml").read_text(encoding="utf-8")
    manifests = case("everything")
    rule, monitor = of_kind(manifests, "PrometheusRule"), of_kind(manifests, "PodMonitor")
    service = of_kind(rendered("--set", "serviceMonitor.enabled=true"), "ServiceMonitor")
    endpoint = {
        "port": "http",
        "path": "/metrics",
        "relabelings": [{"targetLabel": "job", "replacement": "ratelimit"}],
    }

    assert (CHART / "files" / "alerts.yaml").read_text(encoding="utf-8") == alerts
    assert rule["spec"] == yaml.safe_load(alerts)
    assert rule["metadata"]["labels"]["release"] == monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["podMetricsEndpoints"] == [endpoint | {"interval": "15s"}]
    assert service["spec"]["endpoints"] == [endpoint | {"interval": "30s"}]
    assert '{job="ratelimit"}' in alerts
    for each in (rule, monitor, service):
        assert each["apiVersion"] == OF_OPERATOR


def test_rules_of_a_release_stand_in_place_of_the_example(tmp_path: Path) -> None:
    """Helm merges maps: a default of `files` would be loaded beside them."""
    file = tmp_path / "values.yaml"
    file.write_text("rules: {files: {shop.yaml: 'domain: shop'}}", encoding="utf-8")

    assert of_kind(rendered("--values", str(file)), "ConfigMap")["data"] == {"shop.yaml": "domain: shop"}


def test_the_example_s_rules_load() -> None:
    files = of_kind(rendered(), "ConfigMap")["data"]

    assert len(parse([YamlText(name, text.encode()) for name, text in files.items()]).rules) == 2


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        ("replicaCount=2", "several pods need counters that they share"),
        ("autoscaling.enabled=true", "several pods need counters that they share"),
        ("workers=2", "several workers need counters that they share"),
        ("store=redis", "store=redis needs redis.url"),
        ("podMonitor.enabled=true,serviceMonitor.enabled=true", "would scrape every pod twice"),
        ("redis.tls.cert=tls.crt", "redis.tls.cert needs redis.tls.key"),
        ("regions.names={eu,us}", "regions.names needs regions.name"),
        ("redis.home.url=home:6379", "redis.home is shared by several regions"),
        ("admin.readNeedsToken=true", "admin.readNeedsToken needs the token"),
        ("networkPolicy.enabled=true,networkPolicy.debugFrom[0].podSelector.matchLabels.a=b", "set admin.host=::"),
        ("env.ADMIN_READ_NEEDS_TOKEN=true", "ADMIN_READ_NEEDS_TOKEN"),
        ("redis.onStoreFailure=maybe", "onStoreFailure"),
        ("replicas=3", "replicas"),
        ("env.DRAIN_SECONDS=5", "DRAIN_SECONDS"),
        ("env.lower=5", "lower"),
        ("env.PORT=9090", "env.PORT cannot be set: containers have ports of their own"),
        ("env.GRPC_PROT=http2", "env.GRPC_PROT is not a setting of docs/settings.md"),
        ("store=redis,redis.type=sentinel,redis.url=r:6379", "mymaster,host:26379"),
        ("store=redis,redis.url=a:6379\\,b:6379", "redis.url has several addresses: set redis.type"),
        ("rules.files.a\\.yaml=domain: [", "rules.files: a.yaml cannot be read"),
        ("rules.files.a\\.txt=x", "rules.files has no file of rules"),
        ("rules.files.a b=x", "a b"),
        ("rules.check=true,rules.volume.emptyDir.sizeLimit=1Mi", "rules.check is for rules.files"),
        ("rules.controlPlane.url=plane:18000,rules.existingConfigMap=mine", "rules.controlPlane is in place of files"),
        ("env.CONFIG_TYPE=GRPC_XDS_SOTW", "env.CONFIG_TYPE cannot be set: set rules.controlPlane.url"),
    ],
)
def test_values_that_would_limit_wrongly_are_refused_with_what_to_change(said: str, answered: str) -> None:
    done = template("--set", said)

    assert done.returncode != 0
    assert answered in done.stderr


def test_helm_test_calls_the_service_and_nothing_selects_its_pod(tmp_path: Path) -> None:
    """Its command is run here, where the service is another address."""
    over_tls = [read_all(template("--set", said).stdout) for said in ("tls.existingSecret=", "tls.existingSecret=tls")]
    commands = []
    for manifests in over_tls:
        test = of_kind(manifests, "Pod")
        (caller,) = test["spec"]["containers"]
        commands.append(caller["command"])
        assert invalid([test], tmp_path) == ""
        assert test["metadata"]["labels"]["app.kubernetes.io/name"] == "ratelimit-test"
    with start_service(tmp_path / "service", "domain: shop\ndescriptors: []\n") as service:
        here = {
            "ratelimit:8081": f"localhost:{service.grpc_port}",
            "'ratelimit', 8080": f"'localhost', {service.http_port}",
        }
        codes = [run_here(command, here) for command in commands]
    codes += [run_here(command, here) for command in commands]

    assert [code == 0 for code in codes] == [True, True, False, False]


def run_here(command: list[str], addresses: dict[str, str]) -> int:
    """The exit code of a command of the image, with these addresses in place of those."""
    for there, here in addresses.items():
        command = [word.replace(there, here) for word in command]
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False).returncode


def test_rules_are_checked_before_an_upgrade_where_the_values_say_so(tmp_path: Path) -> None:
    manifests = rendered("--set", "rules.check=true")
    job, rules = of_kind(manifests, "Job"), of_kind(manifests, "ConfigMap", "ratelimit-check")
    spec = job["spec"]["template"]["spec"]
    (check,) = spec["containers"]
    (mount,) = check["volumeMounts"]
    theirs = of_kind(rendered("--set", "rules.check=true,rules.existingConfigMap=my-rules"), "Job")["spec"]["template"]

    assert invalid(manifests, tmp_path) == ""
    assert check["args"] == ["check", mount["mountPath"]]
    assert check["env"] == container(manifests)["env"]
    assert spec["volumes"] == [{"name": mount["name"], "configMap": {"name": "ratelimit-check"}}]
    assert theirs["spec"]["volumes"] == [{"name": mount["name"], "configMap": {"name": "my-rules"}}]
    assert rules["data"] == of_kind(manifests, "ConfigMap", "ratelimit-rules")["data"]
    for each in (job, rules):
        assert each["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"


def test_the_notes_name_the_service_of_the_release(tmp_path: Path) -> None:
    """`helm template` leaves them out, and `helm install` wants a cluster: here they are text in a manifest."""
    templates = shutil.copytree(CHART, tmp_path / "ratelimit") / "templates"
    notes = (templates / "NOTES.txt").read_text(encoding="utf-8")
    (templates / "notes.yaml").write_text(f"kind: Notes\ntext: |\n{textwrap.indent(notes, '  ')}", encoding="utf-8")
    done = helm("template", "eu", str(templates.parent), "--namespace", "edge", "--kube-version", peers.KUBERNETES[0])

    assert done.returncode == 0, done.stderr
    (text,) = [manifest["text"] for manifest in read_all(done.stdout) if manifest["kind"] == "Notes"]
    assert "Envoy asks eu-ratelimit.edge.svc.cluster.local:8081 (gRPC, STRICT_DNS)" in text
    assert "kubectl --namespace edge port-forward deployment/eu-ratelimit 6070" in text
    assert "No registry has the image ratelimit-service:0.1.0" in text.replace(ratelimit_service.__version__, "0.1.0")


def test_the_example_of_the_readme_is_taken(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", (CHART / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    file = tmp_path / "values.yaml"
    file.write_text(example, encoding="utf-8")
    manifests = rendered("--values", str(file))

    assert invalid(manifests, tmp_path) == ""
    assert settings(manifests, secrets={"REDIS_AUTH": "p"}).instances == 3


def test_every_value_says_what_it_is() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    lines = ["", *text.splitlines()]
    tree = yaml.compose(text)
    assert isinstance(tree, yaml.MappingNode)
    silent = [path for path, line in leaves(tree) if not lines[line].lstrip().startswith("# -- ")]

    assert silent == []


def leaves(tree: yaml.MappingNode, above: str = "") -> Iterator[tuple[str, int]]:
    """The path of each value, and how many lines stand before it; of Kubernetes's own objects, of the whole."""
    for key, value in tree.value:
        path = f"{above}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value and path not in WHOLE:
            yield from leaves(value, f"{path}.")
        else:
            yield path, key.start_mark.line


WHOLE: Final = {"resources", "podSecurityContext", "securityContext", "readinessProbe", "livenessProbe"}
