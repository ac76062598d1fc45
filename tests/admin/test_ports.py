"""What each port has, and what it says when there is nothing."""

import asyncio
import gzip
import json
import logging
import re
import socket
import struct
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ratelimit_service.errors import StartError
from ratelimit_service.telemetry.tally import OUTCOMES
from tests.admin.conftest import RULES
from tests.admin.service import Reply, Service, ask, running
from tests.ports import free_port

ADA = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}


def test_health_is_200_while_callers_should_come_and_500_without_a_body_otherwise(service: Service) -> None:
    well = ask(service.http[0], "GET", "/healthcheck")
    service.health.drain()
    draining = ask(service.http[0], "GET", "/healthcheck")

    assert (well.status, well.body) == (200, b"OK")
    assert (draining.status, draining.body) == (500, b"")


@pytest.mark.parametrize("path", ["/", "/metrics", "/status", "/status/now", "/status/recent", "/status/rules"])
def test_whoever_asks_for_the_head_gets_no_body(service: Service, path: str) -> None:
    reply = service.get(path, "HEAD")

    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["Content-Type"] == service.get(path).headers["Content-Type"]


def test_metrics_are_on_the_callers_port_and_on_the_operators(service: Service) -> None:
    service.post(ADA)

    for reply in (service.get("/metrics"), ask(service.http[0], "GET", "/metrics")):
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        names = {family.name for family in text_string_to_metric_families(reply.text)}
        assert {"ratelimit_service_rate_limit_total_hits", "process_cpu_seconds"} <= names


def test_metrics_are_compressed_for_who_takes_them_so(service: Service) -> None:
    reply = service.get("/metrics", **{"Accept-Encoding": "gzip"})

    assert reply.headers["Content-Encoding"] == "gzip"
    assert b"# TYPE ratelimit_rules gauge\n" in gzip.decompress(reply.body)


def test_prometheus_has_a_port_of_its_own_when_asked_for(tmp_path: Path) -> None:
    settings = {"use_prometheus": "true", "prometheus_addr": "127.0.0.1:0", "prometheus_path": "/here"}
    with running(tmp_path, RULES, **settings) as service:
        (address,) = service.prometheus
        there = ask(address, "GET", "/here")
        elsewhere = ask(address, "GET", "/stats")

    assert "ratelimit_rules 3\n" in there.text
    assert elsewhere.status == 404


def test_rules_are_listed_in_envoyproxys_form_and_the_files_order(service: Service) -> None:
    assert service.get("/rlconfig").text == (
        "shop.user: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false\n"
        "shop.plan_free.path_/search: unit=SECOND requests_per_unit=1, shadow_mode: true, quota_mode: false\n"
        "shop.plan_gold: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false\n"
    )


def test_what_envoyproxy_has_not_is_listed_at_the_end_of_a_rules_line(tmp_path: Path) -> None:
    rules = """\
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {unit: 5 minutes, requests_per_unit: 3, exceed: 1}
      - {unit: day, requests_per_unit: 9, algorithm: token_bucket, burst: 4}
"""

    with running(tmp_path, rules) as service:
        text = service.get("/rlconfig").text
        paths = [rule["path"] for rule in json.loads(service.get("/status").text)["rules"]]

    assert text == (
        "shop.user.per_5_minutes: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false,"
        " unit_multiplier: 5, may exceed by 1\n"
        "shop.user.per_day: unit=DAY requests_per_unit=9, shadow_mode: false, quota_mode: false,"
        " token bucket, burst 4\n"
    )
    assert paths == [["user", "per_5_minutes"], ["user", "per_day"]]


def test_stats_have_envoyproxys_names(service: Service) -> None:
    for _ in range(4):
        service.post(ADA)
    service.post({"domain": "a\nb", "descriptors": [{}]})

    lines = service.get("/stats").text.splitlines()

    assert lines[:4] == [
        "ratelimit.service.rate_limit.shop.user.total_hits: 4",
        "ratelimit.service.rate_limit.shop.user.over_limit: 1",
        "ratelimit.service.rate_limit.shop.user.near_limit: 1",
        "ratelimit.service.rate_limit.shop.user.within_limit: 3",
    ]
    assert "ratelimit.service.rate_limit.a_b.domain_not_found: 1" in lines
    assert "ratelimit.service.config_load_success: 1" in lines
    assert "ratelimit_server.ShouldRateLimit.total_requests: 5" in lines


def test_the_status_tells_what_the_page_shows(service: Service) -> None:
    for _ in range(4):
        service.post(ADA)
    service.load("domain: shop\ndescriptors: 1\n")

    status = json.loads(service.get("/status").text)

    assert status["serving"] is True
    assert status["store"] == {"name": "memory", "healthy": True, "counters": 1, "evicted": 0}
    assert status["calls"]["total"] == 4
    assert {"what": "gRPC", "address": "127.0.0.1:8081"} in status["listening"]
    assert (status["reload"]["successes"], status["reload"]["failures"]) == (1, 1)
    assert "rules.yaml:2:14: " in status["troubles"][0]["details"][0]
    assert status["rules"][0] == {
        "domain": "shop",
        "path": ["user"],
        "limit": "3 per minute",
        "per_second": 0.05,
        "options": [],
        "place": f"{service.rules}/rules.yaml:4",
        "total": 4,
        "over": 1,
        "near": 1,
        "within": 3,
        "exceeded": 0,
        "spared": 0,
        "shadow": 0,
        "charges_dropped": 0,
        "policy_allowed": 0,
        "policy_refused": 0,
        "failed": 0,
    }
    assert status["domains"] == [
        {"domain": "shop", "total": 4} | dict.fromkeys(OUTCOMES, 0) | {"allowed": 3, "refused": 1}
    ]
    assert [rule["limit"] for rule in status["rules"]] == ["3 per minute", "1 per second", "unlimited"]
    assert status["rules"][1]["options"] == ["shadow"]


