"""`ratelimit rules test` runs cases against rules, and says what a failed one got instead."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from textwrap import dedent, indent

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main

ROOT = Path(__file__).parents[2]

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5, name: users}
  - key: plan
    value: free
    shadow_mode: true
    metadata: {owner: billing, level: 1}
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: token_bucket, burst: 2}
    descriptors:
      - key: user
        rate_limits:
          - {unit: second, requests_per_unit: 10}
          - {unit: day, requests_per_unit: 1000, name: daily}
  - key: office
    rate_limit: {unlimited: true}
  - key: blocked
    rate_limit: {deny: true}
  - key: vip
    rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: users}]}
  - key: quota
    rate_limit: {calendar: {unit: month, zone: Europe/Berlin}, requests_per_unit: 9}
"""


def run(tmp_path: Path, cases: str, *arguments: str, **environ: str) -> Result:
    rules, file = tmp_path / "rules", tmp_path / "cases.yaml"
    rules.mkdir(exist_ok=True)
    (rules / "shop.yaml").write_text(RULES)
    file.write_text(cases)
    return CliRunner().invoke(
        main,
        ["rules", "test", str(file), "--rules", str(rules), *arguments],
        env={"MERGE_DOMAIN_CONFIG": None, **environ},
    )


def case(text: str) -> str:
    """A file with this case, which begins at 3:5."""
    return f"domain: shop\ncases:\n  - {indent(text, '    ').lstrip()}\n"


def test_the_examples_pass_their_tests() -> None:
    result = CliRunner().invoke(
        main, ["rules", "test", *map(str, ROOT.glob("config/tests/*.cases")), "--rules", str(ROOT / "config")]
    )

    assert (result.exit_code, [line for line in result.stdout.splitlines() if line.startswith("FAIL")]) == (0, [])


@pytest.mark.parametrize(
    "text",
    [
        "request: user=ada\nlimit: 5 per minute",
        "request: user=ada\nlimit: 5/minute",
        "request: user=ada\nlimit: 5 requests per 1 minute",
        "request: user=ada\nlimit: 5 per 60 seconds",
        "request: user=ada\nlimit: {unit: minute, requests_per_unit: 5}",
        "request: user=ada\nlimit: {unit: second, unit_multiplier: 60}",
        "request: user=ada\nlimit: {algorithm: fixed_window, anchor: calendar, exceed: 0, name: users}",
        "request: plan=free\nlimit: {burst: 2, count_refused: false, unlimited: false}",
        "request: plan=free user=ada\nlimit: 1000 per day, 10 per second",
        "request: plan=free user=ada\nlimit: 1_000 per day,10 per second",
        "request: plan=free user=ada\nlimit: 10 requests per second,1,000 requests per day",
        "request: office=x\nlimit: unlimited",
        "request: office=x\nlimit: {unlimited: true}",
        "request: office=x\nlimit: {allow: true, deny: false}",
        "request: blocked=x\nlimit: denied\nanswer: refused",
        "request: blocked=x\nlimit: {deny: true, unlimited: false}",
        "request: other=x\nlimit: none",
        "request: user=ada + vip=ada\nlimit: [none, 9 per day]",
        "request: user=ada + other=x\nlimit: [~, none]",
        "request: user=ada\nrule: users",
        "request: user=ada\nrule: user",
        "request: user=ada\nrule: shop.user",
        "request: plan=free user=ada\nrule: plan_free.user",
        "request: plan=free user=ada\nrule: plan_free.user.per_day",
        "request: plan=free user=ada\nrule: daily",
        "request: user=ada\nremaining: 4\ndenied: false\nanswer: allowed\nuntil_reset: 60s",
        "request: user=ada\nuntil_reset: minute",
        "request: user=ada\nat: 2026-01-05T00:00:20Z\nuntil_reset: 40s",
        "request: user=ada\nat: 2026-01-05T01:00:20+01:00\nuntil_reset: 40s",
        "request: user=ada\nhits: 6\nanswer: refused",
        "request: user=ada\ntimes: 5\nanswer: allowed\nremaining: 0",
        "request: user=ada\nsteps: [{times: 5}, {answer: refused}, {after: 1m, answer: allowed}]",
        "request: user=ada\nsteps: [{hits: 5}, {hits: 5, refund: true}, {remaining: 4}]",
        "request: user=ada\nlimit: 5 per minute\nsteps: [{times: 5}, {request: user=bob, remaining: 4}]",
        "request: user=ada\nsteps: [{after: 30s, until_reset: 30s}, {after: 1 minute, until_reset: 30s}]",
        "request: plan=free\nmetadata: {owner: billing, level: 1}",
        "request: plan=free\nsteps: [{hits: 2}, {denied: false, answer: allowed}]",
        "request: user='Ada Lovelace' + user=\"x+y\"\nlimit: [5 per minute, 5 per minute]",
        "request: user=ada\noverride: 2/hour\nremaining: 1\nlimit: 2 per hour",
        "request: user=ada\nheaders: {ratelimit-limit: ~}",
        "domain: mail\nrequest: user=ada\nlimit: none",
        "request: quota=x\nlimit: {calendar: {unit: month, start: 1, zone: Europe/Berlin}, requests_per_unit: 9}",
        "request: quota=x\nat: 2026-03-31T21:59:20Z\nuntil_reset: 40s",
    ],
)
def test_a_case_passes_that_says_what_the_rules_do(tmp_path: Path, text: str) -> None:
    result = run(tmp_path, case(text))

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"1 case passed, 0 failed (8 rules of {tmp_path}/rules)"


