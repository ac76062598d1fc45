"""deploy/overlays: what kustomize makes of them is what Kubernetes and the service take."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from ratelimit_service.settings.fields import Backend
from tests import peers
from tests.deploy.manifests import Manifest, container, invalid, of_kind, pod, read_all, settings
from tests.processes import ROOT

pytestmark = pytest.mark.extended

SECRETS: Final = {"redis": {"REDIS_AUTH": "p"}}


def built(folder: str) -> list[Manifest]:
    """The base too, by kustomize as kubectl has it."""
    command = [str(peers.kubectl()), "kustomize", f"deploy/{folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return read_all(done.stdout)


@pytest.mark.parametrize("name", ["memory", "redis"])
def test_kubernetes_and_the_service_take_what_is_built(name: str, tmp_path: Path) -> None:
    manifests = built(f"overlays/{name}")
    base = built("kubernetes")

    assert invalid(manifests, tmp_path) == ""
    assert settings(manifests, "ratelimit", SECRETS.get(name)).backend_type is Backend(name)
    for kind in ("Service", "ConfigMap", "PodDisruptionBudget"):
        (same,) = base_of = [each for each in base if each["kind"] == kind]
        assert base_of
        assert of_kind(manifests, kind, same["metadata"]["name"]) == same


@pytest.mark.parametrize("name", ["memory", "redis"])
def test_the_operator_s_port_is_closed(name: str) -> None:
    manifests = built(f"overlays/{name}")
    policy = of_kind(manifests, "NetworkPolicy", "ratelimit")["spec"]

    assert policy["podSelector"]["matchLabels"] == pod(manifests, "ratelimit")["metadata"]["labels"]
    assert policy["ingress"] == [{"ports": [{"port": "grpc"}, {"port": "http"}]}]
    assert {"grpc", "http", "debug"} == {port["name"] for port in container(manifests, "ratelimit")["ports"]}


def test_counters_in_memory_leave_half_of_the_pod_s_memory() -> None:
    manifests = built("overlays/memory")

    assert of_kind(manifests, "Deployment")["spec"]["replicas"] == 1
    assert settings(manifests).memory_max_bytes == 512 << 20
    assert container(manifests)["resources"]["limits"]["memory"] == "1Gi"


def test_the_pods_share_the_redis_that_the_overlay_brings() -> None:
    """Only they may ask it; each grants its share when it is lost, and they run on several nodes."""
    manifests = built("overlays/redis")
    found = settings(manifests, "ratelimit", SECRETS["redis"])
    service = of_kind(manifests, "Service", "ratelimit-redis")
    redis = pod(manifests, "ratelimit-redis")
    policy = of_kind(manifests, "NetworkPolicy", "ratelimit-redis")["spec"]
    labels = pod(manifests, "ratelimit")["metadata"]["labels"]
    (spread,) = pod(manifests, "ratelimit")["spec"]["topologySpreadConstraints"]

    assert found.redis.url.get_secret_value() == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert service["spec"]["selector"] == policy["podSelector"]["matchLabels"] == redis["metadata"]["labels"]
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": labels}}]
    assert spread["labelSelector"]["matchLabels"] == labels
    assert found.instances == of_kind(manifests, "Deployment", "ratelimit")["spec"]["replicas"] == 3
    assert redis["spec"]["securityContext"]["runAsNonRoot"] is True
    assert "noeviction" in redis["spec"]["containers"][0]["command"]
