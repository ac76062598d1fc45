"""The page on screens of every size, in both colours, and as a screen reader has it."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.admin.service import Service, running
from tests.browser import Page, opened

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


ACTING = ("button", "textbox", "searchbox", "combobox", "spinbutton")
# Texts whose colour differs from the ground less than WCAG 2 asks for (1.4.3: 4.5 to 1).
LOW_CONTRAST = """(() => {
  const linear = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = rgb => [.2126, .7152, .0722].reduce((sum, share, i) => sum + share * linear(rgb[i] / 255), 0);
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const ground = element => {
    for (; element; element = element.parentElement) {
      const [r, g, b, a = 1] = parts(getComputedStyle(element).backgroundColor);
      if (a === 1) return [r, g, b];
    }
  };
  return [...document.querySelectorAll('body *')].filter(one => one.checkVisibility() &&
      !(one instanceof SVGElement) && [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
    .filter(one => {
      const [a, b] = [light(parts(getComputedStyle(one).color)), light(ground(one) || [255, 255, 255])];
      return (Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5;
    }).map(one => `${one.tagName}.${one.className}: ${one.textContent.slice(0, 30)}`);
})()"""


def test_all_has_a_name_and_is_read_easily(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        busy(service)
        with opened(f"http://{service.debug[0].host}:{service.debug[0].port}/") as page:
            page.wait_until("document.querySelectorAll('#rows tr').length === 4")
            nodes = page.command("Accessibility.getFullAXTree")["nodes"]
            low = {}
            for scheme in ("light", "dark"):
                resize(page, 1440, scheme)
                low[scheme] = page.evaluate(LOW_CONTRAST)

    roles: dict[str, list[str]] = {}
    for node in nodes:
        roles.setdefault(node.get("role", {}).get("value", ""), []).append(node.get("name", {}).get("value", ""))
    assert [role for role in ACTING for name in roles[role] if not name] == []
    assert len(roles["main"]) == 1
    assert {"Rules", "Try which limits a request meets, and why; nothing is charged"} <= set(roles["region"])
    assert all("the last 60 minutes" in name for name in roles["image"])
    assert low == {"light": [], "dark": []}
