"""The compiled wheel of a release: its libraries are what runs, and they answer as their sources do."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from release.compiled import MODULES, PACKAGE
from tests.deploy.releases import COMPILED
from tests.envoy.proxy import bootstrap, by, route, start_envoy
from tests.processes import ROOT, start_service

RULES: Final = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 2}}]\n"
SUITE: Final = (
    "tests/fuzz/test_corpus.py",
    *(
        f"tests/transports/http2/test_{name}.py"
        for name in ("any_bytes", "attacks", "connection", "deadlines", "evictions", "floods", "h2", "limits")
    ),
)
"""The tests of frames and streams that take seconds, and all that the fuzzer ever found."""
ASK: Final = f"""\
import importlib, sys
for name in {MODULES}:
    module = importlib.import_module("{PACKAGE.replace("/", ".")}." + name)
    print(module.__file__)
    for made in vars(module).values():
        if isinstance(made, type) and made.__module__ == module.__name__ and getattr(made, "__slots__", ()):
            print(made.__name__, {{type(vars(made)[slot]).__name__ for slot in made.__slots__}})
"""
TEST: Final = f"""\
import sys, pytest
code = pytest.main(sys.argv[1:])
print(sys.modules["{PACKAGE.replace("/", ".")}.connection"].__file__)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is in the compiled wheel, which Python finds before the tree."""
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-index", "--no-deps", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(dist / COMPILED)], check=True)
    return folder


def run(installed: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Python's words with the compiled package, and the tests of the tree."""
    environ = os.environ | {"PYTHONPATH": f"{installed}:{ROOT}", "PYTHONSAFEPATH": "1"}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_the_compiled_modules_are_imported_and_their_classes_are_structs(installed: Path) -> None:
    """A slot of a struct is a getset descriptor, one of the interpreter's a member descriptor."""
    said = run(installed, "-c", ASK).stdout
    libraries = [path for path in (installed / PACKAGE).iterdir() if path.suffix == ".so"]

    assert sorted(str(path) for path in libraries) == sorted(line for line in said.splitlines() if "/" in line)
    assert [line for line in said.splitlines() if "/" not in line] == [
        "Connection {'getset_descriptor'}",
        "Stream {'getset_descriptor'}",
        "Streams {'getset_descriptor'}",
    ]
    assert all((installed / PACKAGE / f"{module}.py").exists() for module in MODULES)


def test_without_a_compiler_the_build_says_what_is_missing(repository: Path, tmp_path: Path) -> None:
    environ = os.environ | {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1", "CC": "no-such-compiler"}
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(build, cwd=repository, env=environ, capture_output=True, text=True, check=False)
    missing = "the compiled wheel needs a C compiler, and there is no no-such-compiler: install gcc, or set CC"

    assert (done.returncode, done.stderr.splitlines()[-1:]) == (1, [missing])


def test_no_library_names_the_folder_that_it_was_made_in(installed: Path) -> None:
    """So that another machine makes the same bytes; pytest's folder has its own name in it."""
    for library in (installed / PACKAGE).glob("*.so"):
        content = library.read_bytes()

        assert not any(name in content for name in (b"/tmp/", b"/home/", str(ROOT).encode(), b".symtab"))


def test_the_tests_of_http2_pass_on_the_compiled_wheel(installed: Path) -> None:
    done = run(installed, "-c", TEST, "-q", "-n", "0", "-p", "no:cacheprovider", "-o", "pythonpath=", *SUITE)

    assert done.returncode == 0, done.stdout
    assert re.search(r"\b\d{2,} passed\b", done.stdout)
    assert re.search(rf"^{re.escape(str(installed / PACKAGE))}/connection\.cpython.*\.so$", done.stdout, re.MULTILINE)


def test_envoy_is_answered_by_the_compiled_wheel(installed: Path, tmp_path: Path) -> None:
    """By the libraries, which the process of the service has mapped."""
    environ = {"PYTHONPATH": str(installed), "TRANSPORT": "http2"}
    with start_service(tmp_path / "service", RULES, environ) as service:
        maps = Path(f"/proc/{service.pid}/maps").read_text("utf-8")
        configuration = bootstrap([service.grpc_port], [route("/user", by(("user", "x-user")))])
        with start_envoy(tmp_path / "envoy", configuration) as envoy:
            statuses = envoy.statuses(3, "/user", x_user="ada")
        log = service.log

    assert statuses == [200, 200, 429]
    assert all(f"{installed / PACKAGE}/{module}.cpython-" in maps for module in MODULES)
    assert "(compiled)" in log
