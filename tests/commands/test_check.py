"""`ratelimit check` says all that is wrong, and exits accordingly."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ratelimit_service.commands.check import command
from ratelimit_service.rules.rule import counter_key
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.redis.envoyproxy import envoyproxy_key
from tests.books import book
from tests.envoy.model import shown

GOOD = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n"


def check(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], env={"MERGE_DOMAIN_CONFIG": None})


def test_good_rules_are_counted(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(GOOD)
    (tmp_path / "mail.yml").write_text("domain: mail\n")

    result = check(tmp_path)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "1 rule in 2 domains are good\n", "")


def test_every_error_of_every_path_is_told_and_the_exit_code_is_1(tmp_path: Path) -> None:
    bad, worse = tmp_path / "a.yaml", tmp_path / "b.yaml"
    bad.write_text("domain: a\nfoo: 1\n")
    worse.write_text("domain: [\n")
    missing = tmp_path / "c.yaml"

    result = check(bad, worse, missing)

    assert result.exit_code == 1
    assert result.stdout == ""
    assert [line.split(": ")[0] for line in result.stderr.splitlines()] == [str(missing), f"{bad}:2:1", f"{worse}:2:1"]


def test_a_folder_without_rules_is_an_error(tmp_path: Path) -> None:
    result = check(tmp_path)

    assert (result.exit_code, result.stderr) == (1, f"{tmp_path}: has no *.yaml or *.yml file\n")


def test_a_warning_is_told_and_the_exit_code_is_0(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("domain: a\ndescriptors:\n- key: b\n")

    result = check(file)

    assert result.exit_code == 0
    assert result.stdout == "0 rules in 1 domain are good\n"
    assert result.stderr.startswith(f'{file}:3:3: warning: "b" does nothing')


ODD = """\
domain: shop
descriptors:
- key: client_ip
  value: 10.0.0.0/8
  rate_limit: {unit: day, requests_per_unit: 1}
- key: user
  rate_limit: {unit: month, requests_per_unit: 1}
"""


def test_warnings_never_change_the_exit_code_and_can_be_left_out_by_kind(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(ODD)

    all_, some, none = check(file), check(file, "--ignore", "cidr"), check(file, "--ignore=cidr", "--ignore=calendar")

    assert [result.exit_code for result in (all_, some, none)] == [0, 0, 0]
    assert [result.stdout for result in (all_, some, none)] == ["2 rules in 1 domain are good\n"] * 3
    assert [line.split(" ")[0] for line in all_.stderr.splitlines()] == [f"{file}:4:10:", f"{file}:7:22:"]
    assert all_.stderr.splitlines()[1:] == some.stderr.splitlines()
    assert none.stderr == ""


def test_a_kind_of_warnings_that_there_is_not_is_bad_usage(tmp_path: Path) -> None:
    assert check(tmp_path, "--ignore", "cider").exit_code == 2


def test_warnings_come_as_json_with_their_kinds(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(ODD)

    found = json.loads(check("--json", file).stdout)

    assert [(one["kind"], one["line"], one["column"]) for one in found["warnings"]] == [
        ("cidr", 4, 10),
        ("calendar", 7, 22),
    ]


def test_the_findings_come_as_json(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("domain: a\nzzz: 1\n")

    result = check("--json", file)

    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "rules": None,
        "domains": None,
        "errors": [
            {
                "file": str(file),
                "line": 2,
                "column": 1,
                "message": (
                    'unknown key "zzz"; at the top of the file there may be domain, charge, settle, headers, '
                    "retry_after, retry_after_jitter, problem_body, rule_metadata, defaults, otherwise, lookup, pools, "
                    "descriptors"
                ),
            }
        ],
        "warnings": [],
        "notes": [],
    }


def test_a_domain_in_two_files_is_good_only_when_domains_are_merged(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text("domain: shop\n")

    assert check(tmp_path).exit_code == 1
    assert check("--merge-domains", tmp_path).exit_code == 0


def test_a_file_given_twice_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)

    assert check(tmp_path, tmp_path / "a.yaml").stdout == "1 rule in 1 domain are good\n"


LIMIT = "rate_limit: {unit: day, requests_per_unit: 1}"
A_B = "key: a, value: b"


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        (f"key: a_b, value: c, {LIMIT}", f"key: a, descriptors: [{{key: x, {LIMIT}}}]", ""),
        (f"{A_B}, descriptors: [{{key: c, value: d, {LIMIT}}}]", f"key: a, value: b_c_d, {LIMIT}", "shop_a_b_c_d"),
        (f"{A_B}, descriptors: [{{key: c, {LIMIT}}}]", f"key: a, value: b_c, {LIMIT}", ""),
        (f"key: a, value: x*, {LIMIT}", f"key: a, {LIMIT}", ""),
        (f"{A_B}, descriptors: [{{key: c, {LIMIT}}}]", f"key: a_b_c, {LIMIT}", "shop_a_b_c_…"),
        (f"{A_B}, descriptors: [{{key: c, {LIMIT}}}]", f"key: a_b_c, {LIMIT[:-1]}, unit_multiplier: 2}}", ""),
        (f"key: a_b, {LIMIT}", f"key: a_b, value: c, {LIMIT}", ""),
    ],
)  # fmt: skip
def test_rules_that_share_a_key_of_envoyproxys_are_warned_of_where_keys_are_such(
    tmp_path: Path, first: str, second: str, name: str
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"domain: shop\ndescriptors:\n- {{{first}}}\n- {{{second}}}\n")

    def told(**environ: str) -> list[str]:
        result = CliRunner().invoke(command, [str(file)], env={"MERGE_DOMAIN_CONFIG": None, **environ})
        return [line for line in result.stderr.splitlines() if "[one-counter]" in line]

    assert told() == []
    assert told(KEY_FORMAT="envoyproxy", REDIS_TYPE="strange") == []
    found = told(KEY_FORMAT="envoyproxy")
    assert len(found) == bool(name)
    assert all(f"count on one key, {name}_…: rename one" in line and line.startswith(f"{file}:4:") for line in found)


SAME_NAME = """\
domain: shop
descriptors:
- key: a
  rate_limits:
  - {unit: minute, requests_per_unit: 1, name: n}
  - {unit: day, requests_per_unit: 1, name: n}
