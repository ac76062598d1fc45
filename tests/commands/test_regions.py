"""What the commands say of limits that regions share."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.processes import ask, start_service
from tests.redis import start_redis

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5, regions: split}
"""
SECOND_OF_TWO = {"REGION": "us", "REGIONS": "eu,us"}


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "shop.yaml"
    file.write_text(RULES)
    return file


def run(*arguments: str | Path, environ: Mapping[str, str] = SECOND_OF_TWO) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)], env=environ)


def test_explain_tells_the_part_of_this_region_and_the_worst_case(rules: Path) -> None:
    words = run("explain", "shop", "user=ada", "--rules", rules)
    (rule,) = json.loads(run("explain", "shop", "user=ada", "--rules", rules, "--json").stdout)["descriptors"][0][
        "rules"
    ]

    assert words.stdout.splitlines()[4:] == [
        f"The rule at {rules}:4:5 applies: 2 requests per minute (split, of 5 for 2 regions).",
        "  limit    2 requests per minute (split, of 5 for 2 regions)",
        "  counter  shop|user=ada|fixed_window/60000000",
        "  regions  split",
        "           All 2 regions together never allow more than one limit of 5 does.",
        "           No hit waits for another region.",
        "           What one region leaves idle is not used by the others. When it is cut off, nothing changes.",
        "  metrics  shop.user",
    ]
    assert (rule["requests_per_unit"], rule["regions"]["mode"], rule["regions"]["number"]) == (2, "split", 2)
    assert (rule["regions"]["requests_per_unit"], rule["regions"]["floor"]) == (5, None)


def test_explain_tells_that_one_region_shares_nothing(rules: Path) -> None:
    lines = run("explain", "shop", "user=ada", "--rules", rules, environ={}).stdout.splitlines()

    assert "  limit    5 requests per minute" in lines
    assert lines[lines.index("  regions  split") + 1].strip().startswith("It has no effect here: each region counts")


def test_check_notes_what_has_no_effect_without_several_regions(rules: Path) -> None:
    alone, shared = run("check", rules, environ={}), run("check", rules)

    assert alone.exit_code == 0
    assert f"{rules}:4:5: regions has no effect on this limit" in alone.stdout
    assert shared.stdout == "1 rule in 1 domain are good\n"


def test_check_tells_a_limit_that_is_too_small_for_the_regions(rules: Path) -> None:
    rules.write_text(RULES.replace("5", "1"))
    found = run("check", rules)

    assert found.exit_code == 1
    assert f"{rules}:4:51: requests_per_unit is less than 1 for each of the 2 regions" in found.stderr


