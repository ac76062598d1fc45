"""The attacks run, their table has a row for each, and a server that fails its callers is found out."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, Service, start_service

pytestmark = pytest.mark.extended

RULES = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}]\n"
CALLED = r'total_hits\{[^}]*"user"\} [1-9]'
TABLE = """\
before
<!-- attacks:begin -->
| attack | what it does | another |
| --- | --- | --- |
| `ping-flood` | of old | held, 1.0/2.0 > 1.0/3.0 |
| `rapid-reset` | of old | **weak** |
<!-- attacks:end -->
after
"""


def attack(*options: str) -> tuple[int, dict[str, list[str]], str]:
    """The exit code, the rows of the table by attack, and all that is printed."""
    command = [sys.executable, str(ROOT / "bench" / "attack"), "--seconds=1", "--runs=1", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    lines = [line.strip("| ").split(" | ") for line in ended.stdout.splitlines() if line.startswith("| ")]
    return ended.returncode, {cells[0]: cells[1:] for cells in lines[2:]}, ended.stdout + ended.stderr


def at(service: Service) -> list[str]:
    return [f"--at=127.0.0.1:{service.grpc_port}", f"--http=127.0.0.1:{service.http_port}", f"--pid={service.pid}"]


def test_each_attack_on_a_service_of_its_own_has_a_row_and_a_verdict(tmp_path: Path) -> None:
    document = tmp_path / "RESULTS.md"
    document.write_text(TABLE)

    code, rows, printed = attack("--only=rapid-reset,gzip-value,other-sites", f"--document={document}")

    assert list(rows) == ["rapid-reset", "gzip-value", "other-sites"], printed
    verdicts = [cells[0].strip("*") for cells in rows.values()]
    assert set(verdicts) <= {"held", "weak", "broken"}
    assert code == ("broken" in verdicts)
    for cells in rows.values():
        if cells[0] == "**broken**" and not cells[1]:
            continue  # a busy machine's healthy client may have had no answer before the attack
        lost, of = map(int, cells[1].split(" of "))
        assert lost <= of
        assert of > 0
    columns = [line.strip("| ").split(" | ") for line in document.read_text().splitlines()[2:-2]]
    assert columns[0] == ["attack", "what it does", "another", "ours"]
    assert [(cells[0], cells[2]) for cells in columns[2:4]] == [
        *(("`gzip-value`", "–"), ("`rapid-reset`", "**weak**")),
    ]
    assert ["`ping-flood`", "CVE-2019-9512: PINGs, each to be answered", "held, 1.0/2.0 > 1.0/3.0", "–"] in columns


def test_a_service_that_stops_during_an_attack_is_broken(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        command = [sys.executable, str(ROOT / "bench" / "attack"), "--only=control", *at(service)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacking:
            service.wait_until(lambda: re.search(CALLED, service.metrics()) is not None, "is called")
            service.send(signal.SIGSTOP)
            printed, _ = attacking.communicate(timeout=600)

    assert attacking.returncode == 1
    assert "| control | **broken** | " in printed
    assert "healthy calls lost: no answer in 5 s" in printed or "no answer to a healthy client" in printed


def test_a_server_that_answers_nothing_is_broken(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        service.send(signal.SIGSTOP)

        code, rows, printed = attack("--only=control", *at(service))

    assert code == 1
    assert rows["control"][0] == "**broken**", printed
    assert rows["control"][-1] == "no answer to a healthy client, before the attack"


def test_an_attack_that_a_server_has_no_port_for_is_not_tried(tmp_path: Path) -> None:
    with start_service(tmp_path, RULES) as service:
        code, rows, printed = attack("--only=http-metrics,tls-hello", f"--at=127.0.0.1:{service.grpc_port}")

    assert code == 0
    assert [(cells[0], cells[-1]) for cells in rows.values()] == [
        ("not tried", "it needs an HTTP port"),
        ("not tried", "it needs TLS"),
    ], printed


def test_every_attack_says_what_it_does_and_stands_in_the_document() -> None:
    document = (ROOT / "bench" / "attack" / "RESULTS.md").read_text("utf-8")

    code, _, printed = attack("--list")

    assert code == 0
    assert len(printed.splitlines()) >= 62
    for line in printed.splitlines():
        name, does = line.split(maxsplit=1)
        assert f"| `{name}` | {does.partition(' (needs ')[0]} |" in document


def test_an_unknown_attack_and_another_machine_are_refused() -> None:
    unknown, _, message = attack("--only=bribery")
    foreign, _, refusal = attack("--at=192.0.2.1:8081")

    assert (unknown, foreign) == (2, 2)
    assert "no attack is called bribery" in message
    assert "attack only what is yours" in refusal
