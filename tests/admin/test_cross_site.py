"""What a browser may ask for a page of another site: nothing that charges, and nothing of the operator's port."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratelimit_service.settings import Settings
from ratelimit_service.system.address import Tcp
from tests.admin.conftest import RULES
from tests.admin.service import Service, ask, running
from tests.browser import browse

ADA = {"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}
HERE = "http://console.example:8080"


def status(service: Service, **headers: str) -> int:
    """Of a POST to /json with these headers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(service.http[0], "POST", "/json", body=json.dumps(ADA).encode(), headers=named).status


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content_Type": "text/plain"},
        {"Sec_Fetch_Site": "same-origin", "Origin": "https://behind-a-proxy.example"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": "http://console:8080", "Host": "console:8080"},
        {"Origin": "http://console.edge.svc:8080", "Host": "Console.Edge.Svc:8080"},
        {"Origin": "http://10.1.2.3:8080", "Host": "10.1.2.3:8080"},
    ],
)
def test_programs_and_pages_of_the_same_site_may_post(service: Service, headers: dict[str, str]) -> None:
    assert status(service, **headers) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "cross-site", "Origin": HERE, "Host": "console.example:8080"},
        {"Sec_Fetch_Site": "same-site", "Origin": HERE},
        {"Origin": HERE},
        {"Origin": HERE, "Host": "console.example:8080"},  # whose author may let its name lead here (DNS rebinding)
        {"Origin": "null"},
        {"Origin": "http://[::1", "Host": "[::1"},
        {"Origin": "http://console.example", "Host": "console.example:8080"},
    ],
)
def test_pages_of_other_sites_may_not_post_and_charge_nothing(service: Service, headers: dict[str, str]) -> None:
    assert status(service, **headers) == 403
    assert service.method.calls == 0


@pytest.mark.parametrize("allowed", [HERE, "https://a.example,HTTP://Console.Example:8080", "*"])
def test_pages_of_allowed_origins_may_post(tmp_path: Path, allowed: str) -> None:
    with running(tmp_path, RULES, http_allowed_origins=allowed) as service:
        assert status(service, Sec_Fetch_Site="cross-site", Origin=HERE) == 200
        assert status(service, Origin=HERE) == 200
        assert status(service, Origin=HERE, Host="console.example:8080") == 200


@contextmanager
def site(page: str) -> Iterator[Tcp]:
    """A web site of one page."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            """Nothing is of interest."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Tcp("127.0.0.1", server.server_port)
        server.shutdown()


def posting(url: str) -> str:
    """A page that posts there, and says so once there is an answer, which it cannot read."""
    return (
        f"<p>asking</p><script>fetch('{url}/json', {{method: 'POST', mode: 'no-cors', body: '{json.dumps(ADA)}'}})"
        ".then(() => document.querySelector('p').textContent = 'answered')</script>"
    )


def test_a_real_browser_charges_nothing_for_a_page_of_another_site(tmp_path: Path) -> None:
    with running(tmp_path, RULES) as service, site(posting(f"http://{service.http[0]}")) as elsewhere:
        by_address = browse(f"http://{elsewhere}/")
        by_name = browse(f"http://localhost:{elsewhere.port}/")
        calls = service.method.calls

    assert ("answered" in by_address, "answered" in by_name) == (True, True)
    assert calls == 0


def test_a_real_browser_shows_nothing_of_the_operators_port_under_a_name_of_another_site(service: Service) -> None:
    port = service.debug[0].port
    rebound = browse(f"http://evil.example:{port}/rlconfig", "--host-resolver-rules=MAP evil.example 127.0.0.1")
    own = browse(f"http://localhost:{port}/rlconfig")

    assert "shop.user" in own
    assert "shop.user" not in rebound
    assert "DEBUG_ALLOWED_HOSTS" in rebound


OPERATORS = ["/", "/rlconfig", "/stats", "/status", "/status/now", "/status/recent", "/status/rules", "/nowhere"]


@pytest.mark.parametrize("path", OPERATORS)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:6070", "127.0.0.1.evil.example", "evil.xsvc", "a.svc.evil.com"]
)
def test_the_operators_port_is_not_asked_by_foreign_names(service: Service, path: str, host: str) -> None:
    reply = service.get(path, Host=host)

    assert reply.status == 403
    assert "shop" not in reply.text


