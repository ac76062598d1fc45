"""Our .proto files say what Envoy and gRPC say, and the generated code says what our .proto files say.

The peers are other people's descriptors: xds-protos, the Envoy program itself (the newest of all), grpcio's health
and v1alpha reflection (xds-protos has neither), and grpclib's v1 reflection (grpcio has none).
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from tests.peers import control_plane, envoy, grpc_peers, xds_protos

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "ratelimit_service" / "api" / "generated"

RLS = "envoy/service/ratelimit/v3/rls.proto"
DESCRIPTOR = "envoy/extensions/common/ratelimit/v3/ratelimit.proto"  # partial: one message of five types
HEADER = "envoy/config/core/v3/base.proto"  # partial: HeaderValue alone
UNIT = "envoy/type/v3/ratelimit_unit.proto"
RLQS = "envoy/service/rate_limit_quota/v3/rlqs.proto"
STRATEGY = "envoy/type/v3/ratelimit_strategy.proto"
BUCKET = "envoy/type/v3/token_bucket.proto"
ENVOY = [RLS, DESCRIPTOR, HEADER, UNIT, RLQS, STRATEGY, BUCKET]
WHOLE = [f"--whole={name}" for name in (RLS, UNIT, RLQS, STRATEGY, BUCKET)]
HEALTH = "grpc/health/v1/health.proto"
REFLECTION = "grpc/reflection/v1/reflection.proto"
REFLECTION_ALPHA = "grpc/reflection/v1alpha/reflection.proto"
RULES = "ratelimit/config/ratelimit/v3/rls_conf.proto"
OURS = {"ratelimit/v1/explanation.proto", "ratelimit/v1/discovery.proto"}
"""No peer has them: the second is Envoy's under other names, and go-control-plane understands it: test_xds.py."""
KUADRANT = "kuadrant/service/ratelimit/v1/kuadrantrls.proto"  # no package has it

# What Envoy 1.40.0 has and xds-protos 1.85.0 lacks; the Envoy program vouches for them.
NEWER_THAN_XDS_PROTOS = [
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.is_negative_hits",
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride.unit_multiplier",
    "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.unit_multiplier",
]


def test_generating_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """The committed code is what `proto/generate.py` makes of the .proto files: nothing edited, stale or missing."""
    subprocess.run([sys.executable, ROOT / "proto" / "generate.py", "--out", tmp_path], check=True, timeout=60)

    assert files_in(tmp_path) == files_in(GENERATED)


def test_every_proto_file_is_compared_with_a_peer() -> None:
    """A .proto file added without a peer to compare it with is noticed."""
    stated = {path.relative_to(ROOT / "proto").as_posix() for path in (ROOT / "proto").rglob("*.proto")}

    assert stated == {*ENVOY, HEALTH, REFLECTION, REFLECTION_ALPHA, RULES, *OURS, KUADRANT}


def test_the_contract_equals_that_of_xds_protos() -> None:
    """Every message, field, enum and method of ours is in xds-protos, and the reverse, save what is newer."""
    newer = [f"--newer={name}" for name in NEWER_THAN_XDS_PROTOS]
    modules = [name.removesuffix(".proto").replace("/", ".") + "_pb2" for name in ENVOY]

    assert differences(ENVOY, *WHOLE, *newer, *modules, path=xds_protos()) == ""


def test_the_contract_equals_that_inside_the_envoy_program() -> None:
    """The descriptors compiled into a released Envoy are ours, with no exception."""
    assert differences(ENVOY, *WHOLE, f"--binary={envoy()}") == ""


def test_the_contract_of_rules_equals_that_of_go_control_plane() -> None:
    """The descriptors compiled into a program that serves rules by xDS are ours."""
    assert differences([RULES], "--below=api/", f"--binary={control_plane()}") == ""


def test_the_health_contract_equals_that_of_grpcio() -> None:
    """grpc.health.v1 as grpcio-health-checking has it."""
    whole = "--whole=grpc_health/v1/health.proto"

    assert differences([HEALTH], whole, "grpc_health.v1.health_pb2", path=grpc_peers()) == ""


def test_the_reflection_contract_equals_that_of_grpclib() -> None:
    """grpc.reflection.v1 as grpclib has it."""
    whole = "--whole=grpclib/reflection/v1/reflection.proto"

    assert differences([REFLECTION], whole, "grpclib.reflection.v1.reflection_pb2", path=grpc_peers()) == ""


def test_the_older_reflection_contract_equals_that_of_grpcio() -> None:
    """grpc.reflection.v1alpha as grpcio-reflection has it."""
    whole = "--whole=grpc_reflection/v1alpha/reflection.proto"

    assert differences([REFLECTION_ALPHA], whole, "grpc_reflection.v1alpha.reflection_pb2", path=grpc_peers()) == ""


def differences(names: list[str], *arguments: str, path: Path | None = None) -> str:
    """What `compare_protos.py` finds between these files of ours and a peer whose modules lie in the folder."""
    files: dict[str, FileDescriptor] = {}
    for name in names:
        collect(importlib.import_module(module_of(name)).DESCRIPTOR, files)
    descriptors = FileDescriptorSet(
        file=[FileDescriptorProto.FromString(file.serialized_pb) for file in files.values()]
    )
    process = subprocess.run(
        [sys.executable, Path(__file__).with_name("compare_protos.py"), *arguments],
        input=descriptors.SerializeToString(),
        env=os.environ | {"PYTHONPATH": str(path or "")},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return "" if process.returncode == 0 else (process.stdout + process.stderr).decode()


def collect(file: FileDescriptor, files: dict[str, FileDescriptor]) -> None:
    """Adds the file after everything that it imports, as a pool wants them."""
    for imported in file.dependencies:
        collect(imported, files)
    files[file.name] = file


def module_of(name: str) -> str:
    """The generated module of a .proto file."""
    return "ratelimit_service.api.generated." + name.removesuffix(".proto").replace("/", ".") + "_pb2"


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file by its path, without Python's caches."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