@pytest.mark.parametrize(
    ("text", "what", "expected", "got"),
    [
        ("request: user=ada\nlimit: 6 per minute", "limit", "6 per minute", "5 requests per minute"),
        ("request: user=ada\nlimit: 5 per hour", "limit", "5 per hour", "5 requests per minute"),
        ("request: user=ada\nlimit: none", "limit", "none", "5 requests per minute"),
        ("request: user=ada\nlimit: unlimited", "limit", "unlimited", "5 requests per minute"),
        ("request: office=x\nlimit: none", "limit", "none", "unlimited"),
        ("request: office=x\nlimit: denied", "limit", "denied", "unlimited"),
        ("request: blocked=x\nlimit: unlimited", "limit", "unlimited", "always denied"),
        ("request: blocked=x\nlimit: {allow: true}", "limit", "allow: true", "always denied"),
        ("request: office=x\nlimit: 5 per day", "limit", "5 per day", "unlimited"),
        ("request: office=x\nlimit: {unit: day}", "limit", "unit: day", "unlimited"),
        ("request: other=x\nlimit: 5 per day", "limit", "5 per day", "none"),
        ("request: other=x\nlimit: unlimited", "limit", "unlimited", "none"),
        (
            "request: plan=free\nlimit: {burst: 3}",
            "limit",
            "burst: 3",
            "1 request per hour (token bucket, burst 2)",
        ),
        ("request: user=ada\nlimit: {exceed: 20%}", "limit", "exceed: 20%", "5 requests per minute"),
        ("request: user=ada\nlimit: {count_refused: false}", "limit", "count_refused: false", "5 requests per minute"),
        (
            "request: user=ada\nlimit: {anchor: first_request}",
            "limit",
            "anchor: first_request",
            "5 requests per minute",
        ),
        ("request: user=ada\nlimit: {name: other}", "limit", "name: other", "5 requests per minute"),
        ("request: user=ada\nlimit: {unlimited: true}", "limit", "unlimited: true", "5 requests per minute"),
        (
            "request: plan=free user=ada\nlimit: 10 per second",
            "limit",
            "10 per second",
            "10 requests per second, 1,000 requests per day",
        ),
        ("request: user=ada + vip=ada\nlimit: [5 per minute, ~]", "limit of user=ada", "5 per minute", "none"),
        ("request: user=ada\nrule: plan_free", "rule", "plan_free", "shop.user"),
        ("request: other=x\nrule: user", "rule", "user", "none"),
        ("request: user=ada\nremaining: 5", "remaining", "5", "4"),
        ("request: user=ada\ndenied: true", "denied", "true", "false"),
        ("request: user=ada\nuntil_reset: 59s", "until_reset", "59s", "60s"),
        ("request: user=ada\nanswer: refused", "answer", "refused", "allowed"),
        ("request: user=ada\ntimes: 6\nanswer: allowed", "answer to request 6 of 6", "allowed", "refused"),
        ("request: user=ada\ntimes: 7\nanswer: allowed", "answer to request 6 of 7", "allowed", "refused"),
        ("request: user=ada\nheaders: {RateLimit-Limit: 5}", "header ratelimit-limit", "5", "none"),
        ("request: quota=x\nlimit: 9/month", "limit", "9/month", "9 requests per calendar month, Europe/Berlin"),
        (
            "request: quota=x\nlimit: {unit: month}",
            "limit",
            "unit: month",
            "9 requests per calendar month, Europe/Berlin",
        ),
        (
            "request: quota=x\nlimit: {calendar: {unit: month}}",
            "limit",
            "calendar: …",
            "9 requests per calendar month, Europe/Berlin",
        ),
        ("request: plan=free\nmetadata: {owner: shop}", "metadata owner", "shop", "billing"),
        ("request: user=ada\nmetadata: {owner: shop}", "metadata owner", "shop", "none"),
    ],
)
def test_a_case_fails_that_says_something_else(tmp_path: Path, text: str, what: str, expected: str, got: str) -> None:
    result = run(tmp_path, case(text))

    assert result.exit_code == 1
    first, *diff = result.stdout.splitlines()
    assert first.startswith(f"FAIL {tmp_path}/cases.yaml:3:5  ")
    assert [line.strip() for line in diff[:3]] == [what, f"- expected {expected}", f"+ got      {got}"]
    assert diff[-1].startswith("0 cases passed, 1 failed")


