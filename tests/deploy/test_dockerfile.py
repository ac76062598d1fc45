"""The image, as far as a machine without Docker can tell.

The build stage's commands are run in a temporary folder instead of at /, with this machine's Python instead of the
base image's, and what they make is started as the image would be, as a user who owns nothing. The context is the one
that `make release` makes. What this cannot show: that the base image has what is used of it, that it is small, and that
a container's ports are reached from outside.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from ratelimit_service.settings import load_settings
from tests import peers
from tests.clocks import stay_within
from tests.deploy.releases import VERSION, WHEEL
from tests.processes import ROOT, Service
from tests.redis import start_redis

FOLDERS: Final = ("/src", "/wheels", "/build", "/opt/ratelimit")
"""Where the build stage works; each is below a temporary folder here."""
NOBODY: Final = 65532
BUILD_SECONDS: Final = 900
"""Most of it is spent on the package index: one download took five minutes on a busy machine."""
ENVOYPROXY_USER: Final = 65534
OFFLINE: Final = ("NewConnectionError", "Temporary failure in name resolution", "ConnectTimeoutError")
RULES: Final = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
RULES_OF_ISTIO: Final = """\
domain: echo-ratelimit
descriptors:
  - {key: PATH, value: /, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: PATH, rate_limit: {unit: minute, requests_per_unit: 100}}
