"""`ratelimit simulate` says what rules would have refused of a log, as a replay that is written here says too."""

import csv
import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.cli import main
from ratelimit_service.commands.picture import draw
from ratelimit_service.commands.simulate.heaviest import Heaviest
from ratelimit_service.commands.simulate.logs import MAX_LINE, Reader, read_time
from ratelimit_service.commands.simulate.patterns import PATTERNS, count_of, generate
from ratelimit_service.commands.simulate.replay import MAX_KEY, MAX_SPANS, Timeline
from ratelimit_service.system.clock import DAY, MINUTE, SECOND
from tests.processes import ROOT

BEGIN = 1_767_614_400
"""2026-01-05T12:00:00Z"""

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: path
    rate_limit: {unit: second, requests_per_unit: 2}
"""

STRICT = RULES.replace("requests_per_unit: 3", "requests_per_unit: 1")


def line(seconds: int, user: str = "ada", path: str = "/") -> str:
    at = datetime.fromtimestamp(BEGIN + seconds, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return f'192.0.2.1 - {user} [{at}] "GET {path}?q=1 HTTP/1.1" 200 5 "-" "curl/8 \\"x\\""'


def run(folder: Path, log: str, *arguments: str, rules: str = RULES, descriptor: str = "user={user}") -> Result:
    (folder / "rules.yaml").write_text(rules)
    (folder / "access.log").write_text(log)
    given = ["simulate", str(folder / "rules.yaml"), "--descriptor", descriptor]
    logs = () if "--pattern" in arguments or "--log" in arguments else ("--log", str(folder / "access.log"))
    return CliRunner().invoke(main, [*given, *logs, *arguments], env={"MERGE_DOMAIN_CONFIG": None})


def result_of(folder: Path, log: str, *arguments: str, rules: str = RULES, descriptor: str = "user={user}") -> Any:
    result = run(folder, log, "--json", *arguments, rules=rules, descriptor=descriptor)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


requests = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["a", "b", "c", "-"]), st.sampled_from(["/", "/x"])),
    min_size=1,
    max_size=80,
)


@given(requests)
def test_a_replay_refuses_what_counting_by_hand_refuses(gaps: list[tuple[int, str, str]]) -> None:
    counts: Counter[tuple[str, str, int]] = Counter()
    refused: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    now, lines = 0, []
    for gap, user, path in gaps:
        now += gap if gap > 30 else 0  # many at one time
        lines.append(line(now, user, path))
        over = set()
        for key, value, window, limit in (("user", user, 60, 3), ("path", path, 1, 2)):
            if value != "-":
                counts[key, value, (BEGIN + now) // window] += 1
                if counts[key, value, (BEGIN + now) // window] > limit:
                    over.add(f"{key}={value}")
        keys.update(over)
        refused.update(f"shop.{each.partition('=')[0]}" for each in over)
        refused["requests"] += bool(over)

    with TemporaryDirectory() as folder:
        found = result_of(Path(folder), "\n".join(lines), descriptor="user={user} + path={path}")

    [side] = found["sides"]
    assert found["requests"] == len(gaps)
    assert side["refused"] == refused.pop("requests")
    assert side["allowed"] == len(gaps) - side["refused"]
    assert {each["rule"]: each["refused"] for each in side["rules"]} == refused
    assert {each["entries"]: each["refused"] for each in side["most_refused"]} == keys


FORMATS = {
    "combined": [line(second, "ada", "/x") for second in range(5)],
    "common": [line(second, "ada", "/x").partition(' "-"')[0] for second in range(5)],
    "json": [json.dumps({"time": BEGIN + second, "user": "ada", "path": "/x"}) for second in range(5)],
    "csv": ["path,time,user", *(f'"/x",{(BEGIN + second) * 1000},ada' for second in range(5))],
}


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_is_known_by_its_first_line(tmp_path: Path, form: str) -> None:
    found = result_of(tmp_path, "\n".join(FORMATS[form]), descriptor="user={user} + path={path}")

    [side] = found["sides"]
    assert (found["requests"], found["unread"]["lines"], side["refused"]) == (5, 0, 2)
    assert side["most_refused"] == [
        {
            "entries": "user=ada",
            "rule": "shop.user",
            "refused": 2,
            "first": "2026-01-05T12:00:03Z",
            "last": "2026-01-05T12:00:04Z",
        }
    ]


@pytest.mark.parametrize("form", ["combined", "common", "json"])
def test_a_first_line_that_was_cut_is_one_that_cannot_be_read(tmp_path: Path, form: str) -> None:
    """By logrotate, or `tail -c`."""
    first, *rest = FORMATS[form]

    found = result_of(tmp_path, "\n".join([first[30:], *rest]))

    assert (found["requests"], found["unread"]["lines"]) == (4, 1)


def test_json_has_fields_at_paths_and_names_with_dots(tmp_path: Path) -> None:
    records = [
        {"at": {"start": "2026-01-05T13:00:00.5+01:00"}, "headers": {"x-user": 7}},
        {"at.start": "2026-01-05T12:00:01Z", "headers.x-user": "7"},
        {"at.start": "2026-01-05T12:00:01Z", "headers": None},
    ]
    log = "\n".join(map(json.dumps, records))
    found = result_of(tmp_path, log, "--time", "at.start", rules=STRICT, descriptor="user={headers.x-user}")

    assert [each["entries"] for each in found["sides"][0]["most_refused"]] == ["user=7"]
    assert found["sides"][0]["no_rule"] == 1


def test_a_csv_without_a_header_has_columns(tmp_path: Path) -> None:
    found = result_of(tmp_path, f"{BEGIN},ada\n{BEGIN},ada\n", "--columns", "time,user", rules=STRICT)

    assert (found["requests"], found["sides"][0]["refused"]) == (2, 1)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("05/Jan/2026:13:00:00 +0100", BEGIN),
        ("[05/Jan/2026:12:00:00 +0000]", BEGIN),
        ("2026-01-05T12:00:00", BEGIN),
        (BEGIN, BEGIN),
        (BEGIN * 1000, BEGIN),
        (str(BEGIN * 10**6), BEGIN),
        (BEGIN * 10**9, BEGIN),
    ],
)
def test_times_are_read_as_logs_write_them(text: str | int, time: int) -> None:
    assert read_time(text) == time * SECOND


@pytest.mark.parametrize("text", ["yesterday", "-1", "nan", "inf", "1e300", "05/Foo/2026:13:00:00 +0100", "1969-01-01"])
def test_what_is_no_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|month"):
        read_time(text)


def test_files_are_read_one_after_the_other_and_unpacked(tmp_path: Path) -> None:
    packed = tmp_path / "old.log.gz"
    packed.write_bytes(gzip.compress(f"{line(0)}\n{line(0)}\n".encode()))
    (tmp_path / "new.log").write_text(f"{line(1)}\n{line(1)}\n")

    found = result_of(tmp_path, "", "--log", str(packed), "--log", str(tmp_path / "new.log"))

    assert (found["requests"], found["sides"][0]["refused"]) == (4, 1)


def test_a_packed_file_that_ends_early_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    packed = tmp_path / "old.log.gz"
    packed.write_bytes(gzip.compress(f"{line(0)}\n".encode() + os.urandom(100_000))[:5000])

    result = run(tmp_path, "", "--log", str(packed))

    assert result.exit_code in {0, 1}
    assert "the rest cannot be unpacked" in result.output


def test_lines_that_cannot_be_read_are_counted_and_shown(tmp_path: Path) -> None:
    log = [line(0), "", "\x1b[31mwhat", "x" * (MAX_LINE + 1), line(1), *["more"] * 10]

    result = run(tmp_path, "\n".join(log))

    assert result.stdout.startswith("2 requests in 1 s, 2026-01-05 12:00:00 to 2026-01-05 12:00:01 UTC\n12 lines")
    path = tmp_path / "access.log"
    assert f"{path}:3: not a line of the common or combined format  \\x1b[31mwhat\n" in result.stdout
    assert f"{path}:4: longer than 65,536 bytes\n" in result.stdout
    assert f"{path}:8: " in result.stdout
    assert f"{path}:9: " not in result.stdout


@pytest.mark.parametrize("size", [MAX_LINE - 1, MAX_LINE, MAX_LINE + 1, 3 << 20])
def test_long_lines_do_not_harm_those_around_them(tmp_path: Path, size: int) -> None:
    log = tmp_path / "access.log"
    log.write_text(f"{line(0)}\n{'x' * size}\n{line(1)}\n{'y' * size}")
    reader = Reader(["user"])

    assert [values for _, values in reader.records(log, lambda _: None)] == [("ada",), ("ada",)]
    assert reader.unread == 2
    assert [problem.line for problem in reader.problems] == [2, 4]


@pytest.mark.parametrize(
    "text", ['{"a":' * 10_000, "{}", "[1]", '{"time":true}', '{"time":"x"}', "1" * 5000, "nul", f'{{"time":{10**400}}}']
)
def test_json_that_is_none_is_a_line_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    found = result_of(tmp_path, f'{{"time":{BEGIN},"user":"a"}}\n{text}\n')

    assert (found["requests"], found["unread"]["lines"]) == (1, 1)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_counted(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.write_bytes(line(0).encode() + b"\n" + data)
        reader = Reader(["user"])
        read = len(list(reader.records(log, lambda _: None)))

    lines = [each for each in data.decode(errors="replace").split("\n") if each.strip()]
    assert read + reader.unread == 1 + len(lines)


def test_a_time_before_that_of_a_line_above_counts_as_the_latest(tmp_path: Path) -> None:
    log = [line(59), line(61), line(58), line(57), line(62), line(62)]

    found = result_of(tmp_path, "\n".join(log))

    assert found["early"] == {"requests": 2, "seconds": 4.0}
    assert found["sides"][0]["refused"] == 2  # of five after the minute


@pytest.mark.parametrize(("seconds", "advises"), [(60, False), (61, True)])
def test_a_log_that_is_far_out_of_order_should_be_put_in_order(tmp_path: Path, seconds: int, advises: bool) -> None:
    result = run(tmp_path, f"{line(seconds)}\n{line(0)}\n")

    assert "1 request came up to" in result.stdout
    assert ("put the files, or lines, in order of time" in result.stdout) is advises


def test_two_folders_of_rules_answer_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "shop.yaml").write_text(STRICT)

    found = result_of(tmp_path, "\n".join([line(0)] * 5), "--compare", str(tmp_path / "new"))

    assert [side["refused"] for side in found["sides"]] == [2, 4]
    assert found["differences"] == {"refused_by_first_alone": 0, "refused_by_second_alone": 2}


def test_two_algorithms_answer_side_by_side(tmp_path: Path) -> None:
    log = [line(57)] * 3 + [line(63)] * 3

    found = result_of(tmp_path, "\n".join(log), "--algorithm", "fixed_window", "--algorithm", "sliding_log")

    assert [side["name"] for side in found["sides"]] == ["fixed_window", "sliding_log"]
    assert [side["refused"] for side in found["sides"]] == [0, 3]
    assert found["differences"] == {"refused_by_first_alone": 0, "refused_by_second_alone": 3}


def test_limits_of_a_list_have_counters_of_their_own_by_another_algorithm_too(tmp_path: Path) -> None:
    rules = """\
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {unit: minute, requests_per_unit: 4}
      - {unit: minute, requests_per_unit: 4, algorithm: sliding_window}
