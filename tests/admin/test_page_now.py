"""The first screen of the page: how much is refused and not limited, since when, and what happened meanwhile."""

import time
from pathlib import Path

from ratelimit_service.system.clock import MINUTE, steady_clock
from tests.admin.conftest import RULES
from tests.admin.service import Service, running
from tests.browser import Page, opened
from tests.clocks import Clock


def ask(service: Service, times: int, *, domain: str = "shop", key: str = "user") -> None:
    for _ in range(times):
        service.post({"domain": domain, "descriptors": [{"entries": [{"key": key, "value": "ada"}]}]})


CARDS = "[...document.querySelectorAll('#now small')].map(one => one.textContent)"
MARKS = "[...document.querySelectorAll('#charts figure:first-child .mark title')].map(one => one.textContent)"


def cards(page: Page, refused: str) -> list[str]:
    """What stands below the four numbers, once it says this of those refused."""
    page.wait_until(f"{CARDS}[1] === '{refused}'")
    found: list[str] = page.evaluate(CARDS)
    return found


def test_the_first_screen_says_what_is_refused_and_what_no_rule_limits(tmp_path: Path) -> None:
    begun = int(time.time()) - 30
    with running(tmp_path, RULES) as service, opened(f"http://127.0.0.1:{service.debug[0].port}/") as page:
        page.command("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
        clock = service.server._endpoints._history._clock = Clock(steady_clock())
        page.wait_until(f"{CARDS}.length === 4")
        empty = page.evaluate(CARDS)
        ask(service, 5)
        ask(service, 2, domain="shoop")
        ask(service, 1, key="cart")
        service.events.record(begun, "rules loaded", {"event": "rules_loaded"})
        lost = {"event": "store_lost", "server": "redis:6379", "since": time.strftime("%FT%TZ", time.gmtime(begun))}
        service.events.record(begun, "store lost", lost)
        busy = cards(page, "25 % of all")
        page.wait_until(f"{MARKS}.length === 2")
        marks, moment = page.evaluate(MARKS), time.strftime("(%H:%M UTC)", time.gmtime(begun))
        clock.advance(59 * MINUTE)
        ask(service, 4, key="plan")
        later = cards(page, "0 % of all; an hour ago 25 %")
        sparks = page.evaluate("[...document.querySelectorAll('#now svg')].map(one => one.ariaLabel)")

        assert page.problems == []

    assert empty[1:3] == ["0 % of all", "each request met a rule"]
    assert busy[2] == "no rule: domain shoop, shop › cart"
    assert later[2] == "no rule: domain shoop, shop › plan, shop › cart"
    assert [mark.split()[0] for mark in marks] == ["Reload", "Outage"]
    assert marks[1].endswith(f"{moment}, lasts")
    assert sparks[1].startswith("the last 60 minutes: at most 0.0 a second")
