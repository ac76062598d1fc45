"""`serve`, `check`, `explain` and `counters` find rules in the same place, by the same settings."""

import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main
from tests.processes import ROOT, Process
from tests.redis import Redis

RULES = "domain: {0}\ndescriptors: [{{key: user, rate_limit: {{unit: day, requests_per_unit: 5}}}}]\n"

HERE = ["shop", "user=ada"]

PORTS = {
    **dict.fromkeys(("HOST", "DEBUG_HOST", "GRPC_HOST"), "127.0.0.1"),
    **dict.fromkeys(("PORT", "DEBUG_PORT", "GRPC_PORT"), "0"),
}


class Done(NamedTuple):
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def run(folder: Path, environ: Mapping[str, str], *arguments: str) -> Done:
    """A command in that folder, with these settings; `serve` as from a shell."""
    if arguments[0] == "serve":
        command = [sys.executable, "-m", "ratelimit_service", *arguments]
        environ = {"PYTHONPATH": str(ROOT), **environ}
        ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        return Done(ended.returncode, ended.stdout, ended.stderr)
    with chdir(folder):
        result = CliRunner().invoke(main, arguments, env={**environ, "MERGE_DOMAIN_CONFIG": None})
    return Done(result.exit_code, result.stdout, result.stderr)


def write_rules(folder: Path, domain: str = "shop") -> Path:
    folder.mkdir(parents=True)
    (folder / "rules.yaml").write_text(RULES.format(domain))
    return folder


WAYS = {
    "RULES_PATH": ({"RULES_PATH": "there"}, [], "there"),
    "the folders of envoyproxy": (
        {"RUNTIME_ROOT": "root", "RUNTIME_SUBDIRECTORY": "sub", "RUNTIME_APPDIRECTORY": "rules"},
        [],
        "root/sub/rules",
    ),
    "--rules": ({"RULES_PATH": "elsewhere"}, ["--rules", "there"], "there"),
    "an .env file": ({}, [], "there"),
    "--env-file": ({}, ["--env-file", "other.env"], "there"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_command_reads_the_rules_that_serve_loads(tmp_path: Path, redis: Redis, way: str) -> None:
    environ, flags, where = WAYS[way]
    write_rules(tmp_path / where)
    name = {"an .env file": ".env", "--env-file": "other.env"}.get(way)
    if name is not None:
        (tmp_path / name).write_text("RULES_PATH=there\n")
    with_redis = {**environ, "REDIS_URL": str(redis.socket)}

    checked = run(tmp_path, environ, "check", *flags)
    explained = run(tmp_path, environ, "explain", *HERE, *flags)
    counted = run(tmp_path, with_redis, "counters", *HERE, *flags)

    assert checked.stdout == f"1 rule in 1 domain are good ({where})\n"
    assert f"The rule at {where}/rules.yaml:2:27 applies" in explained.stdout
    assert "(5 requests per day)" in counted.stdout
    command = [sys.executable, "-m", "ratelimit_service", "serve", *flags]
    with Process(command, tmp_path, {"PYTHONPATH": str(ROOT), **PORTS, **environ}) as service:
        service.wait_until(lambda: "rules loaded" in service.log, "the rules are loaded")
        assert f"rules loaded from {where}: 1 rule in 1 domain, 1 file\n" in service.log


def test_domains_are_merged_where_serve_merges_them(tmp_path: Path) -> None:
    write_rules(tmp_path / "there")
    (tmp_path / "there" / "more.yaml").write_text("domain: shop\n")
    environ = {"RULES_PATH": "there"}

    assert run(tmp_path, environ, "check").returncode == 1
    assert run(tmp_path, environ, "check", "there").returncode == 1
    (tmp_path / ".env").write_text("MERGE_DOMAIN_CONFIG=true\n")
    for arguments in (["check"], ["check", "there"], ["explain", *HERE]):
        assert run(tmp_path, environ, *arguments).returncode == 0


def test_check_needs_no_more_than_the_settings_of_rules(tmp_path: Path) -> None:
    write_rules(tmp_path / "there")

    result = run(tmp_path, {"RULES_PATH": "there", "LOG_LEVEL": "verbose"}, "check")

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["check"], ["explain", *HERE], ["serve"]], ids=lambda words: words[0])
def test_rules_that_are_not_there_are_one_line_that_says_how_to_name_them(tmp_path: Path, arguments: list[str]) -> None:
    environ = {"RUNTIME_ROOT": "nowhere"}
    line = "there are no rules: nowhere/config does not exist; say where they are with --rules or RULES_PATH"

    alone = run(tmp_path, environ, *arguments)
    write_rules(tmp_path / "config")
    beside = run(tmp_path, environ, *arguments)

    assert (alone.returncode, beside.returncode) == (1, 1)
    assert alone.stderr.splitlines()[-1] == f"ratelimit: {line}"
    assert beside.stderr.splitlines()[-1] == f"ratelimit: {line}, such as --rules config"


@pytest.mark.parametrize("arguments", [["check"], ["explain", *HERE], ["counters", *HERE]], ids=lambda words: words[0])
def test_a_folder_without_rules_is_told_by_every_command(tmp_path: Path, redis: Redis, arguments: list[str]) -> None:
    (tmp_path / "there").mkdir()
    environ = {"RULES_PATH": "there", "REDIS_URL": str(redis.socket)}

    result = run(tmp_path, environ, *arguments)

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.endswith("there: has no *.yaml or *.yml file\n")


def test_paths_and_rules_at_once_are_bad_usage(tmp_path: Path) -> None:
    result = run(tmp_path, {}, "check", "a.yaml", "--rules", "b")

    assert result.returncode == 2
    assert "use PATH or --rules, not both" in result.stderr