"""
    found = result_of(tmp_path, "\n".join([line(0)] * 5), "--algorithm", "sliding_log", rules=rules)

    assert found["sides"][0]["refused"] == 1


def test_a_limit_that_an_algorithm_cannot_count_is_counted_as_before(tmp_path: Path) -> None:
    rules = RULES.replace("unit: minute", "calendar: {unit: month}")

    result = run(tmp_path, "\n".join([line(0)] * 5), "--algorithm", "sliding_log", rules=rules)

    assert "1 rule cannot be counted by sliding_log (shop.user: windows of a calendar are fixed)" in result.stderr
    assert "refused             2" in result.stdout


def test_secret_values_are_shown_as_digests(tmp_path: Path) -> None:
    rules = STRICT.replace("- key: user", "- key: user\n    hash_values: true")
    log = "\n".join([line(0, "s3cret"), "s3cret", line(0, "s3cret")])
    (tmp_path / "json").write_text(f'{{"time":{BEGIN}}}\n{{"time":"s3cret"}}\n')

    texts = [run(tmp_path, log, *option, rules=rules).output for option in ((), ("--json",), ("--csv",))]
    texts.append(run(tmp_path, "", "--log", str(tmp_path / "json"), rules=rules).output)

    assert "user=h-" in texts[0]
    assert "user=h-" in texts[1]
    assert "access.log:2" in texts[0]
    assert "json:2" in texts[3]
    assert not any("s3cret" in text for text in texts)


def test_shadow_rules_refuse_nothing_and_say_what_they_would_have(tmp_path: Path) -> None:
    rules = RULES.replace("per_unit: 3}", "per_unit: 3}\n    shadow_mode: true")

    [side] = result_of(tmp_path, "\n".join([line(0)] * 5), rules=rules)["sides"]

    assert side["refused"] == 0
    assert [(each["rule"], each["refused"], each["shadow"]) for each in side["rules"]] == [("shop.user", 0, 2)]


def test_a_long_key_is_shown_with_a_digest_of_its_rest(tmp_path: Path) -> None:
    log = [line(0, "u" * 5000 + end) for end in "aabb"]

    found = result_of(tmp_path, "\n".join(log), rules=STRICT)

    keys = [each["entries"] for each in found["sides"][0]["most_refused"]]
    assert len(set(keys)) == 2
    assert max(map(len, keys)) <= MAX_KEY


def test_the_csv_has_all_that_was_refused(tmp_path: Path) -> None:
    result = run(tmp_path, "\n".join([line(0)] * 5 + [line(300)] * 4), "--csv")

    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["rule"], row["requests"], row["refused"]) for row in rows] == [
        ("", "5", "2"),
        ("shop.user", "", "2"),
        ("", "4", "1"),
        ("shop.user", "", "1"),
    ]
    assert {row["seconds"] for row in rows} == {"5"}


def test_the_picture_has_a_line_for_all_and_for_each_side(tmp_path: Path) -> None:
    svg = tmp_path / "picture.svg"
    (tmp_path / "new.yaml").write_text(STRICT)

    run(tmp_path, "\n".join([line(0)] * 5 + [line(30)]), "--svg", str(svg), "--compare", str(tmp_path / "new.yaml"))

    root = ET.fromstring(svg.read_text())  # noqa: S314 - our own
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 3
    assert "12:00:00" in svg.read_text()


def test_a_log_that_begins_and_ends_within_a_span_has_the_same_rate_there(tmp_path: Path) -> None:
    """A request each five seconds for an hour, by half minutes; the first has 15 seconds, the last ten."""
    svg = tmp_path / "picture.svg"

    run(tmp_path, "\n".join(line(at) for at in range(45, 3610, 5)), "--svg", str(svg))

    root = ET.fromstring(svg.read_text())  # noqa: S314 - our own
    requests = root.findall("{http://www.w3.org/2000/svg}polyline")[0].attrib["points"]
    heights = {float(corner.partition(",")[2]) for corner in requests.split()}
    assert max(heights) - min(heights) < 5, "of 290"


def test_a_picture_goes_along_its_lines_and_names_do_not_cover_each_other() -> None:
    steps = [(0.0, 2.0), (1.0, 2.0), (1.0, 0.0), (2.0, 0.0)]

    svg = draw({"one": steps, "other": [(0.0, 0.0), (2.0, 0.0)]}, "", "", [0, 2], str, linear=True)

    root = ET.fromstring(svg)  # noqa: S314 - our own
    first = root.findall("{http://www.w3.org/2000/svg}polyline")[0].attrib["points"]
    assert first == "70.0,20.0 290.0,20.0 290.0,310.0 510.0,310.0"
    names = [text for text in root.iter("{http://www.w3.org/2000/svg}text") if text.text in {"one", "other"}]
    assert [text.attrib["y"] for text in names] == ["314", "300"]


@pytest.fixture(scope="module")
def tenants() -> str:
    """The requests of two tenants for 25 seconds; b is idle from second 5 to second 16."""
    script = ["awk", "-f", str(ROOT / "config/tests/tenants.awk")]
    return subprocess.run(script, capture_output=True, text=True, check=True).stdout


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["no loans", "**loans**", "loans, `reserve: 50`", "loans, `strict: true`"])
def test_loans_are_as_the_document_says(tmp_path: Path, tenants: str, scheme: str) -> None:
    rules = (ROOT / "docs/pictures/elastic.yaml").read_text()
    match scheme:
        case "no loans":
            rules = rules.replace("ceiling: 1000", "ceiling: 100%")
        case "loans, `reserve: 50`":
            rules = rules.replace("requests_per_unit: 1000\n", "requests_per_unit: 1000\n    reserve: 50\n")
        case "loans, `strict: true`":
            rules = rules.replace("ceiling: 1000", "ceiling: 1000, strict: true")
    document = (ROOT / "bench/RESULTS.md").read_text()
    [said] = [line for line in document.splitlines() if line.startswith(f"| {scheme}")]

    result = run(tmp_path, tenants, "--csv", rules=rules, descriptor="tenant={tenant}")

    allowed: Counter[tuple[str, int]] = Counter()
    for row in csv.DictReader(io.StringIO(result.stdout)):
        if row["rule"]:
            second = int(row["start"][-3:-1])
            allowed[row["rule"][-1], second] = int(row["requests"]) - int(row["refused"])
    busy, idle = range(20, 25), range(6, 16)
    a, b = (sum(allowed[tenant, second] for second in busy) / 5 for tenant in "ab")
    lent = sum(allowed["a", second] for second in idle) / 10
    worst = max(allowed["a", second] + allowed["b", second] for second in range(25))
    found = [f"{a:.0f}, {b:.0f}", f"{a + b:.0f}", f"{lent:.0f}", f"{allowed['b', 16]}", f"{worst}"]
    assert said.split(" | ")[1:] == [*found[:-1], f"{found[-1]} |"]


def test_what_was_lent_is_said_for_each_member_and_the_pool(tmp_path: Path) -> None:
    limit = "unit: year, requests_per_unit: 2, elastic: {pool: p, ceiling: 4}"
    rules = (
        "domain: shop\npools: [{name: p, unit: year, requests_per_unit: 9, burst: 5}]\n"
        f"descriptors: [{{key: user, rate_limit: {{{limit}}}}}, {{key: user, value: eve, rate_limit: {{{limit}}}}}]\n"
    )
    log = "\n".join([line(0)] * 5 + [line(1, "eve")] * 3)

    text = run(tmp_path, log, rules=rules).stdout
    found = result_of(tmp_path, log, rules=rules)["sides"][0]["elastic"]

    assert "  asked  by right  on loan  refused  most      of the pool  by rule\n" in text
    assert "      5         2        2        1  4 in 1 s  p            shop.user\n" in text
    assert "      3         2        0        1  2 in 1 s  p            shop.user_eve\n" in text
    assert "      8         4        2        2  4 in 1 s  p            (all)" in text
    assert found == [
        {"rule": "shop.user", "pool": "p", "by_right": 2, "on_loan": 2, "refused": 1},
        {"rule": "shop.user_eve", "pool": "p", "by_right": 2, "on_loan": 0, "refused": 1},
    ]


@pytest.mark.extended
def test_the_picture_of_loans_is_the_one_that_it_draws(tmp_path: Path, tenants: str) -> None:
    svg = tmp_path / "picture.svg"
    rules = (ROOT / "docs/pictures/elastic.yaml").read_text()

    run(tmp_path, tenants, "--svg", str(svg), rules=rules, descriptor="tenant={tenant}")

    assert svg.read_text() == (ROOT / "docs/pictures/elastic.svg").read_text(), "make pictures"


@pytest.mark.extended
@pytest.mark.parametrize("pair", [("fixed_window", "token_bucket"), ("sliding_window", "sliding_log")])
def test_the_pictures_of_the_documents_are_those_that_it_draws(tmp_path: Path, pair: tuple[str, str]) -> None:
    svg = tmp_path / "picture.svg"
    rules = (ROOT / "docs/pictures/limit.yaml").read_text()
    traffic = ("--pattern", "steady", "--rate", "2", "--for", "4m", "--keys", "1")

    run(tmp_path, "", *traffic, "--algorithm", pair[0], "--algorithm", pair[1], "--svg", str(svg), rules=rules)

    drawn = (ROOT / f"docs/pictures/{pair[0]}.svg").read_text()
    assert svg.read_text() == drawn, "make pictures"


@pytest.mark.extended
def test_the_picture_of_a_queue_is_that_which_it_draws(tmp_path: Path) -> None:
    svg = tmp_path / "picture.svg"
    rules = (ROOT / "docs/pictures/queue.yaml").read_text()
    traffic = ("--pattern", "burst", "--rate", "1.5", "--for", "2m", "--keys", "1")

    run(tmp_path, "", *traffic, "--svg", str(svg), rules=rules)

    assert svg.read_text() == (ROOT / "docs/pictures/queue.svg").read_text(), "make pictures"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_the_same_each_time_and_goes_forward(pattern: str) -> None:
    records = list(generate(pattern, 0.5, DAY, 7, ["user", "path"]))

    assert records == list(generate(pattern, 0.5, DAY, 7, ["user", "path"]))
    assert [at for at, _ in records] == sorted(at for at, _ in records)
    assert len(records) == pytest.approx(count_of(pattern, 0.5, DAY), rel=0.001)
    assert len({user for _, (user, _) in records}) == 7 + (pattern == "attack")


def test_of_an_attack_the_attacker_is_refused_most(tmp_path: Path) -> None:
    options = ("--pattern", "attack", "--for", "3m", "--keys", "100", "--rate", "3")

    found = result_of(tmp_path, "", *options)

    assert found["sides"][0]["most_refused"][0]["entries"] == "user=attacker"


@given(st.lists(st.integers(0, 40), max_size=400), st.integers(1, 10))
def test_heavy_keys_are_found_and_their_counts_as_exact_as_said(keys: list[int], room: int) -> None:
    heaviest: Heaviest[int] = Heaviest(room)
    for now, key in enumerate(keys):
        heaviest.add(key, now)
        assert len(heaviest) <= 2 * room

    exact = Counter(keys)
    found = {each.key: each.times for each in heaviest.top(100)}
    assert heaviest.missed * room <= len(keys)
    assert all(times <= exact[key] <= times + heaviest.missed for key, times in found.items())
    assert all(key in found for key, times in exact.items() if times > heaviest.missed)


@given(st.lists(st.integers(0, 400 * DAY), max_size=500))
def test_the_timeline_is_bounded_and_loses_nothing(times: list[int]) -> None:
    timeline = Timeline()
    for time in sorted(times):
        timeline.at(time).requests += 1

    assert sum(span.requests for span in timeline.spans) == len(times)
    assert len(timeline.spans) <= MAX_SPANS
    starts = [span.start for span in timeline.spans]
    assert starts == sorted({time // timeline.width * timeline.width for time in times})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--pattern", "steady", "--log", "x"), "either --log FILE or --pattern"),
        (("--log", "nowhere"), "nowhere cannot be read: No such file"),
        (("--domain", "shopp"), "there is no domain shopp"),
        (("--descriptor", "user={nobody}"), "no field nobody; there are remote_host"),
        (("--descriptor", "user={user"), "expected '}'"),
        (("--descriptor", "user={user:>9}"), "write a field as {name}"),
        (("--descriptor", "user"), "has no ="),
        (("--descriptor", "user={user} +"), "a descriptor is empty"),
        (("--pattern", "steady", "--rate", "1000000"), "more than 10,000,000"),
        (("--format", "csv"), "the CSV has no column user"),
        (("--log", str(ROOT / "LICENSE")), "(--columns, or --format if this is another one)"),
        (("--json", "--csv"), "either --json or --csv"),
        (("--algorithm", "sliding_log") * 3, "two sides"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    result = run(tmp_path, line(0), *arguments)

    assert result.exit_code == 2
    assert says in result.output


def test_exit_codes_tell_wrong_rules_from_an_empty_log(tmp_path: Path) -> None:
    assert run(tmp_path, line(0)).exit_code == 0
    assert run(tmp_path, "").exit_code == 1
    assert run(tmp_path, line(0), rules="domain: 7: 8").exit_code == 2


def test_rules_that_do_not_exist_are_named_as_what_they_are(tmp_path: Path) -> None:
    result = run(tmp_path, line(0), "--compare", str(tmp_path / "none"))

    assert result.exit_code == 2
    assert result.stderr == f"{tmp_path}/none: cannot be read: no such file or directory\n"


def test_a_terminal_sees_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ratelimit_service", "simulate", "rules.yaml"]
    options = ["--pattern", "steady", "--for", f"{20 * MINUTE // SECOND}s", "--descriptor", "user={user}"]
    try:
        done = subprocess.run(
            [*command, *options],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            check=True,
        )
        seen = os.read(ours, 65_536).decode()
    finally:
        os.close(theirs)
        os.close(ours)

    assert "replaying" in seen
    assert "%" in seen
    assert done.stdout.startswith("12,000 requests in ")


def test_a_queue_moves_what_comes_at_once_to_the_limit_s_rate(tmp_path: Path) -> None:
    """Of six at once, one a second, four have a turn within three seconds."""
    limit = "{algorithm: leaky_bucket, unit: second, requests_per_unit: 1, queue: {max_delay: 3s}}"
    rules = f"domain: shop\ndescriptors: [{{key: user, rate_limit: {limit}}}]\n"
    log = "\n".join([line(0)] * 6 + [line(9)])
    svg = tmp_path / "picture.svg"

    (side,) = result_of(tmp_path, log, "--svg", str(svg), rules=rules)["sides"]
    shown = run(tmp_path, log, rules=rules).output

    assert (side["allowed"], side["refused"], side["delayed"], side["longest_delay_seconds"]) == (5, 2, 3, 3)
    assert re.search(r"  delayed +3 +42.9 ?%  \(of the allowed, by up to 3,000 ms\)", shown)
    allowed = ET.fromstring(svg.read_text()).findall("{http://www.w3.org/2000/svg}polyline")[1].attrib["points"]  # noqa: S314 - our own
    heights = [point.partition(",")[2] for point in allowed.split()]
    assert heights[:8] == heights[:1] * 8  # one in each of the first four seconds


def test_a_queue_counted_by_another_algorithm_delays_nothing(tmp_path: Path) -> None:
    limit = "{algorithm: leaky_bucket, unit: second, requests_per_unit: 1, queue: {max_delay: 3s}}"
    rules = f"domain: shop\ndescriptors: [{{key: user, rate_limit: {limit}}}]\n"

    (side,) = result_of(tmp_path, "\n".join([line(0)] * 6), "--algorithm", "token_bucket", rules=rules)["sides"]

    assert (side["allowed"], side["refused"], side["delayed"]) == (1, 5, 0)


AT_ONCE = """\
domain: shop
descriptors:
  - key: path
    descriptors:
      - key: request_id
        rate_limit: {concurrency: 2, hold: 60s, place: request_id}