def test_a_failure_names_the_rule_that_applied_and_its_place(tmp_path: Path) -> None:
    lines = run(tmp_path, case("request: user=ada + other=x\nremaining: [5, ~]")).stdout.splitlines()

    assert lines[1].strip() == "remaining of user=ada"
    assert lines[4].strip() == f"(shop.user, {tmp_path}/rules/shop.yaml:4:5)"


TOLD = """\
domain: told
rule_metadata: true
descriptors:
  - key: user
    metadata: {owner: {team: billing, level: 1}}
    rate_limit: {unit: minute, requests_per_unit: 5, exceed: 1, name: users}
  - key: api_key
    hash_values: true
    rate_limit: {unit: minute, requests_per_unit: 5}
"""


def test_the_metadata_of_a_case_have_the_rule_that_refused_or_whose_soft_limit_it_was(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "told.yaml").write_text(TOLD)
    steps = """\
        domain: told
        request: user=ada
        steps:
          - {hits: 5, metadata: {owner: {team: billing}}}
          - {metadata: {soft_limit: {rule: user, name: users}}}
          - {metadata: {refused_by: {domain: told, name: users}}}
        """

    assert run(tmp_path, case(dedent(steps))).exit_code == 0
    failed = run(tmp_path, case(dedent(steps).replace("refused_by: {domain: told", "refused_by: {domain: shop")))
    assert "metadata refused_by in the step at" in failed.stdout
    assert "'name': 'users'" in failed.stdout


def test_reports_have_digests_in_place_of_secret_values(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "told.yaml").write_text(TOLD)
    text = case("domain: told\nrequest: api_key=hunter2 + api_key=hunter2\nremaining: [4, 9]")

    results = [
        run(tmp_path, text, *arguments, HASH_KEY="0123456789abcdef0123456789abcdef")
        for arguments in ((), ("--json",), ("--junit", str(tmp_path / "report.xml")))
    ]
    said = [result.stdout for result in results] + [(tmp_path / "report.xml").read_text()]
    assert [result.exit_code for result in results] == [1, 1, 1]
    assert all("api_key=h-" in text and "hunter2" not in text for text in said)