"""


class Instruction(NamedTuple):
    """One instruction of the Dockerfile."""

    word: str
    rest: str


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, each begun by its FROM."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found: list[list[Instruction]] = [[]]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append(Instruction(word, rest.strip()))
    return found[1:]


def final(word: str) -> str:
    """The last instruction of this kind in the final stage."""
    return [instruction.rest for instruction in stages()[-1] if instruction.word == word][-1]


class Image(NamedTuple):
    """What the build made of a release, below a folder that anyone may read."""

    root: Path
    dist: Path

    def below(self, text: str) -> str:
        """The text with the image's folders as they are here."""
        for folder in FOLDERS:
            text = re.sub(rf"(?<![\w/.]){folder}(?![\w])", f"{self.root}{folder}", text)
        return text

    @property
    def environ(self) -> dict[str, str]:
        """What ENV says, and nothing of this machine's."""
        told = dict(word.split("=", 1) for word in shlex.split(self.below(final("ENV"))))
        # The tests' own TMPDIR is not for the image's user.
        return told | {"PATH": told["PATH"].replace("$PATH", os.defpath), "TMPDIR": "/tmp"}

    def command(self, words: Sequence[str], user: int = NOBODY) -> list[str]:
        """These words as ENTRYPOINT or HEALTHCHECK would start them: found by PATH, as USER or as another."""
        program = shutil.which(words[0], path=self.environ["PATH"])
        assert program is not None, words[0]
        drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
        return [*(drop if os.geteuid() == 0 else []), program, *words[1:]]

    def run(self, words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Start it and wait."""
        return subprocess.run(
            self.command(words),
            env=self.environ | dict(environ),
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def copied_from_the_build() -> list[tuple[str, str]]:
    """What of the build stage is in the final one, and where."""
    copies = [instruction.rest.split() for instruction in stages()[-1] if instruction.word == "COPY"]
    assert all(origin == "--from=build" for origin, _, _ in copies)
    return [(source, target) for _, source, target in copies]


@pytest.fixture
def image(dist: Path, tmp_path: Path) -> Iterator[Image]:
    """The build stage's COPY and RUN, done with the context of a release."""
    context = tmp_path / "context"
    context.mkdir()
    archive = dist / f"ratelimit-service-image-{VERSION}.tar.gz"
    subprocess.run(["tar", "--extract", "--file", str(archive), "--directory", str(context)], check=True)
    python = next(filter(may_be_base, (sys.executable, "/usr/bin/python3")), None)
    if python is None:
        peers.refuse(f"{sys.executable} is in a folder that only root may enter, and there is no other Python")
    # Not pytest's folder: nobody else may enter that one.
    with tempfile.TemporaryDirectory(prefix="ratelimit-image-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        made = Image(root, dist)
        (root / "src").mkdir()
        (root / "opt").mkdir()
        (root / "bin").mkdir()
        (root / "bin" / "python").symlink_to(python)
        for word, rest in stages()[0]:
            if word == "COPY":
                copy(rest.split(), context, root / "src")
            elif word == "RUN":
                run(made.below(rest), root)
        for source, target in copied_from_the_build():
            if source != target:
                shutil.copy(made.below(source), f"{root}{target}")
        yield made


def may_be_base(python: str) -> bool:
    """Whether a user who owns nothing can start it, from a shell too, and it makes virtualenvs of our version."""
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
    version = f"import ensurepip, venv, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    command = [*drop, "/bin/sh", "-c", 'exec "$0" "$@"', python, "-c", version]
    return subprocess.run(command, cwd="/", capture_output=True, check=False).returncode == 0


def copy(words: Sequence[str], context: Path, workdir: Path) -> None:
    """COPY into WORKDIR: a file keeps its name, of a folder its content is copied; `folder/` is made."""
    *sources, target = words
    if target.endswith("/"):
        (workdir / target).mkdir(exist_ok=True)
    for source in sources:
        found = context / source
        if found.is_dir():
            shutil.copytree(found, workdir / target)
        else:
            shutil.copy(found, workdir / target)


def run(command: str, root: Path) -> None:
    """RUN; without the package index there is nothing to test."""
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=root / "src",
        env=os.environ | {"PATH": f"{root}/bin:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if any(sign in done.stdout for sign in OFFLINE):
        peers.refuse("the package index cannot be reached")
    assert done.returncode == 0, f"{command}\n{done.stdout}"


def test_the_final_stage_only_copies() -> None:
    """Nothing is installed, compiled or downloaded in it."""
    words = [instruction.word for instruction in stages()[-1]]

    assert {"RUN", "ADD", "VOLUME"}.isdisjoint(words)
    assert copied_from_the_build() == [("/opt/ratelimit", "/opt/ratelimit"), ("/src/envoyproxy", "/bin/ratelimit")]


def test_the_image_says_how_it_is_run() -> None:
    """Its ports are the defaults, its user is a number that is not 0, and SIGTERM drains it."""
    settings, _ = load_settings({})

    assert final("EXPOSE").split() == [str(settings.port), str(settings.grpc_port), str(settings.debug_port)]
    assert final("USER") == f"{NOBODY}:{NOBODY}"
    assert final("STOPSIGNAL") == "SIGTERM"
    assert (json.loads(final("ENTRYPOINT")), json.loads(final("CMD"))) == (["ratelimit"], ["serve"])
    assert str(settings.rules_path) == "/srv/runtime_data/current/config"


def test_the_image_has_the_newest_python_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r":: (3\.\d+)\b", "\n".join(project["classifiers"]))
    version = re.findall(r"^ARG PYTHON=(3\.\d+)-slim-\w+$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)

    assert version == named[-1:]
    assert {instruction.rest.split()[0] for stage in stages() for instruction in stage[:1]} == {"python:${PYTHON}"}


@pytest.mark.parametrize(
    ("host", "address"),
    [("", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("127.0.0.2, 127.0.0.3", "127.0.0.2")],  # noqa: S104 - as said to the service
)
def test_the_health_check_asks_where_the_service_listens(host: str, address: str) -> None:
    check = json.loads(final("HEALTHCHECK").partition(" CMD ")[2])
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, *check[1:]]
        with subprocess.Popen(command, env={"HOST": host, "PORT": str(port)}) as asking:
            connection, _ = server.accept()
            with connection:
                asked = connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    assert asked.startswith(b"GET /healthcheck ")
    assert asking.returncode == 0


def test_what_the_image_is_built_from_is_not_ignored() -> None:
    """.dockerignore keeps the rest out."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sources = [source for word, rest in stages()[0] if word == "COPY" for source in rest.split()[:-1]]

    assert sources == ["requirements/image.lock", "pyproject.toml", "README.md", "LICENSE", "ratelimit_service"]
    assert set(sources).isdisjoint(ignored)
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.extended
def test_what_is_built_runs_as_the_image_would(image: Image) -> None:
    """One test of five parts, because each worker of pytest would build anew."""
    has_what_the_bill_of_materials_says_and_nothing_else(image)
    serves_as_nobody_and_its_health_check_tells(image)
    takes_verbs_and_flags(image)
    serves_as_istio_starts_it(image)
    the_wheel_alone_serves_in_an_empty_folder(image)


def has_what_the_bill_of_materials_says_and_nothing_else(image: Image) -> None:
    """No pip, no compiler, no tools of the developers."""
    bill = json.loads((image.dist / f"ratelimit-service-{VERSION}.cdx.json").read_text(encoding="utf-8"))
    named = {component["name"]: component["version"] for component in bill["components"]}
    site = next((image.root / "opt/ratelimit/lib").glob("python*/site-packages"))
    found = dict(info.name.removesuffix(".dist-info").split("-") for info in site.glob("*.dist-info"))
    installed = {name.lower().replace("_", "-"): version for name, version in found.items()}
    ours = installed.pop("ratelimit-service")

    assert ours == VERSION
    assert installed == named
    assert {"grpcio", "uvloop", "aiohttp", "pyyaml"} <= installed.keys()
    assert {"pip", "hatchling", "mypy", "pytest", "grpcio-tools", "setuptools"}.isdisjoint(installed)


def serves_as_nobody_and_its_health_check_tells(image: Image) -> None:
    """By environment only, as envoyproxy's image is run: 0 while it wants calls, 1 before it has rules and after."""
    rules = image.root / "srv/current/config"
    rules.mkdir(parents=True)
    check = json.loads(final("HEALTHCHECK").partition(" CMD ")[2])
    environ = {"RUNTIME_ROOT": str(rules.parent), "PORT": "0", "GRPC_PORT": "0", "DEBUG_PORT": "0"}
    environ |= {"RULES_POLL_INTERVAL": "50ms", "DRAIN_SECONDS": "0"}
    command = image.command([*json.loads(final("ENTRYPOINT")), *json.loads(final("CMD"))])
    with Service(command, image.root, image.environ | environ) as service:
        service.rules = rules
        service.wait_until(lambda: service.listening, "listens on its ports")
        port = {"PORT": str(service.http_port)}
        without_rules = image.run(check, port).returncode
        service.write_rules(RULES)
        service.wait_until(lambda: service.healthy, "is healthy")
        with_rules = image.run(check, port)
        user = Path(f"/proc/{service.pid}").stat().st_uid
        stopped = service.stop()
        afterwards = image.run(check, port).returncode

        assert (without_rules, with_rules.returncode, afterwards) == (1, 0, 1), with_rules.stderr
        assert user == (NOBODY if os.geteuid() == 0 else os.geteuid())
        assert stopped == 0


def takes_verbs_and_flags(image: Image) -> None:
    """`docker run IMAGE check FILE`, `docker run IMAGE serve --rules FOLDER`; without rules it ends, and says why."""
    entry = json.loads(final("ENTRYPOINT"))
    file = image.root / "good.yaml"
    file.write_text(RULES, encoding="utf-8")
    checked = image.run([*entry, "check", str(file)], {})
    missing = image.run([*entry, "serve", "--rules", "/nowhere"], {"PORT": "0", "GRPC_PORT": "0", "DEBUG_PORT": "0"})

    assert checked.returncode == 0, checked.stderr
    assert missing.returncode == 1
    assert "/nowhere does not exist" in missing.stderr


def serves_as_istio_starts_it(image: Image) -> None:
    """With the command, the environment and the mount of Istio's sample (samples/ratelimit of istio/istio).

    And with the argument that Agent Router's manifest gives it, which envoyproxy's program ignores. Called by IPv4 and
    by IPv6.

    Here only: free ports, where Redis is, time for it on a busy machine, and no wait for new rules and for the end. The
    user is Envoy Gateway's, which owns nothing of the image either.
    """
    mount = image.root / "data" / "ratelimit" / "config"
    mount.mkdir(parents=True)
    swap(mount, RULES_OF_ISTIO)
    (image.root / "data").chmod(0o755)
    environ = {
        "LOG_LEVEL": "debug",
        "REDIS_SOCKET_TYPE": "tcp",
        "USE_STATSD": "false",
        "RUNTIME_ROOT": str(image.root / "data"),
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "RUNTIME_WATCH_ROOT": "false",
        "RUNTIME_IGNOREDOTFILES": "true",
        "HOST": "::",
        "GRPC_HOST": "::",
        # The Services `redis` and `ratelimit` of the same namespace, as the kubelet tells a pod of them.
        "REDIS_PORT": "tcp://10.96.0.17:6379",
        "REDIS_SERVICE_HOST": "10.96.0.17",
        "RATELIMIT_PORT": "tcp://10.96.0.18:8080",
        "RATELIMIT_SERVICE_PORT_GRPC_PORT": "8081",
    }
    here = {"PORT": "0", "GRPC_PORT": "0", "DEBUG_PORT": "0", "STORE_DEADLINE": "10s", "RULES_POLL_INTERVAL": "50ms"}
    here["DRAIN_SECONDS"] = "0"
    command = image.command([f"{image.root}/bin/ratelimit", "--quotaRateLimitServiceAddr=quota:8081"], ENVOYPROXY_USER)
    before = files(image.root)
    with start_redis(image.root / "redis") as redis:
        here["REDIS_URL"] = f"127.0.0.1:{redis.port}"
        with Service(command, image.root, image.environ | environ | here) as service:
            service.wait_until(lambda: service.listening and service.healthy, "is healthy")

            def codes(path: str) -> list[int]:
                addresses = [f"{host}:{service.grpc_port}" for host in ("127.0.0.1", "[::1]")]
                questions = [["ratelimit", "call", address, "echo-ratelimit", f"PATH={path}"] for address in addresses]
                return [image.run(question, {}).returncode for question in questions]

            stay_within(60, 30)
            limited, others = codes("/"), codes("/other")
            swap(mount, RULES_OF_ISTIO.replace("requests_per_unit: 1}", "requests_per_unit: 3}"))
            service.wait_until(lambda: service.log.count("rules loaded") == 2, "the new rules are loaded")
            after = codes("/")
            warnings = [line for line in service.log.splitlines() if " warning " in line or " error " in line]
            code = service.stop()

    assert (limited, others, after) == ([0, 1], [0, 0], [0, 1])
    assert ["ignored, as envoyproxy/ratelimit ignores all arguments: --quota" in line for line in warnings] == [True]
    assert code == 0
    assert {file.partition("/")[0] for file in files(image.root) - before} <= {"log", "redis"}, "the tests' own"


def the_wheel_alone_serves_in_an_empty_folder(image: Image) -> None:
    """As `pip install` makes a virtualenv of it, with what it needs at run time; then as `init` says to go on."""
    wheel, root = image.dist / WHEEL, image.root / "alone"
    run(f"python -m venv --without-pip {root}", image.root)
    options = f"--no-cache-dir --no-compile --no-index --find-links {image.root}/wheels"
    run(f"python -m pip --python {root}/bin/python install {options} {wheel}", image.root)
    ratelimit, empty = f"{root}/bin/ratelimit", root / "empty"
    empty.mkdir()
    environ = {"PATH": os.defpath, "PORT": "0", "GRPC_PORT": "0", "DEBUG_PORT": "0", "DRAIN_SECONDS": "0"}
    init = subprocess.run(
        [ratelimit, "init", "--example"], cwd=empty, env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    with Service([ratelimit, "serve", "--rules", "rules"], empty, environ) as service:
        service.wait_until(lambda: service.listening and service.healthy, "is healthy")
        words = shlex.split(init.stdout.splitlines()[-1])
        call = [ratelimit, "call", f"localhost:{service.grpc_port}", *words[3:]]
        called = subprocess.run(call, cwd=empty, env=environ, capture_output=True, text=True, check=False)
        code = service.stop()

    assert (called.returncode, code) == (0, 0), called.stderr
    assert "OK, limit 5 per " in called.stdout


def swap(mount: Path, text: str) -> None:
    """Give the mounted ConfigMap this content as the kubelet does: a new folder, to which one link is swapped."""
    fresh = Path(tempfile.mkdtemp(prefix="..", dir=mount))
    fresh.chmod(0o755)
    (fresh / "config.yaml").write_text(text, encoding="utf-8")
    (mount / "..data_tmp").symlink_to(fresh.name)
    (mount / "..data_tmp").rename(mount / "..data")
    if not (mount / "config.yaml").is_symlink():
        (mount / "config.yaml").symlink_to("..data/config.yaml")


def files(root: Path) -> set[str]:
    """All there are, but for the rules."""
    found = (file.relative_to(root) for file in root.rglob("*") if not file.is_dir())
    return {str(file) for file in found if file.parts[0] != "data"}