def test_diff_tells_another_way_of_sharing(rules: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(RULES.replace(", regions: split", ""))
    here, anywhere = run("diff", old, rules), run("diff", old, rules, environ={})

    assert here.stdout.startswith(
        "~ shop.user: 5 requests per minute → 2 requests per minute (split, of 5 for 2 regions)\n"
    )
    assert anywhere.stdout.startswith("~ shop.user: regions: none → split\n")
    assert (here.exit_code, anywhere.exit_code) == (1, 1)


def test_a_replay_is_of_one_region_with_its_part(rules: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("time,user\n" + "2026-01-05T12:00:00Z,ada\n" * 5)
    arguments = ("simulate", rules, "--log", log, "--descriptor", "user={user}", "--json")
    here, anywhere = run(*arguments), run(*arguments, environ={})

    assert [json.loads(each.stdout)["sides"][0]["refused"] for each in (here, anywhere)] == [3, 0]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_counters_of_a_region_and_of_home_are_shown_and_reset(tmp_path: Path, workers: str) -> None:
    bucket = "algorithm: token_bucket, unit: day, requests_per_unit: 1000"
    rules = f"domain: shop\ndescriptors: [{{key: user, rate_limit: {{{bucket}, regions: leased, floor: 10%}}}}]\n"
    with start_redis(tmp_path / "us") as us, start_redis(tmp_path / "home") as home:
        redis = {"REDIS_URL": f"127.0.0.1:{us.port}", "HOME_REDIS_URL": f"127.0.0.1:{home.port}"}
        environ = {**SECOND_OF_TWO, **redis, "STORE_DEADLINE": "20s", "WORKERS": workers, "TRANSPORT": "http2"}
        with start_service(tmp_path / "service", rules, environ) as service:
            asked = {"entries": [{"key": "user", "value": "ada"}]}  # the floor has 100, so it waits for home
            body = json.dumps({"domain": "shop", "descriptors": [asked], "hitsAddend": 130})
            answer = ask(service.http_port, "/json", method="POST", body=body)
            by_service = run("explain", "shop", "user=ada", "--at", f"127.0.0.1:{service.debug_port}").stdout
        environ["RULES_PATH"] = str(service.rules)
        listed = json.loads(run("counters", "shop", "--json", environ=environ).stdout)
        words = run("explain", "shop", "user=ada", environ=environ).stdout
        reset = run("counters", "shop", "user=ada", "--reset", "--yes", environ=environ)
        left = us.cli("KEYS", "rl2|shop*") + home.cli("KEYS", "rl2|shop*")

    counters = {each["descriptor"]: each for each in listed["counters"]}
    here, at_home = (counters.pop(name) for name in ("user=ada", "user=ada (home)"))
    by_itself = f"  now      {here['remaining']} left to this region by itself"
    assert answer.status == 200
    assert counters == {}
    assert here["used"] is None  # home knows what it has lent
    assert at_home["used"] + at_home["remaining"] == 800
    assert f"{by_itself}, {at_home['remaining']} at home to be leased" in words
    assert by_itself in by_service
    assert "its floor, 100 per day, and denies the rest" in by_service
    assert (reset.exit_code, left) == (0, "")


def test_the_counter_of_a_region_that_syncs_is_shown_with_what_it_has_counted(tmp_path: Path) -> None:
    limit = "{unit: year, requests_per_unit: 1000, regions: synced}"
    rules = f"domain: shop\ndescriptors: [{{key: user, rate_limit: {limit}}}]\n"
    with start_redis(tmp_path / "us") as us, start_redis(tmp_path / "home") as home:
        redis = {"REDIS_URL": f"127.0.0.1:{us.port}", "HOME_REDIS_URL": f"127.0.0.1:{home.port}"}
        environ = {**SECOND_OF_TWO, **redis, "STORE_DEADLINE": "20s"}
        with start_service(tmp_path / "service", rules, environ) as service:
            asked = {"entries": [{"key": "user", "value": "ada"}]}
            body = json.dumps({"domain": "shop", "descriptors": [asked], "hitsAddend": 130})
            answer = ask(service.http_port, "/json", method="POST", body=body)
            service.wait_until(lambda: "|home/" in home.cli("KEYS", "*"), "home knows what the region has counted")
        environ["RULES_PATH"] = str(service.rules)
        listed = json.loads(run("counters", "shop", "--json", environ=environ).stdout)
        explained = run("explain", "shop", "user=ada", environ=environ).stdout

    assert answer.status == 200
    assert [(each["descriptor"], each["used"], each["remaining"]) for each in listed["counters"]] == [
        ("user=ada", 130, 870)
    ]
    assert "870 of 1,000 left" in explained


def test_cases_of_rules_are_tested_with_the_part_of_this_region(rules: Path, tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    cases.mkdir()
    steps = "[{times: 2, answer: allowed}, {answer: refused}]"
    (cases / "shop.yaml").write_text(f"domain: shop\ncases: [{{name: part, request: user=ada, steps: {steps}}}]\n")

    assert run("rules", "test", cases, "--rules", rules).exit_code == 0
    assert run("rules", "test", cases, "--rules", rules, environ={}).exit_code == 1
