"""What documents and help texts say to type does what they say, on a service with the rules of config/.

Each document has a service and a Redis of its own, and its console blocks run in order, in a shell in a folder with a
copy of config/. The ports that documents name are replaced by those that the service got. What is printed, on both
outputs, must be what the document shows, but for who types, and for times: `41 s`, `5 min 19 s`, `"41s"` and the like
are `…` in both, and any number of spaces is one, since columns are as wide as the times in them.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml
from click import Context

from ratelimit_service.cli import VERBS, main
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.files import read_files
from tests import peers
from tests.clocks import stay_within
from tests.processes import ROOT, Process, Service, start_service
from tests.redis import start_redis

pytestmark = pytest.mark.extended

RECIPES: Final = "docs/recipes.md"
"""Has rules of its own: test_recipes.py runs it."""

DOCUMENTS: Final = sorted(
    {str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*.md")]}
    - {RECIPES}
)

ELSEWHERE: Final = frozenset({"make", "docker", "kubectl", "helm"})
"""Programs that install or need what a test must not have: what `make run` starts is started here; tests/deploy has
tests of the image, of the manifests and of the chart."""

_TIME: Final = re.compile(r"\b\d[\d,]* ?(?:d|h|min|s)\b(?: \d+ (?:h|min|s)\b)?")
_MOVES: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|\b1\d{9}\b|[\w.-]+@[\w.-]+")
"""Moments, also as seconds since the epoch, and who types."""
_LASTS: Final = 86_400
"""Counters that are shown again later are of a day's windows, or of none."""


class Typed(NamedTuple):
    """A command and what is shown of its output."""

    command: str
    shown: str

    @property
    def program(self) -> str:
        """Its first word."""
        return shlex.split(self.command, comments=True)[0]


def console(document: str) -> list[Typed]:
    """The commands of its console blocks."""
    return commands((ROOT / document).read_text("utf-8"))


def commands(text: str) -> list[Typed]:
    """Those of the console blocks in a text. One goes on in the next line while a quote is open."""
    typed: list[Typed] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            while _is_open(command):
                line, _, shown = shown.partition("\n")
                command += f"\n{line}"
            typed.append(Typed(command, shown))
    return typed


def _is_open(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def inline(document: str) -> list[str]:
    """Commands in its sentences that name what they are about, and no placeholder such as HOST or FOLDER."""
    text = (ROOT / document).read_text("utf-8")
    spans = re.findall(r"`(?:\.venv/bin/)?(ratelimit (?:call|explain|counters|check) [^`]+)`", text)
    return [" ".join(span.split()) for span in spans if " shop " in span]


def limits(printed: str) -> bool:
    """Whether what was asked about is limited: it is there in the rules of config/."""
    return not re.search("no limit applies|No limit:|No rule limits|there is no domain", printed)


def masked(text: str) -> str:
    """Without what moves."""
    return re.sub(r" +", " ", _TIME.sub("…", _MOVES.sub("…", text))).replace("\n ", "\n").strip()


@dataclass
class Shell:
    """A folder with config/ in it, beside a service that runs with that."""

    folder: Path
    service: Service
    environ: dict[str, str]

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """What a shell makes of it."""
        ports = {"8080": "HTTP", "8081": "gRPC", "6070": "debug HTTP"}
        for port, what in ports.items():
            for name in ("localhost:", "token-"):
                command = command.replace(f"{name}{port}", f"{name}{self.service.port(what)}")
        tokens = os.environ["TMPDIR"]  # as tests/conftest.py has it, in place of /tmp
        command = command.replace(".venv/bin/ratelimit", "ratelimit").replace("/tmp/ratelimit-", f"{tokens}/ratelimit-")
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env={**self.environ, "TMPDIR": tokens},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def path_with_ratelimit(folder: Path) -> str:
    """A PATH with `ratelimit` as pip installs it, and curl."""
    ratelimit = folder / "bin" / "ratelimit"
    ratelimit.parent.mkdir()
    ratelimit.write_text(f'#!/bin/sh\nexec {sys.executable} -m ratelimit_service "$@"\n')
    ratelimit.chmod(0o755)
    return f"{ratelimit.parent}:{peers.curl().parent}:/usr/bin:/bin"


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    """Counters are in Redis, so that `ratelimit counters` has some."""
    stay_within(_LASTS, 300)
    shutil.copytree(ROOT / "config", folder / "config")
    shutil.copytree(ROOT / "config", folder / "new")
    path = path_with_ratelimit(folder)
    with start_redis(folder / "redis") as redis:
        environ = {
            "RULES_PATH": "config",
            "REDIS_URL": str(redis.socket),
            "STORE_DEADLINE": "20s",  # for a busy machine
            "HASH_KEY": "0123456789abcdef0123456789abcdef",
        }
        (folder / "keys.txt").write_text("secret\n")
        with start_service(folder, folder / "config", environ) as service:
            environ |= {"DEBUG_PORT": str(service.debug_port)}
            yield Shell(folder, service, {**environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"})


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if console(document) or inline(document)])
def test_what_a_document_says_to_type_prints_what_it_shows(tmp_path: Path, document: str) -> None:
    with shell(tmp_path) as here:
        for typed in console(document):
            if typed.program not in ELSEWHERE:
                done = here.run(typed.command)
                if typed.shown:
                    assert masked(done.stdout) == masked(typed.shown), typed.command
                else:
                    assert done.returncode == 0, (typed.command, done.stdout)
        for command in inline(document):
            done = here.run(command)
            assert done.returncode == 0, (command, done.stdout)
            assert limits(done.stdout), (command, done.stdout)


def examples(verb: str) -> list[str]:
    """Those of its help, without the remarks behind them."""
    command = main.get_command(Context(main), verb)
    assert command is not None
    lines = (command.epilog or "").partition("Examples:\n")[2].splitlines()
    return [re.sub(r"\s{2,}\(.*\)$", "", line).strip() for line in lines if re.match(r"  \S", line)]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "serve"])