def test_a_failure_where_no_rule_applies_says_why(tmp_path: Path) -> None:
    lines = run(tmp_path, case("request: other=x\nlimit: 5 per day")).stdout.splitlines()

    assert lines[4].strip() == '(entry 1 of 1, other="x", fits nothing below domain "shop")'


def test_a_case_ends_with_its_first_step_that_fails_and_says_which(tmp_path: Path) -> None:
    text = "name: a user\nrequest: user=ada\nsteps:\n  - {remaining: 4}\n  - {remaining: 4}\n  - {remaining: 4}"

    lines = run(tmp_path, case(text)).stdout.splitlines()

    assert lines[0] == f"FAIL {tmp_path}/cases.yaml:3:5  a user"
    assert lines[1] == f"       remaining in the step at {tmp_path}/cases.yaml:7"
    assert len([line for line in lines if "expected" in line]) == 1


def test_each_case_begins_with_untouched_counters(tmp_path: Path) -> None:
    one = "  - {request: user=ada, hits: 5, answer: allowed}\n"

    assert run(tmp_path, f"domain: shop\ncases:\n{one}{one}").exit_code == 0


def test_response_headers_are_those_of_the_settings(tmp_path: Path) -> None:
    text = case("request: user=ada\nheaders: {RateLimit-Limit: 5, RateLimit-Remaining: 4, X-Other: ~}")

    assert run(tmp_path, text, LIMIT_RESPONSE_HEADERS_ENABLED="true").exit_code == 0


def test_the_modes_of_the_settings_have_no_effect(tmp_path: Path) -> None:
    text = case("request: user=ada\nhits: 6\nanswer: refused")

    assert run(tmp_path, text, SHADOW_MODE="true").exit_code == 0