"""


def test_rules_are_checked_with_the_headers_that_the_settings_add(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(SAME_NAME)

    def warned(**environ: str) -> bool:
        result = CliRunner().invoke(command, [str(file)], env={"MERGE_DOMAIN_CONFIG": None, **environ})
        assert result.exit_code == 0
        return "[same-name]" in result.stderr

    assert warned(RESPONSE_HEADERS="ietf")
    assert not warned(RESPONSE_HEADERS="x_ratelimit")
    assert not warned(RESPONSE_HEADERS="strange")


def test_such_rules_do_share_a_key() -> None:
    descriptors = f"{{{A_B}, descriptors: [{{key: c, {LIMIT}}}]}}, {{key: a_b_c, {LIMIT}}}"
    rules = book(f"domain: shop\ndescriptors: [{descriptors}]\n")
    keys = set()
    for entries in ((("a", "b"), ("c", "v")), (("a_b_c", "v"),)):
        rule = rules.match("shop", entries)
        assert rule is not None
        keys.add(envoyproxy_key("", Hit(rule, counter_key(rule, entries), 1, tally=rule.tally, quota=False), 0))

    assert keys == {"shop_a_b_c_v_0"}


LOOKUP = """\
domain: shop
lookup: {from: ../keys.csv, key: api_key, as: tier}
descriptors: [{key: tier, value: pro, rate_limit: {unit: day, requests_per_unit: 1}}]
"""


def test_a_data_file_that_is_missing_is_an_error_where_it_is_named(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "a.yaml").write_text(LOOKUP)

    result = check(rules)

    assert result.exit_code == 1
    assert result.stderr == (
        f'{rules}/a.yaml:2:16: from "{rules}/../keys.csv" cannot be read: no such file or directory\n'
    )


def test_what_is_odd_and_what_is_wrong_in_a_data_file_is_reported_with_its_line(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "a.yaml").write_text(LOOKUP)
    keys = tmp_path / "keys.csv"
    keys.write_text("# keys\nk-1,pro\nk-1,pro\nk-2,gold\n")

    odd = check(rules)
    keys.write_text("# keys\nk-1,pro\nk-1,free\n")
    wrong = check("--json", rules)

    assert (odd.exit_code, odd.stdout) == (0, "1 rule in 1 domain are good\n")
    assert odd.stderr.splitlines() == [
        f"{rules}/../keys.csv:3:1: warning: the value is given twice, first in line 2 [duplicate]",
        f'{rules}/a.yaml:2:9: warning: no descriptor fits "tier=gold", which this lookup makes of entries [lookup]',
    ]
    assert wrong.exit_code == 1
    assert [(error["file"], error["line"], error["column"]) for error in json.loads(wrong.stdout)["errors"]] == [
        (f"{rules}/../keys.csv", 3, 1)
    ]


def test_the_timeout_that_envoy_needs_for_a_queue_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    queue = "rate_limit: {{algorithm: leaky_bucket, unit: second, requests_per_unit: 9, queue: {{max_delay: {}}}}}"
    file.write_text(
        f"domain: a\ndescriptors:\n- key: a\n  {queue.format('200ms')}\n- key: b\n  {queue.format('1.5s')}\n"
    )
    note = (
        'requests of domain "a" may wait in queues for up to 1,500 ms: Envoy\'s filter needs timeout: 1.55s, or more, '
        "and has 20 ms by default"
    )

    assert check(file).stdout == f"2 rules in 1 domain are good\n{file}:6:3: {note}\n"
    assert json.loads(check("--json", file).stdout)["notes"] == [
        {"file": str(file), "line": 6, "column": 3, "message": note}
    ]


def test_what_gives_places_back_is_noted_once_for_equal_limits(tmp_path: Path) -> None:
    limit = "rate_limit: {concurrency: 2, hold: 60s, place: id}"
    values = "\n".join(f"- {{key: work, value: w{n}, descriptors: [{{key: id, {limit}}}]}}" for n in range(4))
    paths = "\n".join(f"- {{key: path, value: /{n}, descriptors: [{{key: id, {limit}}}]}}" for n in range(2))
    (tmp_path / "shop.yaml").write_text(f"domain: shop\ndescriptors:\n{paths}\n{values}\n")

    result = check(tmp_path / "shop.yaml")

    good, first, *rest = result.stdout.splitlines()
    assert good == "6 rules in 1 domain are good"
    assert "in a route's own rate_limits it ignores hits_addend" in first
    assert rest[:10] == [
        "rate_limits:",
        "  - actions:",
        '      - request_headers: {header_name: ":path", descriptor_key: "path"}',
        '      - request_headers: {header_name: "x-request-id", descriptor_key: "id"}',
        "    hits_addend: {number: 1}",
        "  - actions:",
        '      - request_headers: {header_name: ":path", descriptor_key: "path"}',
        '      - request_headers: {header_name: "x-request-id", descriptor_key: "id"}',
        "    hits_addend: {number: 1, is_negative_hits: true}",
        "    apply_on_stream_done: true",
    ]
    assert [line for line in rest if "generic_key" in line] == [
        f'      - generic_key: {{descriptor_key: "work", descriptor_value: "w{n}"}}' for n in (0, 0, 1, 1)
    ]
    assert rest[-1].endswith("as above, by the entries of this limit")


def noted(file: Path, rules: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Each note of Envoy's half: its words, and its items."""
    file.write_text(rules)
    messages = [str(note["message"]) for note in json.loads(check("--json", file).stdout)["notes"]]
    split = [message.partition("\n") for message in messages]
    return [(words, yaml.safe_load(half)["rate_limits"]) for words, _, half in split]


