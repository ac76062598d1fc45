"""Every block of YAML in the documents on rules is loaded, and what is said beside it is true of requests."""

import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratelimit_service.cli import main
from tests.books import whole

ROOT = Path(__file__).parents[2]
DOCUMENT = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("rules.md", "rules-topics.md"))


def blocks() -> dict[str, str]:
    """Each block by the heading above it; a second one below a heading has ` 2` in its name."""
    found: dict[str, str] = {}
    heading = ""
    count: Counter[str] = Counter()
    for match in re.finditer(r"^##+ (.*)$|^```yaml\n((?:.*\n)*?)```$", DOCUMENT, re.MULTILINE):
        if match[2] is None:
            heading = match[1]
        else:
            count[heading] += 1
            found[heading if count[heading] == 1 else f"{heading} {count[heading]}"] = match[2]
    return found


def data_file(heading: str) -> str:
    [text] = re.findall(rf"^## {heading}$(?:.*\n)*?```\n((?:.*\n)*?)```$", DOCUMENT, re.MULTILINE)
    return str(text)


CASES = {
    "Lists and networks": """
    - {request: method=PATCH, limit: 60 per minute, steps: [{hits: 60}, {request: method=POST, remaining: 59}]}
    - {request: method=GET, limit: none}
    - {request: remote_address=10.9.8.7, limit: unlimited, rule: remote_address_office}
    - {request: "remote_address=2001:DB8::1", limit: unlimited}
    - {request: "remote_address=::ffff:10.0.0.1", limit: unlimited}
    - {request: remote_address=11.0.0.1, limit: none}
    - {request: remote_address=unknown, limit: none}
    """,
    "All but some": """
    - {request: method=POST, limit: 60 per minute}
    - {request: method=HEAD, limit: none}
    """,
    "Addresses by prefix": """
    - request: "remote_address=2001:db8:1:2::1"
      steps: [{hits: 100}, {request: "remote_address=2001:db8:1:2:ffff::9", answer: refused},
              {request: "remote_address=2001:db8:1:3::1", answer: allowed}]
    - {request: remote_address=10.0.0.1, steps: [{hits: 100}, {request: remote_address=10.0.0.2, remaining: 99}]}
    """,
    "Queues": """
    - request: backend=api
      limit: {algorithm: leaky_bucket, unit: second, requests_per_unit: 50, queue: {max_delay: 200ms}}
      steps: [{times: 11, answer: allowed}, {answer: refused}, {after: 20ms, answer: allowed}, {answer: refused}]
    - {request: backend=dear, steps: [{hits: 51, answer: refused}, {hits: 50, answer: allowed}]}
    """,
    "Elastic limits": """
    - {request: tenant=a, steps: [{hits: 100, remaining: 300}, {hits: 300, remaining: 0},
       {answer: refused}, {request: tenant=b, hits: 600, answer: allowed, remaining: 0}]}
    - {request: tenant=a, steps: [{hits: 100}, {after: 100ms, hits: 100}, {after: 100ms, hits: 100},
       {after: 100ms, hits: 100}, {after: 100ms, hits: 100, answer: allowed, remaining: 0}, {answer: refused}]}
    """,
    "Costs known at the end": """
    - request: user=ada
      steps: [{request: user=ada settled=1, hits: 90000, remaining: 10000}, {hits: 0, answer: allowed},
              {request: user=ada settled=1, hits: 30000, answer: refused, remaining: 0}, {hits: 0, answer: refused},
              {after: 11s, hits: 0, answer: refused}, {after: 1s, hits: 0, answer: allowed, remaining: 0}]
    """,
    "Reservations": """
    - request: user=ada request_id=7
      steps: [{remaining: 96000}, {answer: allowed, remaining: 96000},
              {request: user=ada request_id=7 settled=1, hits: 1000, remaining: 99000},
              {request: user=ada request_id=7 settled=1, hits: 1000, remaining: 99000},
              {request: user=ada request_id=8, hits: 90000, remaining: 49000},
              {request: user=ada request_id=8 settled=1, hits: 60000, remaining: 39000}]
    """,
    "Calendar quotas": """
    - request: customer=acme
      at: 2026-03-14T22:59:59Z
      limit: {requests_per_unit: 100000, calendar: {unit: month, start: 15, zone: Europe/Berlin}}
      steps: [{hits: 100000, until_reset: 1s}, {answer: refused}, {after: 1s, answer: allowed, until_reset: 2674800s},
              {after: 2674800s, remaining: 99999}]
    """,
    "Allow and deny": """
    - {request: user=ada, limit: 60 per minute}
    - {request: user=monitoring, limit: unlimited}
    - {request: user=mallory, limit: denied, hits: 0, answer: refused}
    - {request: user=monitoring + user=mallory, answer: refused}
    """,
    "Algorithms": """
    - request: upload=x
      limit: {algorithm: token_bucket, requests_per_unit: 100, unit: minute}
      steps: [{times: 20, answer: allowed}, {answer: refused, until_reset: 1s}, {after: 600ms, answer: allowed}]
    """,
    "Soft limits": """
    - request: user=ada
      steps: [{times: 1000, answer: allowed, remaining: 0}, {times: 100, answer: allowed, remaining: 0},
              {answer: refused}]
    """,
    "Trials": """
    - {request: user=ada, hits: 60, steps: [{answer: allowed}, {denied: false, answer: allowed}]}
    """,
    "Defaults": """
    - {request: user=ada, limit: {algorithm: token_bucket, burst: 20, exceed: 10%}}
    """,
    "Regular expressions": """
    - {request: path=/v1/users/42, limit: 60 per minute}
    - {request: path=/v1/users/42/orders, limit: none}
    - {request: path=/api/v1/users/42, limit: none}
    """,
    "Blocks": """
    - request: login=ada
      steps:
        - {hits: 5, answer: allowed}
        - {answer: refused, until_reset: 900s}
        - {after: 14m, answer: refused, remaining: 0}
        - {after: 1m, hits: 5, answer: allowed}
        - {answer: refused, until_reset: 1800s}
        - {after: 1h, hits: 5, answer: allowed}
        - {answer: refused, until_reset: 900s}
    """,
    "Requests at once": """
    - request: path=/export request_id=a
      limit: 50 at once
      steps:
        - {hits: 49, remaining: 1}
        - {request: path=/export request_id=b, answer: allowed, remaining: 0, until_reset: 60s}
        - {request: path=/export request_id=c, answer: refused, until_reset: 60s}
        - {request: path=/export request_id=c, refund: true, answer: allowed, remaining: 0}
        - {request: path=/export request_id=b, answer: allowed, remaining: 0}
        - {request: path=/export request_id=b, refund: true, answer: allowed, remaining: 1}
        - {request: path=/export request_id=c, answer: allowed}
        - {after: 60s, request: path=/export request_id=d, remaining: 49}
    - {request: path=/export request_id=a, limit: {concurrency: 50, hold: 1 minute, place: request_id}}
    """,
    "Otherwise": """
    - {request: user=ada + path=/health, limit: [500 per minute, none]}
    - request: path=/cart
      limit: 100 per minute
      rule: shop.default
      steps: [{hits: 100}, {answer: refused}, {request: user=ada path=/cart, remaining: 99}]
    """,
    "Domains without a file": """
    - {request: path=/cart, limit: 1000 per minute}
    """,
    "Several limits": """
    - request: user=ada
      limit: 10 per second, 1000 per day
      steps: [{times: 10, answer: allowed}, {times: 5, answer: refused}, {after: 1s, hits: 0, rule: user.per_second},
              {times: 10, answer: allowed}]
    """,
    "Charged together": """
    - request: user=ada + ip=x
      steps: [{remaining: [59, 0]}, {answer: refused, times: 5}, {hits: 0, remaining: [59, 0]}]
    """,
    "The first with room": """
    - request: user=ada
      steps: [{hits: 990, rule: user.plan, remaining: 10}, {hits: 11, rule: user.credits, remaining: 489},
              {times: 10, answer: allowed}, {hits: 489, rule: credits, remaining: 0},
              {answer: refused, until_reset: 86400s}]
    """,
    "Secret values": """
    - {request: api_key=k-1, limit: 60 per minute, steps: [{hits: 60}, {request: api_key=k-2, remaining: 59}]}
    """,
    "Secret values 2": """
    - {request: api_key=h-0d2c13fa5cd6ef5a9e3fb8b2cd1b9d0a, limit: 6000 per minute}
    - {request: api_key=k-1, limit: none}
    """,
    "Lookups": """
    - request: api_key=k-7f3a91
      limit: 1000 per minute
      rule: tier_pro
    - {request: api_key=k-02bc44, limit: 10 per minute, rule: tier_free}
    - {request: api_key=k-unknown, limit: 10 per minute}
    - {request: 'api_key="a value, with a comma"', limit: 1000 per minute}
    """,
    "What callers are told": """
    - request: user=ada
      steps:
        - hits: 10
          headers: {RateLimit-Policy: '"burst";q=10;w=1, "hourly";q=1000;w=3600', Retry-After: ~}
        - {answer: refused, headers: {Retry-After: "1", Content-Type: application/problem+json}}
    """,
}
"""For each block cases of `ratelimit rules test`, with what the text beside it says."""


def test_each_block_has_its_cases() -> None:
    assert set(blocks()) == set(CASES)


@pytest.mark.parametrize("heading", CASES)
def test_what_is_said_beside_a_block_is_true(tmp_path: Path, heading: str) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    text = whole(blocks()[heading])
    domain = "api" if "domain: api" in text else "shop"
    (rules / "rules.yaml").write_text(text)
    (rules / "keys.csv").write_text(data_file("Data files"))
    (tmp_path / "cases.yaml").write_text(f"domain: {domain}\ncases:{CASES[heading]}\n")

    result = CliRunner().invoke(main, ["rules", "test", str(tmp_path / "cases.yaml"), "--rules", str(rules)])

    assert result.exit_code == 0, result.output
