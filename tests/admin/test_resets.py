"""`/counters/reset` on the operator's port: what it frees, what it refuses, and what the log says."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratelimit_service.errors import StoreError
from ratelimit_service.rules.secret import DIGEST
from ratelimit_service.stores.hit import Hit
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.system.address import Tcp
from tests.admin.service import Reply, Service, ask, running
from tests.admin.test_bans import own_address
from tests.clocks import Clock

RULES = """\
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {unit: minute, requests_per_unit: 3, algorithm: sliding_window}
      - {unit: year, requests_per_unit: 4}
  - key: login
    rate_limit: {unit: minute, requests_per_unit: 1, block_for: 2 days}
  - key: api_key
    hash_values: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: remote_address
    cidr: [10.0.0.0/8, 2001:db8::/32]
    prefix: {ipv4: 24, ipv6: 64}
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: free
    rate_limit: {unlimited: true}
"""


def entries(text: str) -> list[dict[str, str]]:
    """Those of `user=ada path=/x`."""
    return [dict(zip(("key", "value"), word.split("="), strict=True)) for word in text.split()]


def reset(service: Service, body: Any, **headers: str) -> Reply:
    """Ask for it, with the token; what is not bytes is made JSON."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(service.debug[0], "POST", "/counters/reset", body=text, headers=service.bearer | headers)


def statuses(service: Service, text: str, count: int, **fields: Any) -> list[int]:
    """Of that many requests with one descriptor."""
    asked = {"domain": "shop", "descriptors": [{"entries": entries(text)} | fields]}
    return [service.post(asked).status for _ in range(count)]


def test_all_windows_of_a_descriptor_are_free_again_and_the_log_says_who(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    asked = {"domain": "shop", "entries": entries("user=ada"), "who": "eve@host"}
    with running(tmp_path, RULES) as service:
        before = statuses(service, "user=ada", 4), statuses(service, "user=bob", 4)
        replies = [reset(service, asked) for _ in range(2)]
        after = statuses(service, "user=ada", 4), statuses(service, "user=bob", 1)

    assert before == ([200, 200, 200, 429], [200, 200, 200, 429])
    assert [reply.status for reply in replies] == [200, 200]
    found = [json.loads(reply.text) for reply in replies]
    assert [each.pop("reset") for each in found] == [2, 0]
    assert found[0] == {
        "domain": "shop",
        "entries": entries("user=ada"),
        "rules": ["shop.user.per_minute", "shop.user.per_year"],
        "store": "memory",
    }
    assert after == ([200, 200, 200, 429], [429])
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("admin.resets")]
    assert lines == [
        "reset by eve@host from 127.0.0.1: 2 counters of user=ada in domain shop",
        "reset by eve@host from 127.0.0.1: 0 counters of user=ada in domain shop",
    ]


