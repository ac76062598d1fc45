"""The page in a real browser while calls go on: what it draws is what the metrics say, and its console stays empty."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ratelimit_service.system.clock import MINUTE, steady_clock
from tests.admin.service import Service, running
from tests.admin.test_page_fits import TOO_WIDE, resize
from tests.browser import Page, opened
from tests.clocks import Clock

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
"""


def address(service: Service) -> str:
    return f"http://{service.debug[0].host}:{service.debug[0].port}/"


def asked(*users: str, cost: int = 1) -> dict[str, Any]:
    descriptors = [{"entries": [{"key": "user", "value": user}]} for user in users]
    return {"domain": "shop", "hitsAddend": cost, "descriptors": descriptors}


def hit(service: Service, user: str, times: int) -> None:
    for _ in range(times):
        service.post(asked(user))


def requests(service: Service, outcome: str) -> int:
    found = re.search(
        rf'^ratelimit_requests_total{{domain="shop",outcome="{outcome}"}} (\d+)$',
        service.get("/metrics").text,
        re.MULTILINE,
    )
    assert found is not None
    return int(found[1])


ALLOWED_AND_REFUSED = [1, 5]
"""Their cells in a row of a minute."""
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
        label, paths = (
            page.evaluate(LABEL),
            page.evaluate("document.querySelectorAll('#charts figure:first-child path').length"),
        )
        focused = page.evaluate("document.activeElement.tagName")
        sums = page.evaluate(
            "[...document.querySelectorAll('#charts tbody tr')]"
            f".map(row => {ALLOWED_AND_REFUSED}.map(at => +row.cells[at].textContent))"
            ".reduce((sum, row) => sum.map((one, at) => one + row[at]), [0, 0])"
        )
        counted = [requests(service, "allowed"), requests(service, "refused")]

    assert empty == "all domains, the last 60 minutes: no requests"
    assert counted == sums == [7, 2]
    assert label == "shop, the last 60 minutes: Allowed 7, Refused 2"
    assert paths == 2
    assert focused == "SUMMARY"
    assert page.problems == []


ROWS = (
    "[...document.querySelectorAll('#charts tbody tr')].slice(0, 7)"
    f".map(row => {ALLOWED_AND_REFUSED}.map(at => +row.cells[at].textContent))"
)