"""


def asked(seconds: float, request: str, took: float) -> str:
    return json.dumps({"time": BEGIN + seconds, "path": "/export", "id": request, "took": took})


@pytest.mark.parametrize(("option", "unit"), [("took", 1), ("took:ms", 1000)])
def test_a_replay_gives_places_back_when_requests_have_ended(tmp_path: Path, option: str, unit: int) -> None:
    """The third is refused, while two are under way; the fourth comes as the first ends; the last after `hold`."""
    steps = [(0, "a", 5), (1, "b", 500), (2, "c", 1), (5, "d", 500), (6, "e", 1), (62, "f", 1)]
    log = "\n".join(asked(at, request, took * unit) for at, request, took in steps)
    descriptor = "path={path} request_id={id}"

    result = result_of(tmp_path, log, "--took", option, rules=AT_ONCE, descriptor=descriptor)

    assert result["sides"][0]["refused"] == 2
    assert [each["entries"] for each in result["sides"][0]["most_refused"]] == [
        "path=/export request_id=c",
        "path=/export request_id=e",
    ]


def test_without_the_time_that_requests_took_a_replay_says_that_places_cannot_be_full(tmp_path: Path) -> None:
    log = "\n".join(asked(0, f"r{number}", 9) for number in range(9))
    descriptor = "path={path} request_id={id}"

    told = run(tmp_path, log, "--json", rules=AT_ONCE, descriptor=descriptor)
    odd = run(tmp_path, log.replace(": 9}", ': "soon"}'), "--took", "took", rules=AT_ONCE, descriptor=descriptor)

    assert "limits with concurrency cannot be full here: --took FIELD says how long each request took" in told.stderr
    assert json.loads(told.stdout)["sides"][0]["refused"] == 0
    assert (odd.exit_code, odd.stderr) == (0, "")


BUDGET = """\
domain: shop
settle: done
descriptors:
  - key: user
    descriptors:
      - key: id
        rate_limit: {unit: minute, requests_per_unit: 1000, reserve: {id: id, hold: 5m, estimate: 400}}