def test_the_examples_of_a_help_ask_for_what_is_there(tmp_path: Path, verb: str) -> None:
    socket = tmp_path / "s"
    with ExitStack() as stack:
        here = stack.enter_context(shell(tmp_path / "here"))
        if any("unix:" in example for example in examples(verb)):
            stack.enter_context(start_service(tmp_path / "unix", ROOT / "config", {"GRPC_UDS": str(socket)}))
        for example in examples(verb):
            if example.startswith("ratelimit"):
                done = here.run(example.replace("unix:/run/ratelimit.sock", f"unix:{socket}"))
                assert done.returncode == 0, (example, done.stdout)
                assert limits(done.stdout), (example, done.stdout)
    assert examples(verb)


def is_listening(process: Process) -> bool:
    return "listening for gRPC" in process.log


def test_the_examples_of_serve_start_it(tmp_path: Path) -> None:
    local = dict.fromkeys(("HOST", "DEBUG_HOST", "GRPC_HOST"), "127.0.0.1") | {"PORT": "0", "DEBUG_PORT": "0"}
    shutil.copytree(ROOT / "config", tmp_path / "config")
    for number, example in enumerate(examples("serve")):
        variables, _, arguments = example.partition("ratelimit ")
        environ = dict(word.split("=") for word in variables.split()) | {"GRPC_PORT": "0", "DRAIN_SECONDS": "0"}
        command = [sys.executable, "-m", "ratelimit_service", *shlex.split(arguments)]
        environ |= {**local, "PYTHONPATH": str(ROOT)}
        with Process(command, tmp_path, environ, f"log-{number}") as service:
            service.wait_until(partial(is_listening, service), "it listens")
            assert service.stop() == 0
    assert "GRPC_PORT" in " ".join(examples("serve"))


def test_what_serve_says_to_try_limits(tmp_path: Path) -> None:
    with start_service(tmp_path, ROOT / "config", flags=["--hints"]) as service:
        service.wait_until(lambda: "The page is" in service.log, "hints are given")
        hints = service.log.partition("Try, in another terminal")[2].partition("The page is")[0]
        call = re.search(r"^  (\S+) (call .*)$", hints, re.MULTILINE)
        curl = re.search(r"^  curl (.*?)\n\n", hints, re.MULTILINE | re.DOTALL)
        assert call
        assert curl
        called = subprocess.run(
            [sys.executable, "-m", "ratelimit_service", *shlex.split(call[2])],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        asked = subprocess.run(
            [peers.curl(), *shlex.split(curl[1].replace("\\\n", " "))], capture_output=True, text=True, check=False
        )

    assert re.search(r"The page is http://\S+:\d+/#token=[0-9a-f]{64} \(who has this link may also ban", service.log)
    assert "limit 5 per minute" in called.stdout
    assert '"currentLimit":{"requestsPerUnit":5,"unit":"MINUTE"}' in asked.stdout


def test_the_mistake_in_the_readme_is_told_as_it_says(tmp_path: Path) -> None:
    mistaken = tmp_path / "config"
    mistaken.mkdir()
    text = (ROOT / "config" / "example.yaml").read_text("utf-8").replace("unit: minute", "unit: fortnight", 1)
    (mistaken / "example.yaml").write_text(text, encoding="utf-8")

    command = [sys.executable, "-m", "ratelimit_service", "check", "config"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )

    assert done.stderr.strip() in (ROOT / "README.md").read_text("utf-8")


def test_what_documents_have_envoy_ask_about_is_limited() -> None:
    """The descriptors of their `rate_limits` are in the rules of config/."""
    book = parse(read_files(ROOT / "config"))
    texts = [(ROOT / document).read_text("utf-8") for document in ("README.md", "docs/deploy.md")]
    blocks = [yaml.safe_load(block) for text in texts for block in re.findall(r"(?ms)^```yaml\n(.*?)^```", text)]
    routes = [block.get("route", block) for block in blocks if isinstance(block, dict)]
    asked = [
        tuple((action["request_headers"]["descriptor_key"], "ada") for action in limit["actions"])
        for route in routes
        for limit in route.get("rate_limits", ())
    ]

    assert asked
    assert [entries for entries in asked if book.match("shop", entries) is None] == []
