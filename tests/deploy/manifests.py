"""What Helm and kustomize render: held to the API server's schemas, and to the settings that the service has."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from ratelimit_service.settings import Settings
from tests import peers
from tests.deploy.known import VARIABLES, max_stop, understood
from tests.processes import ROOT

OF_OPERATOR: Final = "monitoring.coreos.com/v1"
"""Kinds that Prometheus's operator brings along, with their schemas."""

BY_SCHEMAS_OF_OPERATOR: Final = """
import json, pathlib, sys, yaml
from jsonschema import Draft202012Validator

def strict(schema):
    if "properties" in schema and "additionalProperties" not in schema:
        schema["additionalProperties"] = False  # the API server drops what it does not know, without a word
    for each in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(each, dict):
            strict(each)
    return schema

kinds = {}
for file in pathlib.Path(sys.argv[1]).glob("*.yaml"):
    spec = yaml.safe_load(file.read_text())["spec"]
    kinds[spec["names"]["kind"]] = strict(spec["versions"][0]["schema"]["openAPIV3Schema"])
for manifest in json.load(sys.stdin):
    for error in Draft202012Validator(kinds[manifest["kind"]]).iter_errors(manifest):
        print(manifest["kind"], error.json_path, error.message)
"""

KUBERNETES: Final = ROOT / "deploy" / "kubernetes"

Manifest: TypeAlias = dict[str, Any]


def read_all(text: str) -> list[Manifest]:
    """Each document of it."""
    return [manifest for manifest in yaml.safe_load_all(text) if manifest is not None]


def applied() -> list[Manifest]:
    """Those of deploy/kubernetes, without what kustomize makes of them."""
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    return [manifest for name in names for manifest in read_all((KUBERNETES / name).read_text(encoding="utf-8"))]


def invalid(manifests: Iterable[Manifest], tmp_path: Path) -> str:
    """What schemas say against them: Kubernetes's of the oldest and the newest version, or its operator's.

    Unknown fields are wrong.
    """
    manifests = list(manifests)
    file = tmp_path / "manifests.yaml"
    of_kubernetes = [each for each in manifests if each["apiVersion"] != OF_OPERATOR]
    file.write_text(yaml.safe_dump_all(of_kubernetes), encoding="utf-8")
    environ = os.environ | {"PYTHONPATH": str(peers.kubernetes_validate())}
    versions = [word for version in peers.KUBERNETES for word in ("--kubernetes-version", version)]
    validated = subprocess.run(
        [sys.executable, "-m", "kubernetes_validate", "--strict", "--quiet", *versions, str(file)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = validated.stdout + validated.stderr
    if of_operator := [each for each in manifests if each["apiVersion"] == OF_OPERATOR]:
        done = subprocess.run(
            [sys.executable, "-c", BY_SCHEMAS_OF_OPERATOR, str(peers.operator_schemas())],
            input=json.dumps(of_operator),
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        found += done.stdout + done.stderr
    return found


def of_kind(manifests: Iterable[Manifest], kind: str, name: str = "") -> Manifest:
    """The only one, or the only one of this name."""
    (found,) = [each for each in manifests if each["kind"] == kind and name in {"", each["metadata"]["name"]}]
    return found


def pod(manifests: Iterable[Manifest], name: str = "") -> Any:
    """What the Deployment makes."""
    return of_kind(manifests, "Deployment", name)["spec"]["template"]


def container(manifests: Iterable[Manifest], name: str = "") -> Any:
    """The service's."""
    (found,) = [each for each in pod(manifests, name)["spec"]["containers"] if each["name"] == "ratelimit"]
    return found


def settings(manifests: Iterable[Manifest], name: str = "", secrets: Mapping[str, str] | None = None) -> Settings:
    """What the service makes of the environment: every name is known, every value right, and it has time to drain."""
    manifests = list(manifests)
    variables = container(manifests, name)["env"]
    names = [variable["name"] for variable in variables]
    assert len(names) == len(set(names))
    assert set(names) <= VARIABLES
    from_secrets = {each["name"] for each in variables if "value" not in each}
    assert from_secrets == {"HASH_KEY", "ADMIN_TOKEN"} | (secrets or {}).keys()
    plain = {variable["name"]: variable["value"] for variable in variables if "value" in variable}
    found = understood(plain | dict(secrets or {}))
    assert max_stop(found) < pod(manifests, name)["spec"]["terminationGracePeriodSeconds"]
    return found
