"""`ratelimit top` shows rates of rules: computed from two samples, of real services, on a real terminal."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from ratelimit_service.commands.top_table import (
    HitCounts,
    Name,
    Sample,
    TopKeys,
    View,
    as_json,
    rates_between,
    read_sample,
    render,
    summed,
)
from ratelimit_service.errors import StoreError
from ratelimit_service.telemetry.reservations import NO_RESERVATIONS, Reservations
from tests.ports import free_port
from tests.processes import ROOT, Service, ask, start_service
from tests.terminal import Terminal, start_on_terminal

RULES = """\
domain: shop
descriptors:
  - key: busy
    rate_limit: {unit: year, requests_per_unit: 1000000}
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: quiet
    rate_limit: {unit: year, requests_per_unit: 7}
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    """Two, which are asked all the time."""
    folder = tmp_path_factory.mktemp("services")
    with (
        start_service(folder / "a", RULES) as one,
        start_service(folder / "b", RULES) as two,
        asked(one),
        asked(two),
    ):
        yield one, two


@contextmanager
def asked(service: Service) -> Iterator[None]:
    over = Event()

    def ask_on() -> None:
        while not over.wait(0.02):
            for key, hits in (("busy", 5), ("closed", 1)):
                body = {
                    "domain": "shop",
                    "descriptors": [{"entries": [{"key": key, "value": "x"}]}],
                    "hitsAddend": hits,
                }
                ask(service.http_port, "/json", method="POST", body=json.dumps(body))

    thread = Thread(target=ask_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def top(*words: str) -> Result:
    return CliRunner().invoke(main, ["top", "--interval", "0.5", *words])


def url(service: Service) -> str:
    return f"localhost:{service.debug_port}"


def said(
    now: float,
    started: float,
    hits: int,
    over: int,
    shadow: int = 0,
    refused: int = 0,
    *,
    gauges: Sequence[int] = (),
    by_policy: Sequence[int] = (0, 0, 0),
    reservations: Reservations = NO_RESERVATIONS,
    hits_error: int = 0,
) -> Sample:
    described = {"domain": "shop", "path": ["user", "x"], "limit": "5 per day", "estimate": 4000}
    key = {"domain": "shop", "rule": ["user"], "entries": [["user", "x\x1b[2J"]], "hits": refused, "refused": refused}
    counted = {
        "now": now,
        "started": started,
        "calls": {"total": hits},
        "columns": [
            *("total", "shadow", "over", "policy_allowed", "policy_refused", "failed"),
            *("held", "waiting", "places_taken")[: len(gauges)],
            *Reservations._fields,
        ],
        "counts": [[hits, shadow, over, *by_policy, *gauges, *reservations] if hits else 0],
        "hot": {
            "seconds": 300,
            "error": refused // 10 + hits_error,
            "refused_error": refused // 10,
            "skipped": 0,
            "most_refused": [key] if refused else [],
        },
    }
    return read_sample(counted, {"rules": [described]})


NAME = Name("shop", "user › x")


def test_rates_are_differences_by_seconds_and_a_restart_begins_at_0() -> None:
    first, second = said(50.0, 1, 100, 10, 4), said(52.0, 1, 160, 40, 14, 30)
    restarted = said(54.0, 2, 30, 20)

    assert rates_between(first, second).rules == {NAME: HitCounts(30.0, 10.0)}
    assert rates_between(first, second).calls == 30.0
    assert rates_between(second, restarted).rules == {NAME: HitCounts(15.0, 10.0)}
    both = summed([rates_between(first, second)] * 2)
    assert both.rules == {NAME: HitCounts(60.0, 20.0)}
    assert both.hot == TopKeys(300, 6, 6, False, {Name("shop", "user=x\x1b[2J"): HitCounts(60, 60)})


def test_what_the_policy_answers_while_redis_is_lost_is_busy_and_refused() -> None:
    rates = rates_between(said(50.0, 1, 100, 10), said(52.0, 1, 100, 10, by_policy=(20, 40, 6)))

    assert rates.rules == {NAME: HitCounts(33.0, 20.0)}
    assert "1 of 1 rule busy" in render(View({"http://a": rates}, {}, ["a"]), 100, 50)[0]


@pytest.mark.parametrize(
    ("refused", "hits_error", "says"),
    [
        (9, 0, "exact"),
        (9, 41, "refused exact, hits at most 41 too many"),
        (60, 35, "refused at most 6 too many, hits at most 41 too many"),
    ],
)
def test_the_list_of_who_is_refused_is_exact_when_both_of_its_numbers_are(
    refused: int, hits_error: int, says: str
) -> None:
    rates = rates_between(said(0.0, 1, 1, 0), said(1.0, 1, 1, 0, refused=refused, hits_error=hits_error))

    table = render(View({"http://a": rates}, {}, ["a"]), 120, 50, keys=5)

    assert table[-2].endswith(f"descriptor, in the last 5 min, {says}")


def test_the_limit_that_a_service_names_commands_no_terminal() -> None:
    first, second = (said(at, 1, 0, 0)._replace(limits={NAME: "5 per \x1b[2J\x9b2J"}) for at in (50.0, 52.0))

    table = render(View({"http://a": rates_between(first, second)}, {}, ["http://a"]), 100, 50)

    assert r"5 per \x1b[2J\x9b2J" in table[2]


def test_what_is_held_waits_or_is_taken_is_shown_of_all_instances_where_there_is_room() -> None:
    with_gauges = rates_between(said(50.0, 1, 1, 0), said(52.0, 1, 3, 0, gauges=(61, 2, 7)))
    without = rates_between(said(50.0, 1, 1, 0), said(52.0, 1, 3, 0))
    view = View({"http://a": with_gauges, "http://b": with_gauges, "http://c": without}, {}, ["a", "b", "c"])
    (rule,) = as_json(view, 10)["rules"]

    assert rule["gauges"] | {"held": 122, "waiting": 4, "places_taken": 7} == rule["gauges"]
    assert "122 held, 4 wai…  5 per day" in render(view, 100, 50)[2]
    assert "held" not in render(view, 99, 50)[2]
    assert "now" not in render(View({"http://c": without}, {}, ["c"]), 100, 50)[1]


def test_what_is_reserved_is_shown_of_all_instances_below_the_rules_where_there_is_room() -> None:
    found = Reservations(
        reservations_open_units=6000,
        reservations_due_units=9000,
        reservations_unsettled_units=1000,
        settled_lately=50,
        overran_lately=16,
        settled_p50=2000,
        settled_p95=8500,
    )
    other = found._replace(reservations_open_units=-2000, settled_p95=8400)
    rates = [rates_between(said(0, 1, 1, 0), said(1, 1, 3, 0, reservations=each)) for each in (found, other)]
    view = View({"http://a": rates[0], "http://b": rates[1]}, {}, ["a", "b"])
    (rule,) = as_json(view, 10)["rules"]

    assert (rule["reservations"]["reservations_open_units"], rule["reservations"]["settled_p95"]) == (4000, 8500)
    assert render(view, 100, 20)[-2:] == [
        "  reserved unsettled   overran       p50       p95  estimate  rule",
        "     4,000      11 %      32 %     2,000     8,500     4,000  shop › user › x",
    ]
    assert "reserved" not in "".join(render(view, 100, 19))


def test_another_version_is_an_error() -> None:
    with pytest.raises(StoreError, match="unsupported /status/now"):
        read_sample({"columns": []}, {"rules": [{}]})


@pytest.mark.parametrize("columns", [1, 10, 30, 71, 72, 200])
@pytest.mark.parametrize("lines", [1, 2, 3, 50])
def test_the_table_fits_every_terminal(columns: int, lines: int) -> None:
    rates = rates_between(said(0.0, 1, 0, 0), said(1.0, 1, 10**9, 10**9, refused=10**9))
    view = View({"http://a": rates}, {"http://b:1": "nothing listens there\x1b[2J"}, ["http://a", "http://b:1"])

    table = render(view, columns, lines, keys=lines // 3)

    assert len(table) <= lines
    assert max(map(len, table)) <= columns
    assert "\x1b" not in "".join(table)


def test_once_sums_instances_and_sorts(services: tuple[Service, Service]) -> None:
    both = json.loads(top(url(services[0]), "--at", url(services[1]), "--json").stdout)
    by_hits = top(url(services[0]), "--once", "--sort", "hits", "--rows", "1")

    assert both["instances"] == 2
    assert [rule["rule"] for rule in both["rules"]] == ["closed", "busy", "quiet"]
    closed, busy, quiet = both["rules"]
    assert closed["refused_per_second"] == closed["hits_per_second"] > 0
    assert busy["hits_per_second"] > busy["refused_per_second"] == 0
    assert quiet["hits_per_second"] == 0
    assert both["calls_per_second"] > 0
    (key,) = both["refused"]["descriptors"]
    assert (key["domain"], key["entries"]) == ("shop", "closed=x")
    assert key["refused"] == key["hits"] > 0
    assert (both["refused"]["error"], both["refused"]["estimated"]) == (0, False)
    header, columns, row, keys, refused = by_hits.stdout.splitlines()
    assert header.startswith("1 of 1 instance, ")
    assert header.endswith("2 of 3 rules busy, by hits")
    assert columns.split() == ["refused/s", "hits/s", "rule", "limit"]
    assert row.endswith("1,000,000 per year")
    assert keys.split()[:3] == ["refused", "hits", "descriptor,"]
    assert keys.endswith("exact")
    assert refused.endswith("  shop closed=x")


def test_an_instance_that_cannot_be_reached_is_told_beside_the_others(services: tuple[Service, Service]) -> None:
    port = free_port()

    result = top(url(services[0]), f"localhost:{port}", "--once")

    assert result.exit_code == 3
    assert "1 of 2 instances, " in result.stdout
    assert f"http://localhost:{port}: nothing listens there\n" in result.stdout
    assert "shop › closed" in result.stdout


def test_without_a_terminal_it_says_what_to_add() -> None:
    result = top("localhost:1")

    assert result.exit_code == 2
    assert "output is not a terminal: add --once or --json" in result.stderr


@contextmanager
def live(folder: Path, service: Service, **environ: str) -> Iterator[Terminal]:
    command = [sys.executable, "-m", "ratelimit_service", "top", url(service), "--interval", "0.2"]
    with start_on_terminal(command, folder, {"PYTHONPATH": str(ROOT), **environ}) as terminal:
        terminal.wait_until(lambda: "shop › closed" in terminal.text, "the table is there")
        terminal.wait_until(lambda: "shop closed=x" in terminal.text, "it says who is refused")
        yield terminal


def whole_frame(terminal: Terminal) -> list[str]:
    """The lines of the frame before the last one, which may have been read in part."""
    frame = terminal.written.split("\x1b[H")[-2]
    return frame.replace("\x1b[K", "").replace("\x1b[J", "").split("\r\n")


def rules_in(terminal: Terminal) -> list[str]:
    """The rules in the last whole frame, in their order."""
    return [line.partition("shop › ")[2].split()[0] for line in whole_frame(terminal) if "shop › " in line]


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_keys_sort_and_end_it_and_the_terminal_is_as_before(
    services: tuple[Service, Service], tmp_path: Path, key: str
) -> None:
    with live(tmp_path, services[0]) as terminal:
        terminal.wait_until(lambda: rules_in(terminal) == ["closed", "busy", "quiet"], "it is sorted by refusals")
        terminal.press("h")
        terminal.wait_until(lambda: rules_in(terminal) == ["busy", "closed", "quiet"], "it is sorted by hits")
        terminal.press("x")
        silent = terminal.echoes()
        terminal.press(key)
        code = terminal.wait()

        assert code == 0
        assert not silent
        assert terminal.echoes()
        assert terminal.written.startswith("\x1b[?1049h\x1b[?25l\x1b[?7l")
        assert terminal.written.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")
        assert "\x1b[2J" not in terminal.written  # to clear the screen would flicker


def test_a_narrow_terminal_and_no_color_are_respected(services: tuple[Service, Service], tmp_path: Path) -> None:
    with live(tmp_path, services[0], NO_COLOR="1") as terminal:
        terminal.resize(34, 5)
        terminal.wait_until(lambda: rules_in(terminal) == ["clos…", "busy"], "there are lines for two rules")
        frame = whole_frame(terminal)

        assert len(frame) <= 5
        assert max(map(len, frame)) <= 34
        assert "\x1b[31m" not in terminal.written


def test_refusals_are_red_on_a_terminal(services: tuple[Service, Service], tmp_path: Path) -> None:
    with live(tmp_path, services[0]) as terminal:
        terminal.wait_until(lambda: "\x1b[31m" in terminal.written, "something is red")


def test_the_token_is_sent(tmp_path: Path) -> None:
    token = "0123456789abcdef0123456789abcdef"
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    with start_service(
        tmp_path / "service", RULES, {"ADMIN_TOKEN": token, "ADMIN_READ_NEEDS_TOKEN": "true"}
    ) as service:
        refused = top(url(service), "--once")
        shown = top(url(service), "--once", "--token-file", str(file))

    assert (refused.exit_code, shown.exit_code) == (3, 0)
    assert token not in refused.output + shown.output
    assert "shop › closed" in shown.stdout
