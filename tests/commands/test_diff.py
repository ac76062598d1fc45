"""`ratelimit diff` says which descriptors get another limit, and exits accordingly."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main

OLD = """\
domain: shop
descriptors:
  - key: login
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: plan
    value: free
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 50}
  - key: path
    value: /files/*
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: path
    rate_limit: {unit: second, requests_per_unit: 100}
"""

NEW = """\
domain: shop
descriptors:
  - key: search
    rate_limit: {unit: minute, requests_per_unit: 20}
  - key: path
    rate_limit: {unit: second, requests_per_unit: 100}
  - key: login
    rate_limit: {unit: hour, requests_per_unit: 5}
    shadow_mode: true
"""


def run(tmp_path: Path, old: str, new: str, *arguments: str) -> Result:
    (tmp_path / "old.yaml").write_text(old)
    (tmp_path / "new.yaml").write_text(new)
    return CliRunner().invoke(
        main,
        ["diff", str(tmp_path / "old.yaml"), str(tmp_path / "new.yaml"), *arguments],
        env={"MERGE_DOMAIN_CONFIG": None},
    )


def test_each_change_has_both_limits_their_places_and_a_request(tmp_path: Path) -> None:
    result = run(tmp_path, OLD, NEW)

    assert result.exit_code == 1
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    assert (
        result.stdout
        == f"""\
~ shop.login: 5 requests per minute → 5 requests per hour; shadow_mode: false → true
    {old}:4:5 → {new}:8:5; counters start afresh; such as login=other
- shop.plan_free.user: 50 requests per day → no limit
    {old}:9:9; such as plan=free user=other
~ shop.path_/files/*: 10 requests per second → 100 requests per second
    {old}:12:5 → {new}:6:5; shop.path_/files/* before, shop.path now; counters are kept; such as path=/files/other
+ shop.search: no limit → 20 requests per minute
    {new}:4:5; such as search=other
4 descriptors with another limit: 1 added, 1 removed, 2 changed (4 rules → 3 rules)
"""
    )


def test_rules_that_were_moved_are_the_same(tmp_path: Path) -> None:
    first, second = OLD[: OLD.index("  - key: plan")], OLD[OLD.index("  - key: plan") :]

    result = run(
        tmp_path, OLD, f"# A comment.\ndomain: shop\ndescriptors:\n{second}{first.partition('descriptors:')[2]}"
    )

    assert (result.exit_code, result.stdout) == (0, "no descriptor gets another limit (4 rules → 4 rules)\n")


def test_the_changes_come_as_json(tmp_path: Path) -> None:
    result = run(tmp_path, OLD, NEW, "--json")

    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert {key: found[key] for key in ("same", "added", "removed", "changed", "rules")} == {
        "same": False,
        "added": 1,
        "removed": 1,
        "changed": 2,
        "rules": [4, 3],
    }
    assert found["changes"][1] == {
        "kind": "removed",
        "domain": "shop",
        "descriptors": ["plan_free", "user"],
        "request": [{"key": "plan", "value": "free"}, {"key": "user", "value": "other"}],
        "old": {
            "rule": "shop.plan_free.user",
            "place": f"{tmp_path}/old.yaml:9:9",
            "limit": "50 requests per day",
            "requests": 50,
        },
        "new": None,
        "differences": [{"what": "limit", "old": "50 requests per day", "new": "no limit"}],
        "counters": None,
    }
    assert found["changes"][0]["counters"] == "afresh"


def test_the_same_rules_as_json(tmp_path: Path) -> None:
    result = run(tmp_path, OLD, OLD, "--json")

    found = json.loads(result.stdout)
    assert (result.exit_code, found["same"], found["changes"]) == (0, True, [])


def test_the_errors_of_both_have_exit_code_2(tmp_path: Path) -> None:
    result = run(tmp_path, "domain: a\nfoo: 1\n", "domain: [")
    as_json = run(tmp_path, "domain: a\nfoo: 1\n", "domain: [", "--json")

    assert (result.exit_code, result.stdout, as_json.exit_code) == (2, "", 2)
    places = [line.split(": ")[0] for line in result.stderr.splitlines()]
    assert places == [f"{tmp_path}/old.yaml:2:1", f"{tmp_path}/new.yaml:2:1"]
    assert [error["line"] for error in json.loads(as_json.stdout)["errors"]] == [2, 2]


def test_what_does_not_exist_has_exit_code_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["diff", str(tmp_path / "none"), str(tmp_path / "none.yaml")])

    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path}/none: cannot be read: no such file or directory\n")


def test_rules_that_are_too_different_have_exit_code_2(tmp_path: Path) -> None:
    many = [f"- {{key: k, value: '*{n}', rate_limit: {{unit: day, requests_per_unit: 1}}}}\n" for n in range(320)]
    old, new = ("domain: d\ndescriptors:\n" + "".join(some) for some in (many, reversed(many)))

    result = run(tmp_path, old, new)

    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path}/new.yaml: more than 100,000 pairs of wildcards at one level")


def test_folders_are_compared_and_domains_joined_where_that_is_asked_for(tmp_path: Path) -> None:
    both, apart = tmp_path / "both", tmp_path / "apart"
    for folder in (both, apart):
        folder.mkdir()
    limit = "rate_limit: {unit: day, requests_per_unit: 1}"
    (both / "1.yaml").write_text(f"domain: shop\ndescriptors: [{{key: a, {limit}}}, {{key: b, {limit}}}]\n")
    (apart / "1.yaml").write_text(f"domain: shop\ndescriptors: [{{key: a, {limit}}}]\n")
    (apart / "2.yaml").write_text(f"domain: shop\ndescriptors: [{{key: b, {limit}}}]\n")

    def exit_code(*arguments: str) -> int:
        return CliRunner().invoke(main, ["diff", str(both), str(apart), *arguments]).exit_code

    assert (exit_code(), exit_code("--merge-domains")) == (2, 0)


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)])
def test_a_terminal_gets_colours_unless_no_color_is_set(
    tmp_path: Path, environ: dict[str, str], coloured: bool
) -> None:
    (tmp_path / "old.yaml").write_text(OLD)
    (tmp_path / "new.yaml").write_text(NEW)
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    try:
        subprocess.run(
            [sys.executable, "-m", "ratelimit_service", "diff", "old.yaml", "new.yaml"],
            stdout=theirs,
            cwd=tmp_path,
            env={**inherited, **environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            check=False,
            timeout=60,
        )
        output = os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)

    assert (b"\x1b[31m- shop.plan_free.user" in output) is coloured
    assert (b"\x1b[" in output) is coloured
