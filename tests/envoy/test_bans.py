"""What callers of a real Envoy get while a ban holds."""

import json
from pathlib import Path

import pytest

from tests.envoy.proxy import bootstrap, by, route, start_envoy
from tests.processes import ask, start_service

pytestmark = pytest.mark.usefixtures("transport")

RULES = """
domain: shop
retry_after: true
descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000}}]
"""
ENTRIES = [{"key": "user", "value": "ada"}]


def test_the_banned_get_429_until_the_ban_is_lifted_also_where_no_rule_limits_them(tmp_path: Path) -> None:
    with start_service(tmp_path / "service", RULES) as service:
        elsewhere = {"rate_limits": [by(("user", "x-user"))], "domain": "elsewhere"}
        routes = [route("/user", by(("user", "x-user"))), route("/elsewhere", per_route=elsewhere)]
        with start_envoy(tmp_path / "envoy", bootstrap([service.grpc_port], routes)) as envoy:
            before = envoy.get("/user", x_user="ada").status, envoy.get("/elsewhere", x_user="ada").status
            for length, domain in (("1h", "shop"), ("ever", "*")):
                body = {"domain": domain, "entries": ENTRIES, "for": length, "why": "spam"}
                assert ask(service.debug_port, "/bans", method="POST", body=json.dumps(body)).status == 200
            endless, other = envoy.get("/user", x_user="ada"), envoy.get("/user", x_user="eve")
            unlimited = envoy.get("/elsewhere", x_user="ada")
            body = {"domain": "*", "entries": ENTRIES}
            assert ask(service.debug_port, "/bans", method="DELETE", body=json.dumps(body)).status == 200
            ending, free = envoy.get("/user", x_user="ada"), envoy.get("/elsewhere", x_user="ada")

    assert before == (200, 200)
    assert (endless.status, unlimited.status, other.status) == (429, 429, 200)
    assert "retry-after" not in endless.headers
    assert (ending.status, free.status) == (429, 200)
    assert 3000 < int(ending.headers["retry-after"]) <= 3601
