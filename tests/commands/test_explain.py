"""`ratelimit explain` tells which rule applies, and why."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from ratelimit_service.cli import main

RULES = """\
domain: shop
descriptors:
  - key: path
    value: /files/*
    share_threshold: true
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 10, name: files}
"""


def explain(tmp_path: Path, *arguments: str) -> Result:
    file = tmp_path / "shop.yaml"
    file.write_text(RULES)
    return CliRunner().invoke(main, ["explain", *arguments], env={"RULES_PATH": str(file), "MERGE_DOMAIN_CONFIG": None})


def test_the_walk_and_the_rule_are_shown(tmp_path: Path) -> None:
    result = explain(tmp_path, "shop", "path=/files/a")

    assert result.exit_code == 0
    assert (
        result.stdout
        == f"""\
domain shop
1. path=/files/a
     exact value  path_/files/a: there is none
   → wildcard     path_/files/*: fits  ({tmp_path}/shop.yaml:3:5)
     key alone    path: there is none
The rule at {tmp_path}/shop.yaml:7:5 applies: 10 requests per minute.
  limit    10 requests per minute
  counter  shop|path~path_/files/*|fixed_window/60000000
  metrics  shop.path_/files/*
  name     files
  shadow_mode: counted, never refused
"""
    )


def test_what_is_not_limited_is_no_failure(tmp_path: Path) -> None:
    result = explain(tmp_path, "shop", "path=/other")

    assert result.exit_code == 0
    assert result.stdout.endswith("No limit: no descriptor fits entry 1 of 1.\n")


def test_the_explanation_comes_as_json(tmp_path: Path) -> None:
    found = json.loads(explain(tmp_path, "shop", "path=/files/a", "--json").stdout)

    assert found["steps"][0]["candidates"][1] == {
        "name": "path_/files/*",
        "kind": "wildcard",
        "place": f"{tmp_path}/shop.yaml:3:5",
        "chosen": True,
        "reason": "fits",
    }
    assert found["rule"]["counter"] == "shop|path~path_/files/*|fixed_window/60000000"


def test_bad_rules_are_told_and_the_exit_code_is_1(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("domain: [")

    result = explain(tmp_path, "shop", "path=/", "--rules", str(bad))

    assert result.exit_code == 1
    assert "bad.yaml:2:1: is not valid YAML" in result.stderr


def test_two_descriptors_at_once_are_bad_usage(tmp_path: Path) -> None:
    assert explain(tmp_path, "shop", "path=/", "+", "path=/").exit_code == 2


def test_of_a_thousand_candidates_ten_are_shown_and_the_chosen(tmp_path: Path) -> None:
    many = tmp_path / "many.yaml"
    many.write_text("domain: d\ndescriptors:\n" + "".join(f"- {{key: k, value: {n}x*}}\n" for n in range(1000)))

    lines = explain(tmp_path, "d", "k=900x", "--rules", str(many)).stdout.splitlines()

    assert len(lines) == 16
    assert lines[12].startswith("   → wildcard     k_900x*: fits")
    assert lines[14] == "     … and 990 more"
