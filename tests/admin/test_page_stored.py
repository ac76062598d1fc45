"""Rules changed on the page, in a real browser: with a preview, put, and rolled back."""

import json
from pathlib import Path

from tests.admin.service import running
from tests.admin.test_page_acts import ask, click, fill, press, text, wait_for
from tests.admin.test_rules_api import ADMIN
from tests.browser import opened

SHOP = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 3}\n"
HIGHER = SHOP.replace("requests_per_unit: 3", "requests_per_unit: 4")
BASE = "domain: base\ndescriptors: []\n"


def test_rules_are_changed_with_a_preview_and_rolled_back(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    settings = {"rules_store": str(tmp_path / "kept"), "admin_token": ADMIN}
    with running(tmp_path / "rules", BASE, **settings) as service:
        url = f"http://{service.debug[0]}/#token={ADMIN}"
        with opened(url) as page:
            page.wait_until("!document.getElementById('stored').hidden")
            page.evaluate("document.getElementById('stored').open = true")
            fill(page, "#stored-domain", "shop")
            press(page, "#stored-form button")
            wait_for(page, "#dialog [role=status]", "There are no rules of this domain here yet.")
            fill(page, "#dialog textarea", SHOP.replace("minute", "age"))
            click(page, "Preview")
            wait_for(page, "#dialog [role=status]", 'api:shop:4:24: unit "age" is not one of ')
            fill(page, "#dialog textarea", SHOP)
            click(page, "Preview")
            wait_for(page, "#dialog [aria-live]", "shop › user: no limit → 3 requests per minute")
            click(page, "Put")
            wait_for(page, "#dialog [role=status]", "Done: version 1-")
            page.wait_until("document.querySelectorAll('#dialog tbody tr').length === 1")
            codes = [ask(service) for _ in range(5)]
            service.do(service.server._endpoints.look())
            fill(page, "#dialog textarea", HIGHER)
            fill(page, "#dialog [aria-label=Why]", "ticket 1")
            click(page, "Preview")
            wait_for(page, "#dialog [aria-live]", "Counters are kept.")
            preview = text(page, "#dialog [aria-live]")
            click(page, "Put")
            wait_for(page, "#dialog [role=status]", "Done: version 2-")
            click(page, "Roll back")
            wait_for(page, "#dialog [role=status]", "Done: version 3-")
            shown = page.evaluate("document.querySelector('#dialog textarea').value")
            problems = page.problems
        past = json.loads(service.get("/rules/shop/history").text)["versions"]

    assert codes == [200, 200, 200, 429, 429]
    assert "3 requests per minute → 4 requests per minute" in preview
    assert "it would have refused 1 of 5, in place of 2." in preview
    assert shown == SHOP
    assert [(each["number"], each["why"]) for each in past] == [(3, "ticket 1"), (2, "ticket 1"), (1, "")]
    assert [problem for problem in problems if "of 422" not in problem and "of 404" not in problem] == []