"""


def streamed(seconds: float, request: str, took: float, size: object) -> str:
    return json.dumps({"time": BEGIN + seconds, "user": "ada", "id": request, "took": took, "bytes": size})


def test_a_replay_reserves_when_a_request_begins_and_settles_what_it_has_cost_when_it_ends(tmp_path: Path) -> None:
    steps = [
        *((0, "a", 5, 100), (1, "b", 30, 700)),
        (2, "c", 1, 1),  # refused: 200 are left
        (5, "d", 1, 300),  # a has ended, 500 are left
        (40, "e", 1, None),  # refused: b has overrun
        (60, "f", 1, None),  # of another window; it is not settled
    ]
    log = "\n".join(streamed(*step) for step in steps)
    told = "--took", "took", "--settle", "bytes"

    result = result_of(tmp_path, log, *told, rules=BUDGET, descriptor="user={user} id={id}")["sides"][0]
    shown = run(tmp_path, log, *told, rules=BUDGET, descriptor="user={user} id={id}").stdout

    assert [each["entries"] for each in result["most_refused"]] == ["user=ada id=c", "user=ada id=e"]
    assert result["settled"] == [
        {
            "rule": "shop.user.id",
            "requests": 3,
            "reserved": 1200,
            "cost": 1100,
            "overran": 1,
            "unsettled": 1,
            "most_used": 1.1,
        }
    ]
    assert "3 1,200 1,100 33.3 % 1 110.0 % in 1 min shop.user.id" in " ".join(shown.split())


def test_of_a_list_that_is_charged_first_a_replay_settles_the_limit_that_was_charged(tmp_path: Path) -> None:
    limits = ", ".join(f"{{unit: hour, requests_per_unit: 1000, name: {name}}}" for name in ("plan", "credits"))
    defaults = "defaults: {reserve: {id: id, hold: 5m, estimate: 400}}\n"
    descriptor = f"descriptors: [{{key: id, charge: first, rate_limits: [{limits}]}}]\n"
    head = f"domain: shop\nsettle: done\n{defaults}"
    log = "\n".join(streamed(at, each, 5, size) for at, each, size in ((0, "a", 100), (1, "b", 300), (2, "c", 500)))
    told = "--took", "took", "--settle", "bytes"

    result = result_of(tmp_path, log, *told, rules=head + descriptor, descriptor="id={id}")["sides"][0]
    looked = result_of(tmp_path, log, *told, rules=f"domain: shop\nsettle: done\n{descriptor}", descriptor="id={id}")

    assert [(each["rule"], each["requests"], each["reserved"], each["cost"]) for each in result["settled"]] == [
        ("shop.id.plan", 2, 800, 400),
        ("shop.id.credits", 1, 400, 500),
    ]
    assert [(each["rule"], each["cost"]) for each in looked["sides"][0]["settled"]] == [("shop.id.plan", 900)]


def test_a_limit_that_reserves_is_counted_by_its_own_algorithm(tmp_path: Path) -> None:
    log = streamed(0, "a", 0, 100) + "\n" + streamed(1, "b", 0, 100)
    other = "--settle", "bytes", "--algorithm", "token_bucket", "--json"

    told = run(tmp_path, log, *other, rules=BUDGET, descriptor="user={user} id={id}")

    assert "cannot be counted by token_bucket (shop.user.id: reserve: what goes back depends on" in told.stderr
    assert json.loads(told.stdout)["sides"][0]["settled"][0]["most_used"] == 0.2


BYTES = """\
domain: shop
settle: done
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 1000}}
  - {key: login, rate_limit: {unit: minute, requests_per_unit: 2}}
