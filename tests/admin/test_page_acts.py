"""What a person does on the page, in a real browser: looks at a rule, tries a request, bans and resets."""

import json
from pathlib import Path

from tests.admin.conftest import RULES
from tests.admin.service import Service, running
from tests.admin.test_access import without_a_folder_for_tokens
from tests.browser import Page, opened

TOKEN = "0123456789abcdef0123456789abcdef"


def address(service: Service) -> str:
    """The link that a service with a token of its own prints."""
    token = service.server.made_token
    return f"http://{service.debug[0].host}:{service.debug[0].port}/{f'#token={token}' if token else ''}"


def ask(service: Service, user: str = "ada") -> int:
    return service.post({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": user}]}]}).status


def text(page: Page, selector: str) -> str:
    return str(page.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))


def wait_for(page: Page, selector: str, words: str) -> None:
    page.wait_until(f"document.querySelector({json.dumps(selector)})?.innerText.includes({json.dumps(words)})")


def press(page: Page, selector: str) -> None:
    """Press Enter there."""
    page.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
    page.press("Enter", 13)


def click(page: Page, words: str) -> None:
    """Click the button of the dialog whose words begin so."""
    found = f"[...document.querySelectorAll('#dialog button')].find(one => one.innerText.startsWith('{words}'))"
    page.evaluate(f"{found}.click()")


def fill(page: Page, selector: str, value: str) -> None:
    page.evaluate(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(value)}")


def try_request(page: Page, entries: str) -> None:
    fill(page, "#try-domain", "shop")
    fill(page, "#try-entries", entries)
    press(page, "#try button")


def test_a_rule_that_reserves_shows_what_became_of_it(tmp_path: Path) -> None:
    rules = """\
domain: shop
settle: settled
descriptors: [{key: id, rate_limit: {unit: day, requests_per_unit: 9000, reserve: {id: id, hold: 5m, estimate: 400}}}]
"""
    with running(tmp_path, rules) as service:
        for entries in ([{"key": "id", "value": "1"}], [{"key": "id", "value": "2"}]):
            service.post({"domain": "shop", "descriptors": [{"entries": entries}]})
        settled = {"entries": [*entries, {"key": "settled", "value": ""}], "hitsAddend": "700"}
        service.post({"domain": "shop", "descriptors": [settled]})
        with opened(address(service)) as page:
            page.wait_until("document.querySelectorAll('#rows tr').length === 1")
            press(page, "#rows tr .link")
            wait_for(page, "#dialog", "1 open with 400 units")
            wait_for(page, "#dialog", "p95 of 1 lately: 700, p50 700, the most 700; estimate 400: 100 % overran")
            assert text(page, "#dialog .facts").startswith("Limit")


def test_a_rule_shows_its_last_sixty_minutes_and_what_another_limit_would_have_refused(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        for _ in range(5):
            ask(service)
        with opened(address(service)) as page:
            page.wait_until("document.querySelectorAll('#rows tr').length === 3")
            press(page, "#rows tr .link")
            wait_for(page, "#dialog figcaption", "Refused 2")
            title, caption = text(page, "#dialog-title"), text(page, "#dialog figcaption")
            ask(service)
            wait_for(page, "#dialog figcaption", "Refused 3")
            wait_for(page, "#dialog section", "it refused 3 of 6, of 1 key of 1.")
            fill(page, "#dialog [type=range]", "5")
            page.evaluate("document.querySelector('#dialog [type=range]').dispatchEvent(new Event('input'))")
            wait_for(
                page, "#dialog section", "5 in place of 3 would have refused about 1 in place of 3, of 1 key in pl"
            )
            what_if = text(page, "#dialog section")
            page.press("Escape", 27)
            closed = page.evaluate("!document.getElementById('dialog').open")
            focused = page.evaluate("document.activeElement.innerText")
            problems = page.problems
        history = json.loads(service.get("/status/history?domain=shop&rule=user").text)["columns"]

    assert title.split() == ["shop", "›", "user"]
    assert "An estimate: it takes the hits of a key to come evenly" in what_if
    assert "requests_per_unit: 5 in " in what_if
    assert "Allowed 3" in caption
    assert {name: sum(numbers) for name, numbers in history.items()} == {"allowed": 3, "refused": 3}
    assert (closed, focused) == (True, "user")
    assert problems == []


def test_a_request_is_explained_and_not_charged(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service, opened(address(service)) as page:
        page.wait_until("document.getElementById('try-domain').value === 'shop'")
        ask(service)
        try_request(page, "user=ada\n\nplan=free\npath=/a b=c")
        wait_for(page, "#try-result", "No limit")
        first = text(page, "#try-result")
        fill(page, "#try-requests", "7")
        fill(page, "#try-times", "5")
        try_request(page, "user=ada")
        wait_for(page, "#try-result", "came with the request")
        override = text(page, "#try-result")
        try_request(page, "ada")
        wait_for(page, "#try-result", "is not of the form key=value")
        problems = page.problems
        left = ask(service), ask(service), ask(service)

    assert "user=ada, compared as user_ada" in first
    assert "key alone user: fits" in first
    assert "The rule at " in first
    assert "2 of 3 left" in first
    assert "path=/a b=c, compared as path_/a b=c" in first
    assert "The limit that came with the request applies in place of the rule at " in override
    assert "7 requests per 5 minutes" in override
    assert problems == []
    assert left == (200, 200, 429)


def test_loans_and_debts_are_explained(tmp_path: Path) -> None:
    elastic = "{unit: year, requests_per_unit: 1, elastic: {pool: all, ceiling: 9}}"
    rules = f"""
        domain: shop
        pools: [{{name: all, unit: year, requests_per_unit: 100, burst: 2}}]
        descriptors: [{{key: user, rate_limit: {elastic}}}]
    """
    with running(tmp_path, rules) as service, opened(address(service)) as page:
        page.wait_until("document.getElementById('try-domain').value === 'shop'")
        asked = [ask(service), ask(service), ask(service)]
        try_request(page, "user=ada")
        wait_for(page, "#try-result", "0 of 1 left")
        lent = text(page, "#try-result")
        asked.append(ask(service, "eve"))
        try_request(page, "user=eve")
        wait_for(page, "#try-result", "in debt")
        debt = text(page, "#try-result")
        problems = page.problems

    assert asked == [200, 200, 429, 200]
    assert "0 of 1 left, 1 on loan, untouched in" in lent
    assert "all, shop|all|pool/31536000000000: 0 of 2 left, 0 to lend" in lent
    assert "all, shop|all|pool/31536000000000: 1 in debt, until it is paid nothing is lent" in debt
    assert problems == []


def test_how_regions_share_a_limit_is_explained(tmp_path: Path) -> None:
    split = "{unit: year, requests_per_unit: 5, regions: split}"
    rules = f"domain: shop\ndescriptors: [{{key: user, rate_limit: {split}}}]\n"
    with running(tmp_path, rules) as service, opened(address(service)) as page:
        page.wait_until("document.getElementById('try-domain').value === 'shop'")
        try_request(page, "user=ada")
        wait_for(page, "#try-result", "split. It has no effect here: each region counts by itself")
        problems = page.problems

    assert problems == []


def open_ada(page: Page) -> None:
    page.wait_until("document.getElementById('try-domain').value === 'shop'")
    try_request(page, "user=ada")
    page.wait_until("document.querySelector('#try-result .link') !== null")
    press(page, "#try-result .link")


def test_a_descriptor_is_reset_banned_and_the_ban_is_lifted(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service, opened(address(service)) as page:
        full = [ask(service) for _ in range(4)]
        open_ada(page)
        wait_for(page, "#dialog-body", "0 of 3 left")
        click(page, "Reset")
        wait_for(page, "#dialog [role=status]", "1 counter is reset")
        wait_for(page, "#dialog-body", "3 of 3 left")
        reset = ask(service)
        fill(page, "#dialog [name=why]", "tries passwords")
        press(page, "#dialog [name=why]")
        wait_for(page, "#dialog [role=status]", "Banned until ")
        wait_for(page, "#dialog-body", "because: tries passwords")
        wait_for(page, "#bans-rows", "the page from 127.0.0.1")
        banned = ask(service)
        click(page, "Lift")
        wait_for(page, "#dialog [role=status]", "The ban is lifted.")
        lifted = ask(service)
        fill(page, "#dialog [name=why]", "tries again")
        press(page, "#dialog [name=why]")
        wait_for(page, "#bans-rows", "tries again")
        page.press("Escape", 27)
        press(page, "#bans-rows .link")
        wait_for(page, "#dialog-body", "by the page from 127.0.0.1, because: tries again")
        banned_again = ask(service)
        click(page, "Lift")
        wait_for(page, "#dialog [role=status]", "The ban is lifted.")
        page.wait_until("document.getElementById('bans').hidden")
        problems = page.problems

    assert full == [200, 200, 200, 429]
    assert (reset, banned, lifted, banned_again) == (200, 429, 200, 429)
    assert problems == []


def test_who_is_refused_most_is_shown_in_all_and_for_a_rule_and_banned_by_a_click(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service, opened(address(service)) as page:
        for _ in range(2):
            ask(service, "ada")
        answers = [ask(service, "mallory") for _ in range(7)]
        wait_for(page, "#who p", ": 9 hits, 4 of them refused.")
        refused, asked = (page.evaluate(ROWS.format(index)) for index in (0, 1))
        page.evaluate("[...document.querySelectorAll('#rows .link')].find(one => one.innerText === 'user').click()")
        wait_for(page, "#dialog .hot", "user=mallory")
        of_rule = text(page, "#dialog .hot")
        page.press("Escape", 27)
        press(page, "#who .link")
        wait_for(page, "#dialog-body", "7 hits lately, 4 of them refused.")
        fill(page, "#dialog [name=why]", "tries passwords")
        press(page, "#dialog [name=why]")
        wait_for(page, "#dialog [role=status]", "Banned until ")
        others = ask(service, "ada")
        problems = page.problems

    assert answers == [200] * 3 + [429] * 4
    assert refused == [["shop", "user", "user=mallory", "7", "4"]]
    assert asked == [["shop", "user", "user=mallory", "7", "4"], ["shop", "user", "user=ada", "2", "0"]]
    assert "user=ada" in of_rule
    assert others == 200
    assert problems == []


def test_who_has_the_token_acts_after_the_browser_asked_for_it(tmp_path: Path) -> None:
    with running(tmp_path, RULES, admin_token=TOKEN) as service, opened(address(service)) as page:
        ask(service)
        open_ada(page)
        wait_for(page, "#dialog-body", "2 of 3 left")
        page.log_in("/counters/reset", "ada", TOKEN, lambda: click(page, "Reset"))
        wait_for(page, "#dialog [role=status]", "1 counter is reset")

        assert page.problems == []


def test_a_network_is_reset_and_banned_with_all_its_addresses(tmp_path: Path) -> None:
    limit = "rate_limit: {unit: day, requests_per_unit: 3}"
    rules = f"domain: shop\ndescriptors: [{{key: user, prefix: {{ipv4: 24, ipv6: 64}}, {limit}}}]\n"
    with running(tmp_path, rules) as service, opened(address(service)) as page:
        ask(service, "203.0.113.7")
        page.wait_until("document.querySelector('#who .link') !== null")
        press(page, "#who .link")
        wait_for(page, "#dialog-body", "2 of 3 left")
        title = text(page, "#dialog-title")
        click(page, "Reset")
        wait_for(page, "#dialog-body", "3 of 3 left")
        fill(page, "#dialog [name=why]", "rotates")
        press(page, "#dialog [name=why]")
        wait_for(page, "#dialog-body", "because: rotates")
        answers = [ask(service, user) for user in ("203.0.113.9", "::ffff:203.0.113.1", "203.0.114.7")]

    assert "user=203.0.113.0/24" in title
    assert answers == [429, 429, 200]


ROWS = "[...document.querySelectorAll('#who tbody')[{0}].rows].map(row => [...row.cells].map(cell => cell.innerText))"


def test_who_may_not_act_is_told_why(tmp_path: Path) -> None:
    with (
        without_a_folder_for_tokens(tmp_path),
        running(tmp_path, RULES) as service,
        opened(address(service)) as page,
    ):
        ask(service)
        open_ada(page)
        wait_for(page, "#dialog-body", "2 of 3 left")
        wait_for(page, "#dialog [role=status]", "this service has no token, so nothing is changed over TCP")
        buttons = "[...document.querySelectorAll('#dialog-body button:disabled')].map(one => one.innerText)"

        assert page.evaluate(buttons) == ["Ban", "Reset its counters", "Lift the ban"]
        assert "2 of 3 left" in text(page, "#dialog-body")