def test_a_request_that_the_service_does_not_answer_fails_its_case(tmp_path: Path) -> None:
    text = case(f"request: {' + '.join(['user=a'] * 257)}\nanswer: allowed")

    lines = run(tmp_path, text).stdout.splitlines()

    assert lines[3].startswith("       + got      INVALID_ARGUMENT: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ":1:1: a file of cases is a map with domain and cases, not empty"),
        ("- a\n", ":1:1: a file of cases is a map with domain and cases, not a list"),
        ("domain: shop\n", ":1:1: the file has no cases"),
        ("domain: shop\ncase: []\ncases: []\n", ':2:1: unknown key "case"; did you mean cases?'),
        ("domain: shop\ncases: [a]\n", ':2:9: cases must be a list of maps, not the text "a"'),
        ("cases: [{request: user=ada, limit: none}]\n", ":1:9: there is no domain; write one here, in the case, or"),
        (case("limit: none"), ":3:5: there is no request, such as request: plan=free user=ada"),
        (case("request: user=ada"), ":3:5: nothing is expected; write at least one of answer, limit, rule, denied,"),
        (case("request: user=ada\nlimt: none"), ':4:5: unknown key "limt"; did you mean limit?'),
        (
            case("request: user=ada\nlimit: 5 per fortnight"),
            ':4:12: limit "5 per fortnight" is not a limit such as 5 per',
        ),
        (case("request: user=ada\nlimit: unlimted"), ':4:12: limit "unlimted" is not a limit such as 5 per minute'),
        (case("request: user=ada\nlimit: 9999999999999999 per day"), ":4:12: limit "),
        (case("request: user=ada\nlimit: {unit: day, brust: 1}"), ':4:24: unknown key "brust"; did you mean burst?'),
        (case("request: user=ada\nlimit: {calendar: {unit: hour}}"), ':4:30: unit "hour" is not one of day, week,'),
        (case("request: user=ada\nlimit: {replaces: [{name: x}]}"), ":4:13: limit cannot be compared by replaces"),
        (case("request: user=ada\nlimit: {unit_multiplier: 2}"), ":4:13: limit has a unit_multiplier without a unit"),
        (
            case("request: user=ada + user=bob\nlimit: none"),
            ":4:12: limit must have a value for each descriptor: the request has 2 descriptors, and this 1",
        ),
        (
            case("request: user=ada\nremaining: [1, 2]"),
            ":4:16: remaining must have a value for each descriptor: the request has one descriptor, and this 2",
        ),
        (case("request: user\nlimit: none"), ":3:14: request \"user\": 'user' has no =; write user=VALUE"),
        (case("request: user=ada +\nlimit: none"), ':3:14: request "user=ada +": a descriptor is empty'),
        (case("request: user='ada\nlimit: none"), ':3:14: request "user=\'ada": no closing quotation'),
        (case("request: user=ada\noverride: 5\nlimit: none"), ":4:15: override: '5' is not a limit such as 10/minute"),
        (
            case("request: user=ada\nafter: soon\nlimit: none"),
            ':4:12: after "soon" is not a duration such as 10s, 1h30m',
        ),
        (case("request: user=ada\nafter: -1s\nlimit: none"), ':4:12: after "-1s" is below zero'),
        (case("request: user=ada\ntimes: 100001\nlimit: none"), ":4:12: times must be a whole number from 1 to 100000"),
        (case("request: user=ada\nanswer: denied"), ':4:13: answer "denied" is not one of allowed, refused'),
        (case("request: user=ada\nat: 2026-01-05\nlimit: none"), ':4:9: at "2026-01-05" is not a moment such as'),
        (case("request: user=ada\nat: 2026-02-30T00:00:00Z\nlimit: none"), ':4:9: at "2026-02-30T00:00:00Z" is not a'),
        (case("request: user=ada\nheaders: [a]"), ":4:14: headers must be a map from names to values, not a list"),
        (
            case("request: user=ada\nheaders: {a: [b]}"),
            ':4:18: headers: "a" must be text, or ~ where there must be none',
        ),
        (case("request: user=ada\nsteps: []"), ":4:5: the case has no steps; remove steps, or write one"),
        (case("request: user=ada\nsteps: [{name: x}]"), ':4:14: unknown key "name"; in a step there may be domain'),
        ("domain: [", ":2:1: is not valid YAML"),
    ],
)
def test_a_mistake_in_a_file_of_cases_is_reported_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    result = run(tmp_path, text)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0].startswith(f"{tmp_path}/cases.yaml{problem}")


@pytest.mark.parametrize(
    ("steps", "problem"),
    [("[]", "4:5: the case has no steps; remove steps, or write one"),
     ("[1]", "4:13: steps must be a list of maps, not the number 1"),
     ("x", '4:12: steps must be a list of maps, not the text "x"')],
)  # fmt: skip
def test_steps_that_are_none_are_one_mistake(tmp_path: Path, steps: str, problem: str) -> None:
    result = run(tmp_path, case(f"name: of steps\nsteps: {steps}"))

    assert result.stderr == f"{tmp_path}/cases.yaml:{problem}\n"