def test_the_page_loads_in_two_parts_what_the_status_has_in_one(service: Service) -> None:
    for _ in range(4):
        service.post(ADA)

    whole, now, described = (json.loads(service.get(path).text) for path in ("/status", "/status/now", "/status/rules"))
    counts = [numbers or [0] * len(now["columns"]) for numbers in now["counts"]]
    rules = [
        rule | dict(zip(now["columns"], numbers, strict=True))
        for rule, numbers in zip(described["rules"], counts, strict=True)
    ]

    assert rules == whole["rules"]
    assert now["counts"][1:] == [0, 0]
    assert now["edition"] == described["edition"]
    assert now["calls"]["total"] == 4


def test_the_edition_of_the_rules_changes_with_them(service: Service) -> None:
    before = json.loads(service.get("/status/now").text)["edition"]
    service.load("domain: shop\ndescriptors: 1\n")
    refused = json.loads(service.get("/status/now").text)["edition"]
    service.load("domain: shop\ndescriptors: [{key: plan, rate_limit: {deny: true}}]\n")

    assert before == refused
    assert json.loads(service.get("/status/now").text)["edition"] != before


def test_without_rules_every_page_answers(tmp_path: Path) -> None:
    with running(tmp_path, "domain: [") as service:
        replies = [service.get(path) for path in ("/", "/rlconfig", "/stats", "/status", "/metrics")]
        health = ask(service.http[0], "GET", "/healthcheck")

    assert [reply.status for reply in replies] == [200] * 5
    assert json.loads(replies[3].body)["rules"] == []
    assert health.status == 500


def test_an_unknown_path_is_answered_with_the_known_ones(service: Service) -> None:
    reply = service.get("/debug/pprof/")
    callers = ask(service.http[0], "GET", "/")

    assert (reply.status, callers.status) == (404, 404)
    assert "GET /rlconfig: the rules in force, a line each\n" in reply.text
    assert "POST /json: " in callers.text


def files_of(page: Reply) -> list[str]:
    """The paths that the page names."""
    return re.findall(r'(?:src|href)="(/page/[^"]*)"', page.text)


def test_the_page_lets_nothing_in_from_elsewhere(service: Service) -> None:
    page = service.get("/")
    policy = dict(each.strip().split(" ", 1) for each in page.headers["Content-Security-Policy"].split(";"))

    assert policy.pop("img-src") == "data:"
    assert {policy.pop(source) for source in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy.pop("require-trusted-types-for") == "'script'"
    assert set(policy.values()) == {"'none'"}
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-store"


def test_what_the_page_loads_is_kept_by_the_browser_and_is_of_one_version(service: Service) -> None:
    style, script = paths = files_of(service.get("/"))
    found = [service.get(path) for path in paths]
    modules = re.findall(r' from "\./(.*)";', found[1].text)
    _, _, digest, _ = script.split("/")
    others = [f"/page/{digest}/{name}" for name in ("index.html", "none.js", "..%2fserver.py")]
    others += [style.replace(digest, "0" * 16), f"/page/{digest}/", "/page/"]

    assert [one.headers["Content-Type"] for one in found] == [
        "text/css; charset=utf-8",
        "text/javascript; charset=utf-8",
    ]
    assert {one.headers["Cache-Control"] for one in found} == {"private, max-age=31536000, immutable"}
    assert {one.headers["X-Content-Type-Options"] for one in found} == {"nosniff"}
    assert "rules.js" in modules
    assert {service.get(f"/page/{digest}/{name}").status for name in modules} == {200}
    assert {path: service.get(path).status for path in others} == dict.fromkeys(others, 404)


def test_a_port_that_is_taken_is_said_and_nothing_is_listened_on(tmp_path: Path) -> None:
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = Service(tmp_path, port=str(free), debug_port=str(port))

        with pytest.raises(StartError) as raised:
            asyncio.run(service.server.start())

    assert str(raised.value) == f"cannot listen on 127.0.0.1:{port}: address already in use"
    socket.create_server(("127.0.0.1", free)).close()


def test_a_name_that_is_no_host_is_said(tmp_path: Path) -> None:
    service = Service(tmp_path, host="no-such-host.invalid")

    with pytest.raises(StartError, match=r"^cannot listen on no-such-host\.invalid:0: "):
        asyncio.run(service.server.start())


def test_every_host_is_listened_on_and_any_means_both_families(tmp_path: Path) -> None:
    with running(tmp_path, RULES, host="127.0.0.1,127.0.0.2", debug_host="::") as service:
        replies = [ask(address, "GET", "/healthcheck") for address in service.http]
        port = service.debug[0].port
        by_ipv4 = ask(service.debug[0]._replace(host="127.0.0.1"), "GET", "/rlconfig")

    assert [reply.status for reply in replies] == [200, 200]
    assert port > 0
    assert by_ipv4.status == 200


def test_a_client_that_leaves_in_the_middle_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rules = "".join(
        f"  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n" for number in range(3000)
    )
    with running(tmp_path, f"domain: shop\ndescriptors:\n{rules}") as service:
        with socket.create_connection(service.debug[0]) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
            client.recv(100)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        after = service.get("/rlconfig")

    assert after.status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_huge_header_is_refused(service: Service) -> None:
    assert service.get("/status", X="x" * 20_000).status == 400