def test_charts_go_on_over_minutes_also_those_that_the_page_did_not_see(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service, opened(address(service)) as page:
        clock = service.server._endpoints._history._clock = Clock(steady_clock())
        page.wait_until("document.querySelector('#charts svg') !== null")
        hit(service, "ada", 5)
        page.wait_until(f"{LABEL}.includes('Refused 2')")
        page.evaluate("document.querySelector('#charts summary').focus()")
        page.press("Enter", 13)
        seen = []
        # The page sees the next minute, misses some, and sees one after these.
        for minutes, user, label in ((1, "bob", "Allowed 4"), (4, "eve", "Allowed 5"), (1, "joe", "Allowed 6")):
            clock.advance(minutes * MINUTE)
            hit(service, user, 1)
            page.wait_until(f"{LABEL}.includes('{label}')")
            seen.append(page.evaluate(ROWS))
        problems = page.problems

    none = [0, 0]
    assert seen == [
        [[1, 0], [3, 2], none, none, none, none, none],
        [[1, 0], none, none, none, [1, 0], [3, 2], none],
        [[1, 0], [1, 0], none, none, none, [1, 0], [3, 2]],
    ]
    assert problems == []


HEADS = "[...document.querySelectorAll('#heads th')].map(head => head.textContent)"
MEASURED = """\
  - key: mail
    rate_limit: {algorithm: leaky_bucket, unit: minute, requests_per_unit: 3, queue: {max_delay: 50s}}
  - key: path
    value: /export
    descriptors:
      - {key: id, rate_limit: {concurrency: 50, hold: 60s, place: id}}
"""


def test_columns_of_queues_and_places_appear_with_rules_that_have_them_and_go_with_them(tmp_path: Path) -> None:
    def asked(*entries: tuple[str, str]) -> None:
        described = {"entries": [{"key": key, "value": value} for key, value in entries]}
        service.post({"domain": "shop", "descriptors": [described]})

    with running(tmp_path, RULES) as service, opened(address(service)) as page, ThreadPoolExecutor() as clients:
        page.wait_until("document.querySelectorAll('#rows tr').length === 1")
        before = page.evaluate(HEADS)
        service.load(RULES + MEASURED)
        for _ in range(3):
            clients.submit(asked, ("mail", "x"))
        for number in range(7):
            asked(("path", "/export"), ("id", str(number)))
        page.wait_until("document.querySelectorAll('#rows tr').length === 3")
        page.wait_until("document.querySelector('#sums td[data-head=Waiting]').textContent === '2'")
        page.wait_until("document.querySelector('#sums [data-head=\"Places taken\"]').textContent === '7'")
        heads, longest = (
            page.evaluate(HEADS),
            page.evaluate("document.querySelector('#sums [data-head=\"Longest wait\"]').innerText"),
        )
        resize(page, 360, "light")
        too_wide = page.evaluate(TOO_WIDE)
        resize(page, 1440, "light")
        page.evaluate(f"document.querySelectorAll('#heads button')[{heads.index('Waiting')}].click()")
        by_waiting = (
            page.evaluate(SORTED),
            page.evaluate("[...document.querySelectorAll('#rows .link')].map(one => one.textContent)"),
        )
        service.load(RULES)
        page.wait_until("document.querySelectorAll('#rows tr').length === 1")
        after, by_default, problems = page.evaluate(HEADS), page.evaluate(SORTED), page.problems
        service.loop.call_soon_threadsafe(service.limiter.turns.refuse_all)

    assert "Waiting" not in before
    assert heads[4:7] == ["Waiting", "Longest wait", "Places taken"]
    assert after == before == ["Domain", "Descriptor", "Hits/s", "Over/s", "Hits", "Over", "Limit"]
    assert longest == "40,000 ms"
    assert not too_wide
    assert by_waiting == (["Waiting descending"], ["mail", "path_/export›id", "user"])
    assert by_default == ["Hits/s descending"]
    assert problems == []


MANY = "domain: shop\ndescriptors:\n" + "".join(
    f"  - {{key: user, value: u{number}, rate_limit: {{unit: year, requests_per_unit: {number + 1}}}}}\n"
    for number in range(5000)
)
CELLS = (
    "[...document.querySelectorAll('#rows tr')].slice(0, 3)"
    '.map(row => row.querySelector(`[data-head="{0}"]`).textContent.trim())'
)
SORTED = "[...document.querySelectorAll('#heads th[aria-sort]')].map(head => head.textContent + ' ' + head.ariaSort)"
SUMS = (
    "[document.querySelector('#sums th').textContent, ...['Hits', 'Within', 'Over']"
    '.map(head => document.querySelector(`#sums [data-head="${head}"]`).textContent)]'
)
TICKS = (
    "performance.getEntriesByType('resource').filter(one => one.name.endsWith('{0}')).map(one => one.decodedBodySize)"
)


def press_head(page: Page, head: str) -> None:
    found = f"[...document.querySelectorAll('#heads button')].find(one => one.textContent === '{head}')"
    page.evaluate(f"{found}.focus()")
    page.press("Enter", 13)


def test_five_thousand_rules_are_sorted_searched_and_added_up(tmp_path: Path) -> None:
    with running(tmp_path, MANY) as service:
        hit(service, "u4321", 6)
        hit(service, "u7", 9)
        hit(service, "u2", 4)
        with opened(address(service)) as page:
            page.wait_until("document.querySelectorAll('#rows tr').length === 100")
            busiest, by_default = page.evaluate(CELLS.format("Hits")), page.evaluate(SORTED)
            press_head(page, "Over")
            over, by_key = page.evaluate(CELLS.format("Over")), page.evaluate(SORTED)
            press_head(page, "Limit")
            limits, by_limit = page.evaluate(CELLS.format("Limit")), page.evaluate(SORTED)
            press_head(page, "Limit")
            reversed_limits = page.evaluate(CELLS.format("Limit"))
            sums = page.evaluate(SUMS)
            page.evaluate("document.getElementById('more').click()")
            rows = page.evaluate("document.querySelectorAll('#rows tr').length")
            filter_ = "const box = document.getElementById('filter'); box.value = 'U4321 shop'"
            page.evaluate(f"{filter_}; box.dispatchEvent(new Event('input'))")
            found = page.evaluate("document.getElementById('rows').textContent")
            count = page.evaluate("document.getElementById('count').textContent")
            more = page.evaluate("document.getElementById('more').hidden")
            hit(service, "u4321", 3)
            page.wait_until(f"{CELLS.format('Hits')}[0] === '9'")
            sum_of_one = page.evaluate(SUMS)
            address_now, problems = page.evaluate("location.search"), page.problems

    assert (busiest, by_default) == (["9", "6", "4"], ["Hits/s descending"])
    assert (over, by_key) == (["1", "1", "0"], ["Over descending"])
    assert (limits, by_limit) == (["1 per year", "2 per year", "3 per year"], ["Limit ascending"])
    assert reversed_limits == ["5,000 per year", "4,999 per year", "4,998 per year"]
    assert sums == ["5,000 rules together", "19", "17", "2"]
    assert rows == 200
    assert "4,322 per year" in found
    assert (count, more) == ("1 of 5,000", True)
    assert address_now == "?filter=U4321+shop"
    assert sum_of_one[:2] == ["1 rule", "9"]
    assert problems == []


def test_of_five_thousand_rules_a_tick_brings_those_that_counted(tmp_path: Path) -> None:
    with running(tmp_path, MANY) as service:
        for first in range(0, 5000, 100):
            service.post(asked(*(f"u{number}" for number in range(first, first + 100, 2))))
        with opened(address(service)) as page:
            page.wait_until(f"{TICKS.format('/status/recent')}.length >= 3")
            whole, ticks = (page.evaluate(TICKS.format(path)) for path in ("/status/now", "/status/recent"))
            service.post(asked("u4999", cost=5000))
            page.wait_until(f"{CELLS.format('Hits')}[0] === '5,000'")
            sums = page.evaluate(SUMS)

    assert len(whole) == 1
    assert whole[0] > 50_000
    assert max(ticks) < 10_000
    assert sums[1] == "7,500"


def test_a_change_of_rules_shows_without_a_load_of_the_page(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service, opened(address(service)) as page:
        page.wait_until("document.querySelectorAll('#rows tr').length === 1")
        service.load(RULES + "  - {key: plan, rate_limit: {unit: day, requests_per_unit: 77}}\n")
        page.wait_until("document.getElementById('rows').textContent.includes('77 per day')")

        assert page.problems == []
