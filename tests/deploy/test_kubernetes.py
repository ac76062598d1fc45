"""deploy/kubernetes: the manifests agree with each other and with the service.

No API server has seen them here; what is tested is what one would not notice: names that must be equal in two files,
environment and paths that the service must understand, rules that must load.
"""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

import ratelimit_service
from ratelimit_service.api.health import NAMES
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.settings import SETTINGS
from tests.deploy.known import max_stop
from tests.deploy.manifests import KUBERNETES, Manifest, applied, container, of_kind, pod, settings
from tests.processes import ROOT, ask, start_service

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    """Those that are applied."""
    return applied()


def kustomization() -> Any:
    return yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))


def test_what_is_secret_comes_from_a_secret_that_may_be_missing(manifests: list[Manifest]) -> None:
    """Without it the pod starts all the same: its counters are in memory, and bans change from the pod alone."""
    variables = [variable for variable in container(manifests)["env"] if "value" not in variable]

    assert [variable["name"] for variable in variables] == ["HASH_KEY", "ADMIN_TOKEN"]
    assert {variable["name"] for variable in variables} <= {setting.variable for setting in SETTINGS}
    keys = [variable["valueFrom"]["secretKeyRef"] for variable in variables]
    assert [key["optional"] for key in keys] == [True, True]
    assert {key["name"] for key in keys} == {"ratelimit"}
    for file in (KUBERNETES / "deployment.yaml", ROOT / "docs" / "deploy.md"):
        [command] = re.findall(r"kubectl create secret generic ratelimit -.*", file.read_text(encoding="utf-8"))
        assert [key["key"] for key in keys] == re.findall(r"--from-literal=([\w-]+)=", command)


def test_every_manifest_is_applied(manifests: list[Manifest]) -> None:
    """Each file of the folder is named by the kustomization, and has another kind."""
    files = {file.name for file in KUBERNETES.iterdir()} - {"kustomization.yaml"}

    assert set(kustomization()["resources"]) == files
    assert sorted(manifest["kind"] for manifest in manifests) == [
        "ConfigMap",
        "Deployment",
        "PodDisruptionBudget",
        "Service",
    ]
    assert not any("namespace" in manifest["metadata"] for manifest in manifests)


def test_everything_selects_the_pod(manifests: list[Manifest]) -> None:
    """Deployment, Service and PodDisruptionBudget mean the same labels."""
    labels = pod(manifests)["metadata"]["labels"]

    assert of_kind(manifests, "Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert of_kind(manifests, "Service")["spec"]["selector"] == labels
    assert of_kind(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels


def test_ports_are_the_service_s(manifests: list[Manifest]) -> None:
    """What is named is listened on, and the Service means those names."""
    ports = {port["name"]: port["containerPort"] for port in container(manifests)["ports"]}

    found = settings(manifests)
    assert ports == {"http": found.port, "grpc": found.grpc_port, "debug": found.debug_port}
    for port in of_kind(manifests, "Service")["spec"]["ports"]:
        assert port["port"] == ports[port["targetPort"]]


def test_the_image_is_this_version(manifests: list[Manifest]) -> None:
    """Tagged by the kustomization."""
    (image,) = kustomization()["images"]

    assert container(manifests)["image"] == image["name"]
    assert image["newTag"] == ratelimit_service.__version__


def test_rules_are_mounted_where_they_are_read(manifests: list[Manifest]) -> None:
    """A folder: what is mounted by subPath never changes."""
    mount, _ = container(manifests)["volumeMounts"]
    volume, _ = pod(manifests)["spec"]["volumes"]

    assert mount["mountPath"] == str(settings(manifests).rules_path)
    assert "subPath" not in mount
    assert (mount["name"], volume["configMap"]["name"]) == (
        volume["name"],
        of_kind(manifests, "ConfigMap")["metadata"]["name"],
    )


def test_the_rules_of_the_config_map_load(manifests: list[Manifest]) -> None:
    """Every file of it."""
    files = of_kind(manifests, "ConfigMap")["data"]

    assert files
    assert all(name.endswith(".yaml") for name in files)
    assert len(parse([YamlText(name, text.encode()) for name, text in files.items()]).rules) == 2


def test_there_is_one_pod_while_counters_are_in_memory(manifests: list[Manifest]) -> None:
    """Two would allow twice the limits; a budget that kept the only one would block its node."""
    assert {"name": "BACKEND_TYPE", "value": "memory"} in container(manifests)["env"]
    assert of_kind(manifests, "Deployment")["spec"]["replicas"] == 1
    assert of_kind(manifests, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_a_pod_has_time_to_drain(manifests: list[Manifest]) -> None:
    """The next one answers before, and it stays until Envoy has heard of it."""
    assert max_stop(settings(manifests)) < pod(manifests)["spec"]["terminationGracePeriodSeconds"]
    assert of_kind(manifests, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert settings(manifests).drain_seconds > container(manifests)["readinessProbe"]["periodSeconds"]


def test_the_operator_s_port_is_reached_from_the_pod_alone_and_its_token_has_a_place(manifests: list[Manifest]) -> None:
    _, mount = container(manifests)["volumeMounts"]
    _, volume = pod(manifests)["spec"]["volumes"]

    assert settings(manifests).debug_host == ("127.0.0.1",)
    assert mount == {"name": "tmp", "mountPath": "/tmp"}
    assert volume == {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}


def test_a_pod_is_nobody_and_writes_nothing(manifests: list[Manifest]) -> None:
    """The restricted Pod Security Standard, and a read-only root file system."""
    of_pod, of_container = pod(manifests)["spec"]["securityContext"], container(manifests)["securityContext"]

    assert of_pod["runAsNonRoot"] is True
    assert of_pod["runAsUser"] > 0
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert of_container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_draining_pod_is_alive_and_not_ready(tmp_path: Path, manifests: list[Manifest]) -> None:
    """The liveness probe's path answers while health says no; so it does without rules, and with 6070 closed."""
    liveness = container(manifests)["livenessProbe"]["httpGet"]
    readiness = container(manifests)["readinessProbe"]["grpc"]
    empty = tmp_path / "rules"
    empty.mkdir()
    with start_service(
        tmp_path / "service",
        empty,
        {"DRAIN_SECONDS": "60", "ADMIN_TOKEN": "k" * 32, "ADMIN_READ_NEEDS_TOKEN": "true"},
        wait_until_healthy=False,
    ) as service:
        page = ask(service.debug_port, "/").status
        without_rules = (service.healthy, ask(service.http_port, liveness["path"]).status)
        service.write_rules(of_kind(manifests, "ConfigMap")["data"]["web.yaml"])
        service.wait_until(lambda: service.healthy, "is healthy")
        service.send(signal.SIGTERM)
        service.wait_until(lambda: not service.healthy, "drains")
        draining = ask(service.http_port, liveness["path"]).status

    assert liveness == {"path": "/livez", "port": "http"}
    assert (page, without_rules, draining) == (401, (False, 200), 200)
    assert readiness["port"] == settings(manifests).grpc_port
    assert readiness["service"] in NAMES