def test_what_reserves_and_settles_is_noted_as_the_docs_show_it(tmp_path: Path) -> None:
    [(words, items)] = noted(tmp_path / "a.yaml", shown("domain: chat"))

    assert words == (
        "Envoy reserves what a request may cost, and settles what it has cost, by two items of rate_limits in its "
        "ratelimit filter, or in the filter's configuration of a route (typed_per_filter_config); in a route's own "
        "rate_limits it ignores hits_addend; x-request-id must be Envoy's own, by use_remote_address: true; the last "
        "format says where the cost is, here what a gateway for models writes:"
    )
    assert items == yaml.safe_load(shown("rate_limits:"))["rate_limits"]


def test_without_an_estimate_the_noted_item_has_a_cost_from_a_header(tmp_path: Path) -> None:
    limit = "{unit: day, requests_per_unit: 400000, reserve: {id: id, hold: 1m}}"
    places = "{concurrency: 2, hold: 60s, place: id}"

    [(words, items)] = noted(
        tmp_path / "a.yaml", f"domain: a\nsettle: done\ndescriptors: [{{key: id, rate_limits: [{limit}, {places}]}}]\n"
    )

    assert words.startswith("Envoy takes these places, and gives them back, and reserves what a request may cost, and")
    assert items[0]["hits_addend"] == yaml.safe_load(shown("hits_addend:"))["hits_addend"]
    assert [item.get("apply_on_stream_done") for item in items] == [None, True, True]
    assert items[1]["actions"][-1] == {"generic_key": {"descriptor_key": "done", "descriptor_value": "1"}}
    assert items[2]["hits_addend"] == {"number": 1, "is_negative_hits": True}


def test_where_nothing_reserves_a_look_and_what_settles_are_noted_once(tmp_path: Path) -> None:
    limit = "rate_limit: {unit: day, requests_per_unit: 9}"

    [(words, items)] = noted(
        tmp_path / "a.yaml", f"domain: a\nsettle: done\ndescriptors: [{{key: k, {limit}}}, {{key: l, {limit}}}]\n"
    )

    header = {"request_headers": {"header_name": "x-k", "descriptor_key": "k"}}
    assert words.startswith("Envoy looks, and settles what a request has cost, by two items of rate_limits")
    assert "x-request-id" not in words
    assert items[0] == {"actions": [header], "hits_addend": {"number": 0}}
    assert items[1]["actions"] == [header, {"generic_key": {"descriptor_key": "done", "descriptor_value": "1"}}]
    assert items[1]["apply_on_stream_done"]
