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


def ask(service: Service, key: str, times: int) -> None:
    for _ in range(times):
        service.post({"domain": "shop", "descriptors": [{"entries": [{"key": key, "value": "ada"}]}]})


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
        ask(service, "user", 5)
        page.wait_until(f"{LABEL}.includes('Refused 2')")
        page.evaluate("document.querySelector('#charts summary').focus()")
        page.press("Enter", 13)
        page.wait_until("document.querySelectorAll('#charts tbody tr').length === 60")
        service.load(RULES.replace("requests_per_unit: 3", "requests_per_unit: 9"))
        ask(service, "user", 4)
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
