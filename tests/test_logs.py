"""Lines of JSON: what is in them, and what cannot be."""

import json
import logging
import sys
from collections.abc import Callable
from subprocess import run
from typing import Any

import pytest

from ratelimit_service.system.clock import MINUTE
from ratelimit_service.telemetry.logs import MAX_LINE, JsonLines, RareTracebacks, about
from tests.clocks import Clock


def line_of(message: str, *, error: BaseException | None = None, worker: int = 0, **extra: Any) -> str:
    record = logging.LogRecord("ratelimit_service.x", logging.ERROR, "x.py", 1, message, (), None)
    record.created = 1795352400.123
    record.exc_info = None if error is None else (type(error), error, error.__traceback__)
    vars(record).update(extra)
    return JsonLines(worker).format(record)


def test_a_line_has_envoyproxys_names_and_those_of_its_event() -> None:
    line = line_of("it went", worker=2, **about("gone", path="config", files=3, until=None, problems=["a", "b"]))

    assert json.loads(line) == {
        "@timestamp": "2026-11-22T13:00:00.123Z",
        "level": "error",
        "@message": "it went",
        "logger": "ratelimit_service.x",
        "worker": 2,
        "event": "gone",
        "path": "config",
        "files": 3,
        "until": None,
        "problems": ["a", "b"],
    }


def test_an_exception_is_a_field_and_not_in_the_message() -> None:
    line = json.loads(line_of("it failed", error=ValueError("why")))

    assert line["@message"] == "it failed"
    assert line["exception"] == "ValueError: why"


@pytest.mark.parametrize("character", [*"\n\r\0\x1b\x7f\x85\x9b\u2028\u2029\u202e\u200f\u2066", "\udc80"])
def test_a_character_that_could_begin_a_line_or_command_a_terminal_is_escaped(character: str) -> None:
    line = line_of(f"a{character}b", **about("x", why=character))

    assert character not in line
    assert line.isprintable()
    assert json.loads(line)["@message"] == f"a{character}b"
    assert json.loads(line)["why"] == character


def test_letters_of_every_script_stay_readable() -> None:
    assert '"@message": "größer – 大 😀"' in line_of("größer – 大 😀")


@pytest.mark.parametrize("character", ["a", '"', "\0", "é", "😀", "\u2028"])
def test_a_line_has_at_most_16_kib_whatever_is_in_it(character: str) -> None:
    text = character * 100_000
    texts = dict.fromkeys(("domain", "until", "who", "why", "made"), text)

    line = line_of(text, error=ValueError(text), worker=99, **about("x", **texts, problems=[text] * 100))

    found = json.loads(line)
    assert len(line.encode()) + 1 <= MAX_LINE == 16_384
    assert found["@message"].startswith(character * 100)
    assert found["@message"].endswith(" more)")
    assert found["exception"].endswith(character * 100)
    assert found["problems"][-1].endswith(" more)")


def test_what_was_cut_says_how_much_is_missing() -> None:
    line = json.loads(line_of("m" * 5000, **about("x", path="p" * 600, problems=["q" * 400] * 20)))

    assert line["@message"] == "m" * 4096 + "… (904 more)"
    assert line["path"] == "p" * 512 + "… (88 more)"
    assert line["problems"] == ["q" * 400] * 7 + ["(13 more)"]


def test_an_exception_is_logged_once_a_minute_for_each_place_that_raises_it() -> None:
    clock = Clock()
    rare = RareTracebacks(clock)

    def logs(fail: Callable[[], object], line: int = 1, level: int = logging.ERROR) -> bool:
        try:
            fail()
        except ValueError as error:
            found = (type(error), error, error.__traceback__)
            return rare.filter(logging.LogRecord("x", level, "x.py", line, "it failed", (), found))
        raise AssertionError

    here, there = lambda: int("a"), lambda: int("b")

    assert [logs(here), logs(here), logs(there), logs(here, line=2)] == [True, False, True, True]
    clock.advance(MINUTE - 1)
    assert not logs(here)
    clock.advance(1)
    assert logs(here)
    assert logs(here, level=logging.CRITICAL)
    assert all(rare.filter(logging.LogRecord("x", logging.ERROR, "x.py", 1, "no exception", (), None)) for _ in "12")


def test_events_are_passed_on_whatever_level_is_written() -> None:
    code = """
import logging
from ratelimit_service.telemetry.logs import about, pass_events, start_logging
start_logging("error", "text")
end = pass_events(lambda when, message, fields: print(message, fields["event"], 0 < when))
log = logging.getLogger("ratelimit_service.x")
log.info("it is no event")
log.info("it %s", "went", extra=about("gone"))
end()
log.info("it went", extra=about("late"))
"""
    ended = run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (ended.stdout, ended.stderr) == ("it went gone True\n", "")
