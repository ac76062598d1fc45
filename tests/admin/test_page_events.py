"""The sections of the page for the past and the settings, in a real browser; a closed one asks for nothing."""

from pathlib import Path
from typing import Final

from tests.admin.conftest import RULES
from tests.admin.service import Service, running
from tests.browser import Page, opened

TOKEN: Final = "0123456789abcdef0123456789abcdef"
START: Final = 1_795_352_400
REFUSED: Final = {"event": "rules_refused", "problems": ["a.yaml:1:2: <b>no</b>"]}
LOST: Final = {
    "event": "store_lost",
    "server": "redis:6379",
    "cause": "refused",
    "policy": "open",
    "since": "2026-11-22T13:00:00Z",
}

ASKED: Final = "performance.getEntriesByType('resource').filter(one => one.name.includes('{0}')).length"
ROWS: Final = "[...document.querySelectorAll('#{0}-rows tr')].map(row => [...row.cells].map(cell => cell.textContent))"


def address(service: Service) -> str:
    return f"http://{service.debug[0].host}:{service.debug[0].port}/"


def open_section(page: Page, name: str) -> None:
    """Open it as by the keyboard."""
    page.evaluate(f"document.querySelector('#{name} > summary').focus()")
    page.press("Enter", 13)
    page.wait_until(f"document.getElementById('{name}').open")
    page.evaluate(f"document.getElementById('{name}').scrollIntoView()")


def test_the_past_moves_while_it_is_open_and_text_is_no_markup(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service, opened(address(service)) as page:
        service.events.record(START, "rules not loaded", REFUSED)
        page.wait_until("document.getElementById('state').textContent === 'serving'")
        closed = page.evaluate(ASKED.format("/status/past"))
        open_section(page, "past")
        page.wait_until(f"{ROWS.format('past')}.length === 1")
        (refused,) = page.evaluate(ROWS.format("past"))
        service.events.record(START + 1, "store lost: Redis at redis:6379", LOST)
        page.wait_until(f"{ROWS.format('past')}.length === 2")
        lasts = page.evaluate(ROWS.format("past"))[0]
        service.events.record(START + 90, "store regained", {"event": "store_regained", "server": "redis:6379"})
        page.wait_until(f"{ROWS.format('past')}[0][1] === '2 min'")
        over = page.evaluate(ROWS.format("past"))[0]
        markup = page.evaluate("document.querySelectorAll('#past b').length")

        assert page.problems == []

    assert closed == 0
    assert refused[1].startswith("lasts, ")
    assert refused[2] == "Reloadrules not loadeda.yaml:1:2: <b>no</b>"
    assert (lasts[1][:7], lasts[2]) == ("lasts, ", "Outagestore lost: Redis at redis:6379")
    assert over[2] == "Outagestore lost: Redis at redis:6379store regained"
    assert markup == 0


def test_the_last_refusals_say_who_and_why_while_they_are_open(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service, opened(address(service)) as page:
        for _ in range(4):
            service.post({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "<b>ada"}]}]})
        page.wait_until("document.getElementById('state').textContent === 'serving'")
        closed = page.evaluate(ASKED.format("/status/refusals"))
        page.evaluate("document.querySelector('nav [href=\"#refusals\"]').click()")
        page.wait_until(f"{ROWS.format('refusals')}.length === 1")
        (refused,) = page.evaluate(ROWS.format("refusals"))
        page.evaluate("document.querySelector('#refusals-rows .link').click()")
        page.wait_until("document.getElementById('dialog-body').innerText.includes('0 of 3 left')")

        assert page.problems == []

    assert closed == 0
    assert refused[1:] == ["shop", "user=<b>ada", "over 3 per minute", "userrules.yaml:4", "1", "1"]


def test_settings_are_asked_for_once_and_found(tmp_path: Path) -> None:
    with (
        running(tmp_path, RULES, admin_token=TOKEN, near_limit_ratio="0.7") as service,
        opened(address(service)) as page,
    ):
        page.wait_until("document.getElementById('state').textContent === 'serving'")
        closed = page.evaluate(ASKED.format("/status/settings"))
        open_section(page, "settings")
        page.wait_until(f"{ROWS.format('settings')}.length > 100")
        page.evaluate("document.getElementById('settings-chosen').click()")
        chosen = page.evaluate(ROWS.format("settings"))
        page.evaluate("document.getElementById('settings-filter').value = 'ratio near'")
        page.evaluate("document.getElementById('settings-filter').dispatchEvent(new Event('input'))")
        found = page.evaluate(ROWS.format("settings"))
        page.wait_until(f"{ASKED.format('/status/recent')} >= 3")
        asked = page.evaluate(ASKED.format("/status/settings"))
        secret = page.evaluate(f"document.documentElement.innerHTML.includes('{TOKEN}')")

        assert page.problems == []

    assert (closed, asked, secret) == (0, 1, False)
    assert [row[:3] for row in chosen if row[0] == "ADMIN_TOKEN"] == [["ADMIN_TOKEN", "set", "set"]]
    assert [row[:3] for row in found] == [["NEAR_LIMIT_RATIO", "0.7", "set"]]
