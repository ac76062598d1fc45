"""The versions of Python that the package names: the service runs on each that can be had here.

All other tests run on one version; `make test PYTHON=python3.13` runs them on another.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests import peers
from tests.processes import ROOT, Service
from tests.redis import start_redis

pytestmark = pytest.mark.extended

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NAMED: Final = re.findall(r":: (3\.\d+)\b", "\n".join(PROJECT["classifiers"]))
HERE: Final = "{}.{}".format(*sys.version_info)
SETTINGS: Final = {
    "PORT": "0",
    "GRPC_PORT": "0",
    "DEBUG_PORT": "0",
    "DRAIN_SECONDS": "0",
    "STORE_DEADLINE": "10s",
    "WORKERS": "2",
}
OFFLINE: Final = ("NewConnectionError", "Temporary failure in name resolution", "ConnectTimeoutError")


def install(folder: Path, version: str) -> str:
    """A Python of this version with the packages of the lock, as wheels."""
    subprocess.run([peers.python(version), "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary", ":all:", "--require-hashes"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            *options,
            "-r",
            str(ROOT / "requirements/image.lock"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if any(sign in done.stderr for sign in OFFLINE):
        peers.refuse("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return python


def test_the_oldest_version_is_the_one_required_and_is_named_with_this_one() -> None:
    assert PROJECT["requires-python"] == f">={NAMED[0]}"
    assert HERE in NAMED


@pytest.mark.slow
@pytest.mark.parametrize("version", [version for version in NAMED if version != HERE])
def test_the_service_answers_on_every_version_that_is_named(tmp_path: Path, version: str) -> None:
    """From Redis, with workers; called by grpcio, counters read by redis-py. No warning of Python's is left unsaid."""
    python = install(tmp_path / "venv", version)
    ratelimit, rules = ["-m", "ratelimit_service"], ["--rules", str(ROOT / "config")]
    with start_redis(tmp_path / "redis") as redis:
        environ = os.environ | SETTINGS | {"PYTHONPATH": str(ROOT), "REDIS_URL": f"127.0.0.1:{redis.port}"}

        def said(*words: str) -> str:
            return subprocess.run([python, *words], env=environ, capture_output=True, text=True, check=True).stdout

        with Service([python, "-W", "error", *ratelimit, "serve", *rules], tmp_path, environ) as service:
            service.wait_until(lambda: service.listening and service.healthy, "is healthy")
            called = said("-W", "error", *ratelimit, "call", f"localhost:{service.grpc_port}", "shop", "login=ada")
            counters = said(*ratelimit, "counters", *rules, "shop", "login=ada")
            code = service.stop()

    assert "login=ada: OK, limit 5 per minute, 4 left" in called
    assert "login=ada" in counters
    assert code == 0
