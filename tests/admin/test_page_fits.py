"""The page on screens of every size, in both colours, and as a screen reader has it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory

from tests.admin.service import Service, running
from tests.browser import Page, opened
from tests.peers import axe
from tests.processes import ROOT

RULES = """\
domain: web-shop
descriptors:
  - key: remote_address
    rate_limit: {unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 3, name: per_address}
  - key: customer_plan
    value: enterprise
    descriptors:
      - key: authenticated_user
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 120000}
  - key: newsletters
    rate_limit: {algorithm: leaky_bucket, unit: minute, requests_per_unit: 120000, queue: {max_delay: 50s}}
  - key: request_id
    rate_limit: {concurrency: 5000, hold: 60s, place: request_id}
"""
BROKEN_WORDS = """(() => {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    for (const match of node.data.matchAll(/[\\w]+/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      if (range.getClientRects().length > 1) found.push(match[0]);
    }
  }
  return found;
})()"""
SCREENS = ((1440, "light"), (1024, "dark"), (360, "light"))
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"


def busy(service: Service) -> None:
    plan = [{"key": "customer_plan", "value": "enterprise"}, {"key": "authenticated_user", "value": "ada"}]
    keys = {"remote_address": "203.0.113.77", "request_id": "7", "unlimited_thing": "x"}
    asked = [[{"key": key, "value": value}] for key, value in keys.items()] + [plan]
    for _ in range(5):
        service.post({"domain": "web-shop", "descriptors": [{"entries": entries} for entries in asked]})


def resize(page: Page, width: int, scheme: str) -> None:
    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)


def test_no_word_is_broken_and_nothing_is_wider_than_the_screen() -> None:
    found = {}
    # The page has the name of the folder, and that of a test's own is wider than a card.
    with TemporaryDirectory(prefix="rules-") as folder, running(Path(folder), RULES) as service:
        busy(service)
        with opened(f"http://{service.debug[0].host}:{service.debug[0].port}/") as page:
            page.wait_until("document.querySelectorAll('#rows tr').length === 4")
            for width, scheme in SCREENS:
                resize(page, width, scheme)
                broken, too_wide = page.evaluate(BROKEN_WORDS), page.evaluate(TOO_WIDE)
                page.evaluate("document.querySelector('#rows .link').click()")
                page.wait_until("document.querySelector('#dialog svg path') !== null")
                found[width] = (broken + page.evaluate(BROKEN_WORDS), too_wide)
                page.press("Escape", 27)
            problems = page.problems

    assert found == {width: ([], False) for width, _ in SCREENS}
    assert problems == []


WIDTHS = (1280, 1440, 1920, 2560)
NAMES = "[...document.querySelectorAll('#heads th')].map(head => head.textContent)"
HIDDEN = "(frame => frame.scrollWidth - frame.clientWidth)(document.querySelector('#rules .frame'))"
COUNTS = ("total_hits", "within_limit", "over_limit", "near_limit", "exceeded", "spared", "open_allowed")


@contextmanager
def shipped() -> Iterator[Service]:
    """One with the rules of `config`, each of which has counted much, in each way that may have a column."""
    with TemporaryDirectory(prefix="rules-") as folder:
        for file in (ROOT / "config").glob("*.*"):
            if file.name != "example.yaml":
                copy(file, folder)
        with running(Path(folder), (ROOT / "config" / "example.yaml").read_text()) as service:
            assert service.limiter.book is not None
            for rule in service.limiter.book.rules:
                for number in (*COUNTS, "closed_refused", "error_failed", "shadow_mode"):
                    setattr(rule.tally, number, 1_234_567)
                if rule.measured is not None:
                    rule.measured.waiting = 3
                    rule.measured.longest_wait.note(400_000)
                    rule.measured.places_taken.note(20)
                    rule.measured.on_loan.note(1500)
            yield service


def test_no_column_of_the_rules_is_hidden_and_large_numbers_are_short() -> None:
    with shipped() as service, opened(f"http://{service.debug[0].host}:{service.debug[0].port}/?filter=every") as page:
        page.wait_until("document.querySelectorAll('#rows tr').length > 20")
        page.wait_until(f"{NAMES}.length === 19")
        hidden = {}
        for width in WIDTHS:
            resize(page, width, "light")
            hidden[width] = page.evaluate(HIDDEN)
        cell = "document.querySelector('#rows [data-head=Hits]')"
        hits = page.evaluate(f"[{cell}.textContent, {cell}.title]")

    assert hidden == dict.fromkeys(WIDTHS, 0)
    assert hits == ["1.23M", "1,234,567"]


FOUND = (
    """axe.run().then(found => found.violations.flatMap(one => one.nodes.map(node => `${one.id}: ${node.target}`)))"""
)
VIEWS = ((1440, "dark"), (390, "light"))


def test_axe_finds_nothing(tmp_path: Path) -> None:
    script = axe().read_text(encoding="utf-8")
    with running(tmp_path, RULES) as service:
        busy(service)
        with opened(f"http://{service.debug[0].host}:{service.debug[0].port}/#settings") as page:
            page.wait_until("document.querySelectorAll('#rows tr').length === 4")
            page.wait_until("document.querySelector('#settings .frame').tabIndex === 0")
            page.evaluate(script)
            opened_section = page.resolve(FOUND)
            page.evaluate("document.getElementById('settings').open = false")  # each of its rows takes axe 10 ms
            found = {}
            for width, scheme in VIEWS:
                resize(page, width, scheme)
                page.resolve("new Promise(requestAnimationFrame)")
                found[width, scheme] = page.resolve(FOUND)
            page.evaluate("document.querySelector('#rows .link').click()")
            page.wait_until("document.querySelector('#dialog svg path') !== null")
            dialog = page.resolve(FOUND)
            page.press("Escape", 27)
            page.evaluate("document.querySelector('.skip').focus()")
            page.press("Enter", 13)
            page.press("Tab", 9)
            behind = page.evaluate("document.activeElement.id")
            labels = page.evaluate("[...document.querySelectorAll('svg[role=img]')].map(one => one.ariaLabel)")

    assert opened_section == []
    assert found == {view: [] for view in VIEWS}
    assert dialog == []
    assert behind == "filter"
    assert all("the last 60 minutes" in label for label in labels)
