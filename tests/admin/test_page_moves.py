"""The page in a real browser while calls go on: what it draws is what the metrics say, and its console stays empty."""

import re
from pathlib import Path

from tests.admin.service import Service, running
from tests.browser import opened

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
"""


def address(service: Service) -> str:
    return f"http://{service.debug[0].host}:{service.debug[0].port}/"


def hit(service: Service, user: str, times: int) -> None:
    for _ in range(times):
        service.post({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": user}]}]})


def requests(service: Service, outcome: str) -> int:
    found = re.search(
        rf'^ratelimit_requests_total{{domain="shop",outcome="{outcome}"}} (\d+)$',
        service.get("/metrics").text,
        re.MULTILINE,
    )
    assert found is not None
    return int(found[1])


LABEL = "document.querySelector('#charts svg[role=img]').getAttribute('aria-label')"


def test_charts_move_with_calls_and_say_what_metrics_say(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service, opened(address(service)) as page:
        page.wait_until("document.querySelector('#charts svg') !== null")
        empty = page.evaluate(LABEL)
        hit(service, "ada", 5)
        page.wait_until(f"{LABEL}.includes('Refused 2')")
        page.evaluate("document.querySelector('#charts summary').focus()")
        page.press("Enter", 13)
        page.wait_until("document.querySelectorAll('#charts tbody tr').length === 60")
        service.load(RULES.replace("requests_per_unit: 3", "requests_per_unit: 9"))
        hit(service, "ada", 4)
        page.wait_until(f"{LABEL}.includes('Allowed 7')")
        label, paths = page.evaluate(LABEL), page.evaluate("document.querySelectorAll('#charts path').length")
        focused = page.evaluate("document.activeElement.tagName")
        sums = page.evaluate(
            "[...document.querySelectorAll('#charts tbody tr')]"
            ".map(row => [1, 2].map(at => +row.cells[at].textContent))"
            ".reduce((sum, row) => sum.map((one, at) => one + row[at]), [0, 0])"
        )
        counted = [requests(service, "allowed"), requests(service, "refused")]

    assert empty == "all domains, the last 60 minutes: no requests"
    assert counted == sums == [7, 2]
    assert label == "shop, the last 60 minutes: Allowed 7, Refused 2"
    assert paths == 2
    assert focused == "SUMMARY"
    assert page.problems == []


MANY = "domain: shop\ndescriptors:\n" + "".join(
    f"  - {{key: user, value: u{number}, rate_limit: {{unit: year, requests_per_unit: {number + 1}}}}}\n"
    for number in range(5000)
)
CELLS = "[...document.querySelectorAll('#rules tbody tr')].slice(0, 3).map(row => row.cells[{0}].textContent)"
SORTED = "[...document.querySelectorAll('#heads th[aria-sort]')].map(head => head.textContent + ' ' + head.ariaSort)"


def test_five_thousand_rules_are_sorted_and_searched(tmp_path: Path) -> None:
    with running(tmp_path, MANY) as service:
        hit(service, "u4321", 6)
        hit(service, "u7", 9)
        hit(service, "u2", 4)
        with opened(address(service)) as page:
            page.wait_until("document.querySelectorAll('#rules tbody tr').length === 500")
            busiest, by_default = page.evaluate(CELLS.format(6)), page.evaluate(SORTED)
            page.evaluate("document.querySelectorAll('#heads button')[8].focus()")
            page.press("Enter", 13)
            over, by_key = page.evaluate(CELLS.format(8)), page.evaluate(SORTED)
            page.evaluate("document.querySelectorAll('#heads button')[2].click()")
            limits, by_click = page.evaluate(CELLS.format(2)), page.evaluate(SORTED)
            page.evaluate("document.querySelectorAll('#heads button')[2].click()")
            reversed_limits = page.evaluate(CELLS.format(2))
            filter_ = "const box = document.getElementById('filter'); box.value = 'U4321 shop'"
            page.evaluate(f"{filter_}; box.dispatchEvent(new Event('input'))")
            found = page.evaluate("document.querySelector('#rules tbody').textContent")
            count = page.evaluate("document.getElementById('count').textContent")
            hit(service, "u4321", 3)
            page.wait_until("document.querySelector('#rules tbody tr').cells[6].textContent === '9'")
            problems = page.problems
        tick = service.get("/status/now", **{"Accept-Encoding": "gzip"}).body

    assert (busiest, by_default) == (["9", "6", "4"], ["Hits/s descending"])
    assert (over, by_key) == (["1", "1", "0"], ["Over descending"])
    assert (limits, by_click) == (["1 per year", "2 per year", "3 per year"], ["Limit ascending"])
    assert reversed_limits == ["5,000 per year", "4,999 per year", "4,998 per year"]
    assert "4,322 per year" in found
    assert count == "1 of 5,000"
    assert problems == []
    assert len(tick) < 20_000


def test_a_change_of_rules_shows_without_a_load_of_the_page(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service, opened(address(service)) as page:
        page.wait_until("document.querySelectorAll('#rules tbody tr').length === 1")
        service.load(RULES + "  - {key: plan, rate_limit: {unit: day, requests_per_unit: 77}}\n")
        page.wait_until("document.querySelector('#rules tbody').textContent.includes('77 per day')")

        assert page.problems == []
