"""`ratelimit explain` tells which rule applies, and why."""

import json
import re
from pathlib import Path

import pytest
import uvloop
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.files import read_files
from tests.ports import free_port
from tests.redis import Redis
from tests.stores.charging import Charge, charge_all, descriptor

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
1. path=/files/a, compared as path_/files/a
     exact value  path_/files/a: there is none
   → wildcard     path_/files/*: fits  ({tmp_path}/shop.yaml:3:5)
     key alone    path: there is none
The rule at {tmp_path}/shop.yaml:7:5 applies: 10 requests per minute.
  limit    10 requests per minute
  counter  shop|path~path_/files/*|fixed_window/60000000
  metrics  shop.path_/files/*
  name     files
  shadow_mode: counted, denies nothing
"""
    )


def test_what_responses_of_the_domain_have_is_shown_last(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(f"headers: [ietf]\nretry_after_jitter: 5 seconds\n{RULES}")
    environ = {"RULES_PATH": str(file), "RESPONSE_RETRY_AFTER": "true"}

    text = CliRunner().invoke(main, ["explain", "shop", "path=/a"], env=environ).stdout
    found = CliRunner().invoke(main, ["explain", "shop", "path=/a", "--json"], env=environ).stdout

    expected = ["headers ietf", "Retry-After", "waits of refusals up to 5 s longer"]
    assert text.splitlines()[-2:] == ["", f"responses have {', '.join(expected)}"]
    assert json.loads(found)["response"] == expected


def test_what_is_not_limited_is_no_failure(tmp_path: Path) -> None:
    result = explain(tmp_path, "shop", "path=/other")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[-2:] == [
        "No limit: no descriptor fits entry 1 of 1.",
        '  hint: At this level there are "path_/files/*".',
    ]


def test_the_explanation_comes_as_json(tmp_path: Path) -> None:
    found = json.loads(explain(tmp_path, "shop", "path=/files/a", "--json").stdout)

    [descriptor] = found["descriptors"]
    assert descriptor["steps"][0]["candidates"][1] == {
        "name": "path_/files/*",
        "kind": "wildcard",
        "place": f"{tmp_path}/shop.yaml:3:5",
        "chosen": True,
        "reason": "fits",
    }
    assert descriptor["rules"][0]["counter"] == "shop|path~path_/files/*|fixed_window/60000000"


def test_bad_rules_are_told_and_the_exit_code_is_1(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("domain: [")

    result = explain(tmp_path, "shop", "path=/", "--rules", str(bad))

    assert result.exit_code == 1
    assert "bad.yaml:2:1: is not valid YAML" in result.stderr


def test_of_a_thousand_candidates_ten_are_shown_and_the_chosen(tmp_path: Path) -> None:
    many = tmp_path / "many.yaml"
    many.write_text("domain: d\ndescriptors:\n" + "".join(f"- {{key: k, value: {n}x*}}\n" for n in range(1000)))

    lines = explain(tmp_path, "d", "k=900x", "--rules", str(many)).stdout.splitlines()

    assert lines[3].startswith("     wildcard     k_0x*: does not fit")
    assert lines[13].startswith("   → wildcard     k_900x*: fits")
    assert lines[14:16] == ["     … and 989 more", "     key alone    k: there is none"]


PLANS = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 10, name: base}
  - key: vip
    rate_limit: {unit: year, requests_per_unit: 50, algorithm: token_bucket, replaces: [{name: base}]}
"""


def test_an_unknown_domain_has_exit_code_1_and_a_hint(tmp_path: Path) -> None:
    result = explain(tmp_path, "shopp", "path=/")

    assert result.exit_code == 1
    assert result.stdout == 'domain shopp\nNo limit: there is no domain "shopp"; did you mean shop?\n'
    as_json = explain(tmp_path, "shopp", "path=/", "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["descriptors"] == []


def test_a_request_has_several_descriptors_of_which_one_may_replace_another(tmp_path: Path) -> None:
    rules = tmp_path / "plans.yaml"
    rules.write_text(PLANS)

    lines = explain(tmp_path, "shop", "user=ada", "+", "vip=ada", "--rules", str(rules)).stdout.splitlines()

    assert lines[1:3] == ["", "descriptor 1: user=ada"]
    assert (
        f"No limit: the rule at {rules}:4:5 fits, and is replaced by the one at {rules}:6:5, which the request matches "
        in ("\n".join(lines))
    )
    assert f"  replaced by the rule at {rules}:6:5" in lines
    assert "descriptor 2: vip=ada" in lines
    assert f"The rule at {rules}:6:5 applies: 50 requests per year (token bucket)." in lines


def test_a_limit_may_come_with_the_request(tmp_path: Path) -> None:
    result = explain(tmp_path, "shop", "path=/files/a", "--limit", "10/5 minutes")

    in_place = f"in place of the rule at {tmp_path}/shop.yaml:7:5"
    assert result.stdout.splitlines()[1:4] == [
        f"The limit that came with the request applies {in_place}: 10 requests per 5 minutes.",
        "  limit    10 requests per 5 minutes",
        "  counter  shop|path=/files/a|fixed_window/300000000",
    ]


@pytest.mark.parametrize("arguments", [["foo"], ["a=b", "+"], ["+", "a=b"]])
def test_what_is_no_descriptor_is_bad_usage(tmp_path: Path, arguments: list[str]) -> None:
    assert explain(tmp_path, "shop", *arguments).exit_code == 2


def test_with_a_redis_each_counter_is_shown_as_it_is_now_and_nothing_is_charged(tmp_path: Path, redis: Redis) -> None:
    rules = tmp_path / "plans.yaml"
    rules.write_text(PLANS)
    year = Limit(3, Unit.YEAR, Unit.YEAR.window)
    charges = [
        Charge("shop", descriptor("user=ada"), 4),
        Charge("shop", descriptor("user=full"), 12),
        Charge("shop", descriptor("vip=ada"), 7),
        Charge("shop", descriptor("nobody=ada"), 2, year),
    ]
    uvloop.run(charge_all(parse(read_files(rules)), redis.socket, charges, CACHE_KEY_PREFIX="e:"))
    environ = {"REDIS_URL": str(redis.socket), "CACHE_KEY_PREFIX": "e:", "RULES_PATH": str(rules)}

    def now(*arguments: str) -> list[str]:
        result = CliRunner().invoke(main, ["explain", "shop", *arguments], env=environ)
        return [re.sub(r" in .*", " in …", line) for line in result.stdout.splitlines() if line.startswith("  now")]

    for _ in range(2):
        assert now("user=ada") == ["  now      6 of 10 left, untouched in …"]
        assert now("user=full") == ["  now      12 of 10 used, room for one in …"]
        assert now("user=bob") == ["  now      10 of 10 left"]
        assert now("vip=ada", "+", "user=ada") == ["  now      43 of 50 left, untouched in …"]
        assert now("nobody=ada", "--limit", "3/year") == ["  now      1 of 3 left, untouched in …"]
        assert now("user=ada", "--limit", "5/year") == ["  now      1 of 5 left, untouched in …"]
    state = json.loads(CliRunner().invoke(main, ["explain", "shop", "user=ada", "--json"], env=environ).stdout)
    assert state["store"] == {"name": "redis", "problem": ""}
    seen = state["descriptors"][0]["rules"][0]["state"]
    assert (seen["used"], seen["remaining"], seen["capacity"], seen["retry_after"]) == (4, 6, 10, 0)
    assert 0 < seen["reset_after"] <= 31_536_000


@pytest.mark.parametrize(
    ("options", "remaining", "retry_after"),
    [
        ("requests_per_unit: 10", 10, 0),
        ("requests_per_unit: 10, exceed: 2", 10, 0),
        ("requests_per_unit: 0", 0, None),
        ("requests_per_unit: 0, exceed: 2", 0, 0),  # the two may be charged, above the limit
        ("requests_per_unit: 0, algorithm: token_bucket, exceed: 2", 0, None),  # a bucket that gets no tokens
        ("requests_per_unit: 0, algorithm: leaky_bucket, burst: 5", 0, None),
    ],
)
def test_an_untouched_counter_that_never_has_room_has_no_retry_after(
    tmp_path: Path, redis: Redis, options: str, remaining: int, retry_after: int | None
) -> None:
    rules = tmp_path / "untouched.yaml"
    rules.write_text(f"domain: shop\ndescriptors: [{{key: user, rate_limit: {{unit: year, {options}}}}}]\n")
    environ = {"REDIS_URL": str(redis.socket), "CACHE_KEY_PREFIX": "untouched:", "RULES_PATH": str(rules)}

    result = CliRunner().invoke(main, ["explain", "shop", "user=ada", "--json"], env=environ)

    state = json.loads(result.stdout)["descriptors"][0]["rules"][0]["state"]
    assert (state["used"], state["remaining"], state["reset_after"]) == (0, remaining, 0)
    assert state["retry_after"] == retry_after


def test_a_redis_that_cannot_be_asked_leaves_the_explanation(tmp_path: Path) -> None:
    rules = tmp_path / "plans.yaml"
    rules.write_text(PLANS)
    environ = {"REDIS_URL": f"127.0.0.1:{free_port()}", "RULES_PATH": str(rules)}

    result = CliRunner().invoke(main, ["explain", "shop", "user=ada"], env=environ)

    assert result.exit_code == 0
    assert f"The rule at {rules}:4:5 applies: 10 requests per year." in result.stdout
    assert "  now      not known: " in result.stdout