def test_all_mistakes_of_all_files_are_reported(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("domain: shop\n")

    result = run(tmp_path, case("request: user\nanswer: perhaps"), str(other), str(tmp_path / "missing.yaml"))

    assert [line.split(": ")[0] for line in result.stderr.splitlines()] == [
        f"{tmp_path}/cases.yaml:3:14",
        f"{tmp_path}/cases.yaml:4:13",
        f"{other}:1:1",
        f"{tmp_path}/missing.yaml",
    ]


def test_bad_rules_have_exit_code_2_also_as_json(tmp_path: Path) -> None:
    bad, file = tmp_path / "bad.yaml", tmp_path / "cases.yaml"
    bad.write_text("domain: shop\nfoo: 1\n")
    file.write_text(case("request: user=ada\nlimit: none"))

    result = CliRunner().invoke(main, ["rules", "test", str(file), "--rules", str(bad)])
    as_json = CliRunner().invoke(main, ["rules", "test", str(file), "--rules", str(bad), "--json"])

    assert (result.exit_code, as_json.exit_code) == (2, 2)
    assert result.stderr.startswith(f'{bad}:2:1: unknown key "foo"')
    [error] = json.loads(as_json.stdout)["errors"]
    assert (error["path"], error["line"], error["column"]) == (str(bad), 2, 1)


def test_rules_that_do_not_exist_have_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "cases.yaml"
    file.write_text(case("request: user=ada\nlimit: none"))

    result = CliRunner().invoke(main, ["rules", "test", str(file), "--rules", str(tmp_path / "none")])

    assert result.exit_code == 2
    assert "none does not exist" in result.stderr


TWO = "domain: shop\ncases:\n  - {name: good, request: user=a, remaining: 4}\n  - {request: user=a, remaining: 5}\n"


def test_the_results_come_as_json(tmp_path: Path) -> None:
    result = run(tmp_path, TWO, "--json")

    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (found["passed"], found["failed"]) == (1, 1)
    file = f"{tmp_path}/cases.yaml"
    good, bad = found["cases"]
    assert good == {"file": file, "line": 3, "column": 5, "name": "good", "passed": True, "mismatches": []}
    assert bad["name"] == "user=a"
    assert bad["mismatches"] == [
        {
            "line": 4,
            "what": "remaining",
            "expected": "5",
            "got": "4",
            "rule": f"shop.user, {tmp_path}/rules/shop.yaml:4:5",
        }
    ]


def test_the_results_come_as_junit_xml(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"

    run(tmp_path, TWO, "--junit", str(report))

    [suite] = ET.parse(report).getroot()  # noqa: S314 - our own
    good, bad = suite
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert (good.get("name"), good.get("line"), len(good)) == ("good", "3", 0)
    assert bad[0].get("message") == "remaining: expected 5, got 4"
    assert bad[0].text is not None
    assert "- expected 5\n+ got      4\n" in bad[0].text


def test_a_report_that_cannot_be_written_has_exit_code_2(tmp_path: Path) -> None:
    result = run(tmp_path, TWO, "--junit", str(tmp_path / "none" / "report.xml"))

    assert result.exit_code == 2
    assert "report.xml cannot be written: No such file or directory" in result.stderr


def test_the_example_in_the_help_is_a_good_file(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["rules", "test", "--help"]).stdout
    example = "\n".join(line[2:] for line in shown[shown.index("  domain:") :].splitlines()).replace("  cases", "cases")
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.replace("key: user", "key: login", 1))
    (tmp_path / "cases.yaml").write_text(example)

    result = CliRunner().invoke(main, ["rules", "test", str(tmp_path / "cases.yaml"), "--rules", str(rules)])

    assert result.exit_code == 0, result.output


RESERVED = """\
domain: chat
settle: settled
descriptors:
  - key: user
    descriptors:
      - key: request_id
        rate_limit:
          {unit: minute, requests_per_unit: 1000, algorithm: token_bucket,
           reserve: {id: request_id, hold: 5m, estimate: 400}}
"""


def test_a_case_reserves_and_settles_what_a_request_has_cost(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "chat.yaml").write_text(RESERVED)
    text = """\
domain: chat
cases:
  - name: what was not used is free again
    request: user=ada request_id=1
    steps:
      - {remaining: 600}
      - {request: user=ada request_id=2, hits: 900, answer: allowed, remaining: 100}  # at most half
      - {request: user=ada request_id=3, answer: refused, remaining: 100}
      - {request: user=ada request_id=1 settled=1, hits: 50, answer: allowed, remaining: 450}
      - {request: user=ada request_id=2 settled=1, hits: 1500, answer: refused, remaining: 0}  # owes 550
      - {request: user=ada request_id=4, hits: 0, answer: refused, until_reset: 33s}
      - {request: user=ada request_id=4, hits: 0, answer: allowed, after: 2m, remaining: 1000}
"""
    result = run(tmp_path, text)

    assert result.exit_code == 0, result.stdout
