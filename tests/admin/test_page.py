"""The page, as a real browser shows it."""

import json
import re
from html import unescape
from pathlib import Path

from tests.admin.service import Service, running
from tests.browser import browse

HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"

RULES = f"""\
domain: shop
descriptors:
  - key: user
    rate_limit: {{unit: minute, requests_per_unit: 3, name: each}}
  - key: name
    value: {json.dumps(HOSTILE)}
    rate_limit: {{unit: hour, requests_per_unit: 1000}}
"""


def shown(service: Service) -> tuple[str, str]:
    """The markup of the page, and the text in it."""
    address = service.debug[0]
    markup = browse(f"http://{address.host}:{address.port}/")
    body = markup[markup.index("<main>") : markup.index("</main>")]
    return markup, " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_rules_and_what_they_answered_are_shown(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        for _ in range(4):
            service.post({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]})
        _, text = shown(service)

    assert "serving version " in text
    assert "Domain Descriptor Hits/s Over/s Hits Within Over Near Limit shop" in text
    assert re.search(r"shop user rules.yaml: 4 0(\.0)? 0 4 3 1 1 3 per minute name each ", text)
    assert "1,000 per hour" in text
    assert "could not be loaded" not in text


def test_what_a_rule_in_shadow_mode_would_have_refused_is_shown_as_such(tmp_path: Path) -> None:
    trial = "  - {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}\n"

    with running(tmp_path, RULES + trial) as service:
        for _ in range(5):
            service.post({"domain": "shop", "descriptors": [{"entries": [{"key": "trial", "value": "ada"}]}]})
        _, text = shown(service)
        metrics = service.get("/metrics").text

    assert "Hits Within Over Near Would have refused Limit shop" in text
    assert re.search(r"shop trial rules.yaml: 8 0(\.0)? 0 5 3 2 1 2 3 per minute shadow ", text)
    outcomes = "Allowed Not limited Allowed by policy Would have been refused Refused Refused by policy Failed"
    assert f"Domain {outcomes} shop 3 0 0 2 0 0 0 " in text
    series = 'ratelimit_service_rate_limit_shadow_mode{domain="shop",key1="trial"} 2'
    assert f"# HELP {series.partition('{')[0]} Cost that a rule in shadow mode would have refused" in metrics
    assert series in metrics


def test_what_a_rule_drops_although_it_lets_looks_pass_is_shown(tmp_path: Path) -> None:
    tokens = "  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 9, algorithm: token_bucket}}\n"

    with running(tmp_path, RULES + tokens) as service:
        for cost in (0, 70, 0, 70):
            entries = [{"key": "tokens", "value": "ada"}]
            service.post({"domain": "shop", "descriptors": [{"entries": entries, "hitsAddend": cost}]})
        _, text = shown(service)

    assert "Near Not charged Limit shop" in text
    assert re.search(r"shop tokens rules.yaml: 8 \S+ \S+ 140 140 \S+ 140 9 per year ", text)


def test_what_shadow_mode_of_the_service_would_have_refused_is_shown(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        service.limiter.totals.global_shadow_mode = 1234
        _, text = shown(service)

    assert "Would have been refused 1,234 calls that SHADOW_MODE allowed" in text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        service.post({"domain": HOSTILE, "descriptors": [{}]})
        service.load(f"domain: shop\ndescriptors:\n  - {json.dumps(HOSTILE)}: 1\n")
        markup, text = shown(service)

    assert "<title>ratelimit</title>" in markup
    assert "<img" not in markup
    assert markup.count("<script") == 1
    assert markup.count("&lt;img src=x onerror=") == 5
    assert "Domains without rules" in text


def test_the_errors_of_the_last_reload_are_shown_with_their_places(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        service.load(
            "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n"
        )
        _, text = shown(service)

    assert "The newest rules could not be loaded" in text
    assert "the old ones stay in force" in text
    assert f'{tmp_path}/rules.yaml:4:24: unit "fortnight" is not one of' in text