@pytest.mark.parametrize(
    "host",
    [
        "10.1.2.3:6070",
        "127.1:6070",
        "[fd00::1]:6070",
        "localhost:6070",
        "ratelimit.localhost:6070",
        "LOCALHOST.:6070",
        "ratelimit:6070",  # a service of Docker compose, or of the same namespace of Kubernetes
        "ratelimit.prod.svc:6070",
        "ratelimit.prod.svc.cluster.local",
        "host.docker.internal:6070",
        "",
    ],
)
def test_addresses_local_names_and_those_of_clusters_are_answered(service: Service, host: str) -> None:
    assert service.get("/rlconfig", Host=host).status == 200


@pytest.mark.parametrize("host", ["limits.example.com", "Limits.Example.Com:6070", "a.b.example.org"])
def test_names_in_the_setting_are_answered(tmp_path: Path, host: str) -> None:
    with running(tmp_path, RULES, debug_allowed_hosts="limits.example.com,.example.org") as service:
        assert service.get("/rlconfig", Host=host).status == 200
        assert service.get("/rlconfig", Host="example.com").status == 403


def test_any_name_can_be_allowed(tmp_path: Path) -> None:
    with running(tmp_path, RULES, debug_allowed_hosts="*") as service:
        assert service.get("/rlconfig", Host="evil.example").status == 200


def test_scrapes_probes_and_callers_may_use_any_name(service: Service) -> None:
    headers = {"Host": "ratelimit.corp.example"}

    assert service.get("/metrics", **headers).status == 200
    for path in ("/healthcheck", "/metrics"):
        assert ask(service.http[0], "GET", path, headers=headers).status == 200
    assert status(service, **headers) == 200


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("http_allowed_origins", "console.example"),
        ("http_allowed_origins", "https://console.example/"),
        ("http_allowed_origins", "null"),
        ("debug_allowed_hosts", "https://a.example"),
        ("debug_allowed_hosts", "*.example.com"),
        ("debug_allowed_hosts", "a.example:6070"),
    ],
)
def test_what_is_no_name_and_no_origin_is_refused(field: str, text: str) -> None:
    with pytest.raises(ValueError, match="is not a list of "):
        Settings.model_validate({field: text})


def test_no_answer_says_what_the_server_is_made_of(service: Service) -> None:
    answers = [
        service.get("/"),
        service.get("/metrics"),
        service.get("/nowhere"),
        service.get("/", "POST", **service.bearer),
        service.get("/", X="x" * 20_000),
        service.post(b"{"),
    ]

    assert [answer.status for answer in answers] == [200, 200, 404, 405, 400, 400]
    assert {answer.headers["Server"] for answer in answers} == {"ratelimit"}


HOSTILE = "\x1b[31m\x9b31m\x85\u2028\u202e\u200b\u2066\U000e0041\x7f"


def test_no_text_of_a_request_turns_a_terminal_or_a_line_around(service: Service) -> None:
    override = {"requestsPerUnit": 5, "unit": "MINUTE"}
    hostile = {"entries": [{"key": f"k{HOSTILE}", "value": f"v{HOSTILE}"}], "limit": override}
    service.post({"domain": f"shop{HOSTILE}", "descriptors": [hostile]})
    service.post({"domain": "shop", "descriptors": [hostile]})
    explained = ask(
        service.debug[0], "POST", "/explain", body=json.dumps({"domain": "shop", "descriptors": [hostile]}).encode()
    )
    texts = [service.get(path).text for path in ("/stats", "/metrics", "/status", "/status/now")] + [explained.text]

    assert explained.status == 200
    assert json.loads(explained.text)["descriptors"][0]["entries"][0]["value"] == f"v{HOSTILE}"
    shown_on_page = json.dumps(json.loads(texts[2]), ensure_ascii=False)
    for text in (*texts, shown_on_page):
        assert "[31m" in text
        assert set(text) & set("\x1b\x9b\x85\u2028\u202e\u200b\u2066\U000e0041\x7f") == set()