def test_a_block_ends(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        before = statuses(service, "login=ada", 2)
        reply = reset(service, {"domain": "shop", "entries": entries("login=ada")})

        assert before == [200, 429]
        assert json.loads(reply.text)["reset"] == 1
        assert statuses(service, "login=ada", 1) == [200]


def test_limits_that_came_with_requests_are_free_again(tmp_path: Path) -> None:
    sent = {"limit": {"requests_per_unit": 1, "unit": "DAY"}}
    with running(tmp_path, RULES) as service:
        before = statuses(service, "nothing=x", 2, **sent)
        reply = reset(service, {"domain": "shop", "entries": entries("nothing=x")})

        assert before == [200, 429]
        assert (json.loads(reply.text)["rules"], json.loads(reply.text)["reset"]) == ([], 1)
        assert statuses(service, "nothing=x", 1, **sent) == [200]


def test_a_secret_value_is_shown_and_taken_as_its_digest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(tmp_path, RULES) as service:
        statuses(service, "api_key=hunter2", 1)
        by_value = reset(service, {"domain": "shop", "entries": entries("api_key=hunter2")})
        [shown] = json.loads(by_value.text)["entries"]
        statuses(service, "api_key=hunter2", 1)
        by_digest = reset(service, {"domain": "shop", "entries": [shown]})
        statuses(service, "api_key=hunter2", 1)
        statuses(service, f"api_key={shown['value']}", 1)
        after = statuses(service, "api_key=hunter2", 1)

    assert DIGEST.fullmatch(shown["value"])
    assert json.loads(by_value.text) == json.loads(by_digest.text)
    assert json.loads(by_digest.text)["reset"] == 1
    assert after == [429]
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(("client", "shown"), [("10.1.2.3", "10.1.2.0/24"), ("2001:db8::7", "2001:db8::/64")])
def test_a_network_stands_for_the_addresses_that_are_counted_by_it(tmp_path: Path, client: str, shown: str) -> None:
    with running(tmp_path, RULES) as service:
        before = statuses(service, f"remote_address={client}", 2)
        reply = reset(service, {"domain": "shop", "entries": entries(f"remote_address={shown}")})

        assert before == [200, 429]
        assert json.loads(reply.text)["reset"] == 1
        assert json.loads(reply.text)["entries"] == entries(f"remote_address={shown}")
        assert statuses(service, f"remote_address={client}", 1) == [200]


def test_what_nothing_limits_and_nothing_counts_is_404(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service:
        replies = [
            reset(service, {"domain": domain, "entries": entries(text)})
            for domain, text in (("shop", "free=x"), ("shop", "user=ada path=x"), ("shpo", "user=ada"))
        ]

    assert [reply.status for reply in replies] == [404] * 3
    assert replies[2].text == "no rule limits user=ada in domain shpo, and it has no counter; /explain says why\n"


class Lost(MemoryStore):
    """A store that cannot be reached."""

    async def reset(self, hits: Sequence[Hit]) -> int:
        raise StoreError("connection refused")


def test_where_the_store_cannot_be_reached_the_caller_and_the_log_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, RULES, store=Lost(1000, Clock())) as service:
        reply = reset(service, {"domain": "shop", "entries": entries("user=ada"), "who": "eve"})

    assert (reply.status, reply.text) == (503, "counters cannot be reset: connection refused\n")
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "resetting user=ada in domain shop for eve from 127.0.0.1 failed, perhaps in part: connection refused"
    ]


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"{", "the body is not a reset of counters: it is not JSON"),
        ({"domain": "shop"}, "it has the fields domain, entries, who, and who is optional"),
        ({"domain": "shop", "entries": []}, "a reset needs a domain and an entry"),
        ({"domain": "", "entries": entries("user=ada")}, "a reset needs a domain and an entry"),
        ({"domain": "shop", "entries": [{"key": "user", "value": "\ud800"}]}, "UTF-8"),
        ({"domain": "shop", "entries": [{"key": "user", "value": 1}]}, "entries must be a list such as"),
    ],
)
def test_a_wrong_body_is_refused_with_the_reason(tmp_path: Path, body: Any, wrong: str) -> None:
    with running(tmp_path, RULES) as service:
        reply = reset(service, body)

    assert reply.status == 400
    assert wrong in reply.text


def test_a_long_name_does_not_hide_the_address(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(tmp_path, RULES) as service:
        reset(service, {"domain": "shop", "entries": entries("user=ada"), "who": "x" * 9000 + "\x1b[31m"})

    assert f"reset by {'x' * 50} from 127.0.0.1: " in caplog.text


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://console.example"}, {"Host": "evil.example"}]
)
def test_pages_of_other_sites_reset_nothing(tmp_path: Path, headers: dict[str, str]) -> None:
    with running(tmp_path, RULES) as service:
        statuses(service, "login=ada", 2)
        reply = reset(service, {"domain": "shop", "entries": entries("login=ada")}, **headers)

        assert reply.status == 403
        assert statuses(service, "login=ada", 1) == [429]


def test_other_machines_reset_nothing_without_a_token_and_8080_never(tmp_path: Path) -> None:
    body = json.dumps({"domain": "shop", "entries": entries("user=ada")}).encode()
    token = "0123456789abcdef" * 2
    address = own_address()
    with running(tmp_path, RULES, debug_host="::") as service:
        there = ask(Tcp(address, service.debug[0].port), "POST", "/counters/reset", body=body)
        clients = ask(service.http[0], "POST", "/counters/reset", body=body)
    with running(tmp_path, RULES, debug_host="::", admin_token=token) as service:
        remote = Tcp(address, service.debug[0].port)
        without = ask(remote, "POST", "/counters/reset", body=body)
        with_it = ask(remote, "POST", "/counters/reset", body=body, headers={"Authorization": f"Bearer {token}"})

    assert [reply.status for reply in (there, clients, without, with_it)] == [401, 404, 401, 200]
