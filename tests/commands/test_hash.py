"""`ratelimit hash` prints the digests of values that it reads from standard input."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from select import select

from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.processes import ROOT
from tests.rules.test_secret import DIGEST_OF_SECRET, HASH, KEY, SECRET


def run(given: str, *arguments: str, key: str | None = KEY) -> Result:
    return CliRunner().invoke(main, ["hash", *arguments], given, env={"HASH_KEY": key})


def test_each_line_is_a_value() -> None:
    result = run(f"{SECRET}\n\ngrün and blue ")

    assert result.stdout.splitlines() == [DIGEST_OF_SECRET, HASH(""), HASH("grün and blue ")]
    assert result.stderr == ""


def test_nothing_in_is_nothing_out() -> None:
    assert run("").output == ""


def test_without_a_key_it_says_which_setting_is_missing() -> None:
    result = run(SECRET, key=None)

    assert result.exit_code == 2
    assert result.output == "ratelimit: HASH_KEY: is not set: set it, or HASH_KEY_FILE, as for the service\n"


def test_what_is_not_utf_8_is_no_value() -> None:
    result = CliRunner().invoke(main, ["hash"], b"good\r\n\xff\n", env={"HASH_KEY": KEY})

    assert result.exit_code == 1
    assert result.stdout == f"{HASH('good')}\n"
    assert result.stderr == "Error: line 2 is not UTF-8, and values of requests always are\n"


def test_a_value_is_no_argument() -> None:
    assert run("", SECRET).exit_code == 2


def test_the_key_may_stand_in_a_file_of_settings(tmp_path: Path) -> None:
    (tmp_path / "env").write_text(f"HASH_KEY={KEY}\n")

    assert run(SECRET, "--env-file", str(tmp_path / "env"), key=None).output == f"{DIGEST_OF_SECRET}\n"


def test_rules_and_cases_may_have_a_digest_in_place_of_a_value(tmp_path: Path) -> None:
    rules, cases = tmp_path / "shop.yaml", tmp_path / "cases"
    rules.write_text(
        f"""domain: shop
descriptors:
  - {{key: api_key, hash_values: true, rate_limit: {{unit: day, requests_per_unit: 1}}}}
  - {{key: api_key, value: {DIGEST_OF_SECRET}, hash_values: true, rate_limit: {{unit: day, requests_per_unit: 2}}}}
"""
    )
    cases.write_text(
        f"""domain: shop
cases:
  - {{request: api_key={SECRET}, limit: 2 per day}}
  - {{request: api_key={DIGEST_OF_SECRET}, limit: 2 per day}}
  - {{request: api_key=other, limit: 1 per day}}
"""
    )
    arguments = ["rules", "test", str(cases), "--rules", str(rules)]

    result = CliRunner().invoke(main, arguments, env={"HASH_KEY": KEY})

    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, f"3 cases passed, 0 failed (2 rules of {rules})")


def test_in_a_terminal_it_asks_and_does_not_show_what_is_typed() -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "ratelimit_service", "hash"],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HASH_KEY": KEY},
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # it must not find the terminal of the tests
        ) as process:
            assert process.stderr is not None
            asked = b""
            while not asked.endswith(b": ") and (byte := process.stderr.read(1)):  # what is typed before is dropped
                asked += byte
            os.write(ours, f"{SECRET}\n".encode())
            printed, said = process.communicate(timeout=60)
        echoed = os.read(ours, 1000) if select([ours], [], [], 0)[0] else b""
    finally:
        os.close(ours)
        os.close(theirs)

    assert (process.returncode, printed.decode()) == (0, f"{DIGEST_OF_SECRET}\n")
    assert SECRET.encode() not in asked + said + echoed