"""
LOOKS = [
    *((0, "a", 5, 700), (1, "b", 30, 700)),
    (6, "c", 1, 1),  # 300 are left
    (40, "d", 1, 1),  # refused: b has ended
    (60, "e", 1, None),  # of another window; it is not settled
]


@pytest.mark.parametrize(
    ("algorithm", "refused", "settled"),
    [
        ("fixed_window", 1, {"requests": 3, "cost": 1401, "unsettled": 1, "most_used": 1.401}),
        ("token_bucket", 0, {"requests": 4, "cost": 1402, "unsettled": 1, "most_used": 1.402}),
        ("sub_windows", 2, {"requests": 3, "cost": 1401, "unsettled": 0, "most_used": 1.401}),
    ],
)
def test_where_nothing_reserves_a_replay_looks_and_charges_what_requests_have_cost_when_they_end(
    tmp_path: Path, algorithm: str, refused: int, settled: dict[str, object]
) -> None:
    """Of the bucket 33 are left when b has ended; the parts of the last minute hold 1401 until e."""
    log = "\n".join(streamed(*step) for step in LOOKS)
    told = "--took", "took", "--settle", "bytes", "--algorithm", algorithm

    side = result_of(tmp_path, log, *told, rules=BYTES, descriptor="user={user}")["sides"][0]

    assert side["refused"] == refused
    assert side["settled"] == [{"rule": "shop.user", "reserved": 0, "overran": 0, **settled}]


def test_a_descriptor_with_the_entry_of_settle_looks_and_others_are_charged_as_requests(tmp_path: Path) -> None:
    log = "\n".join(streamed(*step) for step in LOOKS)
    told = "--took", "took", "--settle", "bytes"

    result = result_of(tmp_path, log, *told, rules=BYTES, descriptor="login={user} + user={user} done=1")["sides"][0]

    assert [(each["entries"], each["refused"]) for each in result["most_refused"]] == [
        ("login=ada", 2),
        ("user=ada", 1),
    ]
    assert [(each["rule"], each["cost"]) for each in result["settled"]] == [("shop.user", 1400)]


def test_where_some_limit_reserves_those_that_do_not_are_charged_as_requests(tmp_path: Path) -> None:
    log = "\n".join(streamed(second, "a", 0, 700) for second in range(3))
    rules = f"{BUDGET}  - {{key: login, rate_limit: {{unit: minute, requests_per_unit: 2}}}}\n"

    result = result_of(tmp_path, log, "--settle", "bytes", rules=rules, descriptor="login={user}")["sides"][0]

    assert (result["refused"], result["settled"]) == (1, [])


@pytest.mark.parametrize(
    ("rules", "settle", "problem"),
    [
        (BYTES, [], "each request is charged as one that costs 1 here: --settle FIELD says what requests cost"),
        (BYTES.replace("settle: done", ""), ["--settle", "bytes"], "--settle has no effect: the rules have no settle"),
    ],
)
def test_a_replay_says_when_it_does_not_charge_what_requests_have_cost(
    tmp_path: Path, rules: str, settle: list[str], problem: str
) -> None:
    told = run(tmp_path, streamed(0, "a", 5, 100), *settle, rules=rules, descriptor="user={user}")

    assert told.stderr == f"ratelimit: {problem}\n"


def test_without_a_field_of_costs_a_replay_says_that_nothing_is_settled(tmp_path: Path) -> None:
    told = run(tmp_path, streamed(0, "a", 5, 100), rules=BUDGET, descriptor="user={user} id={id}")

    assert told.stderr == "ratelimit: what limits reserve stays charged here: --settle FIELD says what requests cost\n"
