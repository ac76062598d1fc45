r"""Whatever a command prints of others is escaped, on a terminal with colours too, and in JSON.

The text is a colour and, as one character, the CSI of "clear the screen", which click takes for text.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, start_service
from tests.terminal import start_on_terminal

HOSTILE = "\x1b[31m\x9b2J"
RULES = r"""
domain: shop
descriptors:
  - key: user
    rate_limit: {name: "\e[31m\x9b2J", unit: day, requests_per_unit: 9}
"""


def on_terminal(folder: Path, *command: str) -> str:
    """All that the command writes there."""
    words = [sys.executable, "-m", "ratelimit_service", *command]
    with start_on_terminal(words, folder, {"PYTHONPATH": str(ROOT)}, columns=200) as terminal:
        terminal.wait()
        return terminal.written


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    (tmp_path / "shop.yaml").write_text(RULES)
    return tmp_path


def test_values_and_names_of_limits_are_explained_without_their_controls(rules: Path) -> None:
    written = on_terminal(rules, "explain", "--rules", "shop.yaml", "shop", f"user={HOSTILE}")

    assert r"1. user=\x1b[31m\x9b2J, compared as" in written
    assert r"name     \x1b[31m\x9b2J" in written
    assert not {"\x1b", "\x9b"} & {*written}


def test_json_has_controls_as_escapes_of_its_own(rules: Path) -> None:
    written = on_terminal(rules, "explain", "--rules", "shop.yaml", "--json", "shop", f"user={HOSTILE}")

    assert json.loads(written)["descriptors"][0]["entries"] == [{"key": "user", "value": HOSTILE}]
    assert not {"\x1b", "\x9b"} & {*written}


def test_what_a_service_answers_and_arguments_are_printed_without_their_controls(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES) as service:
        written = on_terminal(tmp_path, "call", f"127.0.0.1:{service.grpc_port}", "shop", f"user={HOSTILE}")

    assert written.startswith("\x1b[32mOK\x1b[0m\r\n")
    assert r"  user=\x1b[31m\x9b2J: OK, limit 9 per day (\x1b[31m\x9b2J), 8 left" in written
    assert not {"\x1b", "\x9b"} & {*written[len("\x1b[32mOK\x1b[0m") :]}


@pytest.mark.parametrize("verb", ["check", "diff"])
def test_a_wrong_regex_is_quoted_and_a_file_named_without_controls(tmp_path: Path, verb: str) -> None:
    (tmp_path / f"{HOSTILE}.yaml").write_text('domain: shop\ndescriptors: [{key: user, regex: "(\\x9b2J"}]\n')

    written = on_terminal(tmp_path, verb, *[f"{HOSTILE}.yaml"] * (2 if verb == "diff" else 1))

    assert r"\x1b[31m\x9b2J.yaml:2:34: regex " in written
    assert r"missing ): (\x9b2J" in written
    assert not {"\x1b", "\x9b"} & {*written.removeprefix("\x1b[31m").replace("\x1b[0m\r\n", "")}


def test_a_usage_error_quotes_arguments_without_controls(tmp_path: Path) -> None:
    written = on_terminal(tmp_path, "check", "--env-file", HOSTILE)

    assert r"\x1b[31m\x9b2J" in written
    assert not {"\x1b", "\x9b"} & {*written}
